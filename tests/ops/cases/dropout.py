"""Rows of dropout: a ticket instead of a mask, nothing saved."""

from __future__ import annotations

import torch

from tests.case import OpCase
from tinygrad_mem.nn import functional as NF


def _row(name, function, shape, op="Dropout", **options):
    ours, theirs = getattr(NF, function), getattr(torch.nn.functional, function)
    return OpCase(
        name,
        op,
        lambda x: ours(x, training=True, **options),
        lambda x: theirs(x, training=True, **options),
        lambda rng: [rng.standard_normal(shape)],
        exact=False,
    )


CASES = [
    _row("dropout", "dropout", (7, 6, 5), p=0.3),
    _row("dropout_all", "dropout", (7, 6, 5), p=1.0),
    _row("dropout1d", "dropout1d", (5, 6, 4), p=0.4),
    _row("dropout2d", "dropout2d", (3, 6, 4, 4), p=0.4),
    _row("dropout3d", "dropout3d", (6, 4, 3, 2), p=0.4),
    _row("alpha_dropout", "alpha_dropout", (7, 6, 5), p=0.3),
]
