"""Convolutions, their transposes, unfold and fold."""

from __future__ import annotations

import torch

from tests.case import OpCase
from tinygrad_mem.nn import functional as NF


def _row(name, op, function, shapes, saved=True, tolerance=(1e-4, 1e-5), **options):
    """A row of a function of nn.functional; a convolution saves the input and the weight."""
    ours, theirs = getattr(NF, function), getattr(torch.nn.functional, function)
    return OpCase(
        name,
        op,
        lambda *t: ours(*t, **options),
        lambda *t: theirs(*t, **options),
        lambda rng: [rng.standard_normal(s) for s in shapes],
        (lambda x, w, *rest: x.nbytes + w.nbytes) if saved else None,
        tolerance=tolerance,
    )


CASES = [
    _row("conv1d", "Conv", "conv1d", [(2, 3, 9), (4, 3, 3), (4,)], stride=2, padding=1),
    _row("conv2d", "Conv", "conv2d", [(2, 3, 7, 6), (4, 3, 3, 3), (4,)], padding=1),
    _row("conv2d_no_bias", "Conv", "conv2d", [(2, 3, 7, 6), (4, 3, 3, 2)], stride=(2, 1), dilation=(1, 2)),
    _row("conv2d_pointwise", "Conv", "conv2d", [(2, 3, 5, 4), (4, 3, 1, 1), (4,)]),
    _row("conv2d_same", "Conv", "conv2d", [(2, 3, 5, 4), (4, 3, 1, 3), (4,)], padding="same"),
    _row("conv2d_groups", "Conv", "conv2d", [(2, 4, 5, 4), (6, 2, 3, 3), (6,)], padding=(0, 1), groups=2),
    _row("conv2d_depthwise", "Conv", "conv2d", [(2, 4, 6, 5), (4, 1, 3, 3), (4,)], padding=1, groups=4),
    _row("conv2d_unbatched", "Conv", "conv2d", [(3, 7, 6), (4, 3, 3, 3), (4,)]),
    # sums of 144 products, of up to 40: Winograd's errors are near 1e-5 of the largest
    _row("conv2d_winograd", "Conv", "conv2d", [(2, 16, 12, 12), (16, 16, 3, 3), (16,)], tolerance=(1e-4, 4e-4), padding=1),
    _row("conv3d", "Conv", "conv3d", [(2, 2, 4, 5, 4), (3, 2, 2, 3, 3), (3,)], padding=1),
    _row("conv_transpose1d", "ConvTranspose", "conv_transpose1d", [(2, 3, 6), (3, 4, 3), (4,)], stride=2),
    _row(
        "conv_transpose2d",
        "ConvTranspose",
        "conv_transpose2d",
        [(2, 4, 5, 4), (4, 3, 3, 3), (6,)],
        stride=2,
        padding=1,
        output_padding=1,
        groups=2,
    ),
    _row("conv_transpose3d", "ConvTranspose", "conv_transpose3d", [(2, 2, 3, 3, 3), (2, 3, 2, 2, 2), (3,)], dilation=2),
    _row("unfold", "Unfold", "unfold", [(2, 3, 6, 5)], False, kernel_size=(2, 3), padding=1, stride=2),
    _row("fold", "Fold", "fold", [(2, 12, 20)], False, output_size=(5, 6), kernel_size=2),
]
