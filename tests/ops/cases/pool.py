"""Rows of the poolings: a byte a window for the largest, nothing for the mean."""

from __future__ import annotations

import torch

from tests.case import OpCase
from tinygrad_mem.nn import functional as NF


def _row(name, op, function, shape, *arguments, saved=None, **options):
    ours, theirs = getattr(NF, function), getattr(torch.nn.functional, function)
    return OpCase(
        name,
        op,
        lambda x: ours(x, *arguments, **options),
        lambda x: theirs(x, *arguments, **options),
        lambda rng: [rng.standard_normal(shape)],
        saved,
    )


def _byte(x, y, *rest):
    return y.size


def _positions(x, y, *rest):
    return 8 * y.size


CASES = [
    _row("max_pool1d", "MaxPool", "max_pool1d", (2, 3, 11), 3, 2, 1, saved=_byte),
    _row("max_pool2d", "MaxPool", "max_pool2d", (2, 3, 8, 6), 2, saved=_byte),
    _row("max_pool2d_odd", "MaxPool", "max_pool2d", (2, 3, 9, 7), 2, saved=_byte),
    _row("max_pool2d_overlap", "MaxPool", "max_pool2d", (2, 3, 9, 7), 3, 2, 1, saved=_byte),
    _row("max_pool2d_ceil", "MaxPool", "max_pool2d", (2, 3, 8, 7), 3, 2, ceil_mode=True, saved=_byte),
    _row("max_pool2d_dilated", "MaxPool", "max_pool2d", (3, 9, 10), (2, 3), (1, 2), (1, 1), (2, 2), saved=_byte),
    _row("max_pool3d", "MaxPool", "max_pool3d", (2, 2, 5, 4, 6), 2, (2, 1, 2), saved=_byte),
    _row("avg_pool1d", "AvgPool", "avg_pool1d", (2, 3, 11), 3, 2, 1),
    _row("avg_pool2d", "AvgPool", "avg_pool2d", (2, 3, 8, 6), 2),
    _row("avg_pool2d_inside", "AvgPool", "avg_pool2d", (2, 3, 9, 7), 3, 2, 1, count_include_pad=False),
    _row("avg_pool2d_ceil", "AvgPool", "avg_pool2d", (2, 3, 8, 7), 3, 2, 1, ceil_mode=True),
    _row("avg_pool2d_divisor", "AvgPool", "avg_pool2d", (3, 8, 6), (3, 2), divisor_override=5),
    _row("avg_pool3d", "AvgPool", "avg_pool3d", (2, 2, 5, 4, 6), 2, (2, 1, 2)),
    _row("adaptive_avg_pool1d", "AdaptiveAvgPool", "adaptive_avg_pool1d", (2, 3, 11), 4),
    _row("adaptive_avg_pool2d", "AdaptiveAvgPool", "adaptive_avg_pool2d", (2, 3, 7, 9), (3, None)),
    _row("adaptive_avg_pool2d_global", "AdaptiveAvgPool", "adaptive_avg_pool2d", (2, 3, 7, 9), 1),
    _row("adaptive_avg_pool2d_even", "AvgPool", "adaptive_avg_pool2d", (2, 3, 8, 6), (4, 3)),
    _row("adaptive_avg_pool3d", "AdaptiveAvgPool", "adaptive_avg_pool3d", (2, 2, 5, 4, 7), (2, 3, 4)),
    _row("adaptive_max_pool1d", "AdaptiveMaxPool", "adaptive_max_pool1d", (2, 3, 11), 4, saved=_positions),
    _row("adaptive_max_pool2d", "AdaptiveMaxPool", "adaptive_max_pool2d", (2, 3, 7, 9), (3, 2), saved=_positions),
    _row("adaptive_max_pool2d_even", "MaxPool", "adaptive_max_pool2d", (2, 3, 8, 6), (4, 2), saved=_byte),
    _row("max_pool2d_positions", "MaxPool", "max_pool2d", (2, 3, 9, 7), 3, 2, 1, return_indices=True, saved=_byte),
    _row("adaptive_max_pool2d_positions", "AdaptiveMaxPool", "adaptive_max_pool2d", (2, 3, 8, 6), 2, True, saved=_positions),
]
