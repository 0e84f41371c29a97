"""Sampling of images between their pixels, and grids of affine maps."""

from __future__ import annotations

from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DimensionError, DTypeError, NotOfferedError, ShapeError
from ..ops import sample as ops
from ..scope import setting
from . import creation, join, linalg
from .door import AS_IS, FLOAT32, WIDEST, public
from .shape import sizes_of

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


@public("nn.functional", cpu=FLOAT32, cuda=WIDEST)
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """(N, C, H, W) at the places (N, h, w, 2) of ``grid``: (N, C, h, w); or with a depth (N, C, D, H, W) and (N, d, h, w, 3).

    A place is x, y (and z): -1 is one end of the image, 1 the other. At a place with a nan (or an inf that is
    reflected) the result is nan, and so is the gradient of the place, if there is one; the image gets no gradient from there.

    Saves: the grid, and the input if the grid needs a gradient.

    Args:
        mode: ``"bilinear"`` mixes the pixels around a place (4, or 8 with a depth), ``"nearest"`` takes one of them,
            ``"bicubic"`` mixes 16 (without a depth).
        padding_mode: the values outside of the image: ``"zeros"``, its ``"border"``, or its ``"reflection"``.
        align_corners: -1 and 1 are the centers of the outermost pixels, else their outer edges.

    Raises:
        ValueError: an unknown mode or padding_mode.
        ShapeError: the shapes do not fit each other, or an image without pixels.
        DimensionError: a tensor without dimensions.
        DTypeError: the two have different dtypes.
    """
    if mode not in _MODES:
        raise ArgumentError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in _PADDINGS:
        raise ArgumentError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', "
            f"but got: '{padding_mode}'"
        )
    if not input.ndim or not grid.ndim:
        raise DimensionError("Dimension specified as 0 but tensor has no dimensions")
    if input.ndim not in (4, 5) or grid.ndim != input.ndim:
        raise ShapeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got input with sizes "
            f"{list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if mode == "bicubic" and input.ndim == 5:
        raise ShapeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if 0 in input.shape[2:]:
        raise ShapeError(
            f"grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes {list(input.shape)}"
        )
    if input.dtype != grid.dtype:
        raise DTypeError(
            f"grid_sampler(): expected input and grid to have same dtype, but input has {input.dtype} and grid has {grid.dtype}"
        )
    return apply(ops.GridSample, input, grid, mode=mode, padding=padding_mode, align=bool(align_corners))


@public("nn.functional", cuda=AS_IS)
def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """The places, for :func:`grid_sample`, from which affine maps (N, 2, 3) take their outputs of ``size`` (N, C, H, W).

    (N, H, W, 2); with maps (N, 3, 4) and size (N, C, D, H, W), (N, D, H, W, 3).

    Saves: places of the output: (H * W, 3) numbers, or (D * H * W, 4), if theta needs a gradient.

    Raises:
        ValueError: the shapes do not fit each other, a size is below 1, or ``theta`` is not floating.
        NotOfferedError: a size of other than 4 or 5 numbers.
    """
    sizes = [*sizes_of((size,))]
    d = len(sizes) - 2
    if not theta.is_floating_point():
        raise ArgumentError(f"Expected theta to have floating point type, but got {theta.dtype}")
    if d not in (2, 3):
        raise NotOfferedError(f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms. Got size {sizes}.")
    if theta.ndim != 3 or tuple(theta.shape) != (sizes[0], d, d + 1):
        raise ArgumentError(
            f"Expected a batch of {sizes[0]} affine matrices of shape {d}x{d + 1} for size {sizes}. Got {list(theta.shape)}."
        )
    if min(sizes) <= 0:
        raise ArgumentError(f"Expected non-zero, positive output size. Got {sizes}")
    axes = [_middles(n, theta, bool(align_corners)) for n in sizes[2:]]
    places = creation.meshgrid(*axes, indexing="ij")
    with setting(autocast=None):  # the product alone is cast
        base = join.stack([*reversed(places), creation.ones_like(places[0])], -1).reshape(-1, d + 1)
    return linalg.matmul(base, theta.transpose(1, 2)).reshape(sizes[0], *sizes[2:], d)


def _middles(count: int, like: Tensor, align: bool) -> Tensor:
    """The centers of ``count`` pixels, between -1 and 1."""
    if count == 1:
        return creation.zeros(1, dtype=like.dtype, device=like.device)
    end = 1.0 if align else (count - 1) / count
    return creation.linspace(-end, end, count, dtype=like.dtype, device=like.device)
