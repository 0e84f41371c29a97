"""Convolutions and their transposes, with the names and arguments of ``torch.nn.functional``.

Each takes a batch (N, C, *spatial) or one unbatched (C, *spatial) input. Saves: the input if the weight needs a gradient,
the weight if the input does. Workspace: about 2 MiB while a kernel runs, whatever the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..dtypes import is_floating
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops import conv as ops
from . import shape
from .door import LOWER, public

Sizes = int | Sequence[int]


def sizes_of(name: str, what: str, value: Any, count: int, least: int | None = None) -> tuple[int, ...]:
    """``value`` for each of ``count`` axes, checked to be at least ``least`` if that is given."""
    if isinstance(value, int):
        sizes = (value,) * count
    else:
        sizes = tuple(map(operator.index, value))
        if len(sizes) == 1:
            sizes *= count
    if len(sizes) != count:
        raise ShapeError(f"{name}: expected {what} to be one integer or {count}, found {value!r}")
    if least is not None and min(sizes) < least:
        bound = "negative values are" if least == 0 else "zero or negative values are"
        raise ShapeError(f"{name}: {what} {value!r}: {bound} not supported")
    return sizes


def _check(name: str, axes: int, input: Tensor, weight: Tensor, groups: int) -> bool:
    """Check the numbers of axes. Returns True if the input is unbatched."""
    if weight.ndim != axes + 2:
        raise ShapeError(f"{name}: expected a {axes + 2}D weight, found {list(weight.shape)}")
    if input.ndim not in (axes + 1, axes + 2):
        raise ShapeError(
            f"Expected {axes + 1}D (unbatched) or {axes + 2}D (batched) input to {name}, but got input of size: "
            f"{list(input.shape)}"
        )
    if operator.index(groups) < 1:
        raise ShapeError(f"{name}: non-positive groups is not supported, found {groups}")
    return input.ndim == axes + 1


def _padding(name: str, padding: Any, axes: int, weight: Tensor, stride: tuple, dilation: tuple) -> tuple:
    """(before, after) for each axis; for "same", an odd number has the larger part after, as in PyTorch."""
    if not isinstance(padding, str):
        return tuple((p, p) for p in sizes_of(name, "padding", padding, axes, 0))
    if padding == "valid":
        return ((0, 0),) * axes
    if padding != "same":
        raise ArgumentError(f"{name}: Invalid padding string {padding!r}, should be one of 'valid', 'same', or integers")
    if any(s != 1 for s in stride):
        raise ArgumentError(f"{name}: padding='same' is not supported for strided convolutions, found stride {stride}")
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


def _batched(op: Any, unbatched: bool, input: Tensor, *others: Tensor | None, **options: Any) -> Tensor:
    """An op of a batch, or of one input as a batch of one."""
    if not unbatched:
        return apply(op, input, *others, **options)
    return shape.squeeze(apply(op, shape.unsqueeze(input, 0), *others, **options), 0)


def _conv(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """A convolution; ``name`` has the number of axes."""
    axes = int(name[-2])
    unbatched = _check(name, axes, input, weight, groups)
    stride = sizes_of(name, "stride", stride, axes, 1)
    dilation = sizes_of(name, "dilation", dilation, axes, 1)
    pads = _padding(name, padding, axes, weight, stride, dilation)
    options = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    return _batched(ops.Conv, unbatched, input, weight, bias, **options)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of (N, C, L) with (O, C / groups, K). Saves and raises as :func:`conv2d`."""
    return _conv("conv1d", input, weight, bias, stride, padding, dilation, groups)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of (N, C, H, W) with (O, C / groups, K, L); ``padding`` may be "same" or "valid".

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError: channels, groups, bias or sizes do not fit.
        DTypeError: the dtypes differ, or are not floating.
    """
    return _conv("conv2d", input, weight, bias, stride, padding, dilation, groups)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of (N, C, D, H, W) with (O, C / groups, J, K, L). Saves and raises as :func:`conv2d`."""
    return _conv("conv3d", input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    name: str, input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
) -> Tensor:
    """A transposed convolution; ``name`` has the number of axes."""
    axes = int(name[-2])
    unbatched = _check(name, axes, input, weight, groups)
    options: dict[str, Any] = {
        "stride": sizes_of(name, "stride", stride, axes, 1),
        "padding": sizes_of(name, "padding", padding, axes, 0),
        "output_padding": sizes_of(name, "output_padding", extra, axes, 0),
        "dilation": sizes_of(name, "dilation", dilation, axes, 1),
    }
    for e, s, d in zip(options["output_padding"], options["stride"], options["dilation"], strict=True):
        if e >= s and e >= d:
            raise ShapeError(
                f"{name}: output padding must be smaller than either stride or dilation, but got output_padding {e}, "
                f"stride {s}, dilation {d}"
            )
    return _batched(ops.ConvTranspose, unbatched, input, weight, bias, groups=groups, **options)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of :func:`conv1d`: (N, C, L), (C, O / groups, K). Saves and raises as :func:`conv_transpose2d`."""
    return _conv_transpose("conv_transpose1d", input, weight, bias, stride, padding, output_padding, groups, dilation)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of :func:`conv2d` as a function: (N, C, H, W), (C, O / groups, K, L).

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError: channels, groups, bias, output_padding or sizes do not fit.
        DTypeError: the dtypes differ, or are not floating.
    """
    return _conv_transpose("conv_transpose2d", input, weight, bias, stride, padding, output_padding, groups, dilation)


@public("torch", "nn.functional", cpu=LOWER, cuda=LOWER)
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of :func:`conv3d`: (N, C, D, H, W), (C, O / groups, J, K, L). Saves, raises as :func:`conv_transpose2d`."""
    return _conv_transpose("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation)


def _windows(name: str, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> dict[str, tuple[int, ...]]:
    """The options of windows of an image, checked."""
    return {
        "kernel": sizes_of(name, "kernel_size", kernel_size, 2, 1),
        "stride": sizes_of(name, "stride", stride, 2, 1),
        "padding": sizes_of(name, "padding", padding, 2, 0),
        "dilation": sizes_of(name, "dilation", dilation, 2, 1),
    }


@public("nn.functional")
def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Windows of (N, C, H, W) as columns (N, C * taps, windows). Saves: nothing.

    Raises:
        ShapeError: no window fits, or the input has not 3 or 4 axes.
        DTypeError: integers.
    """
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: Expected 3D or 4D (batch mode) tensor, found {list(input.shape)}")
    if input.dtype.kind in "iu":
        raise DTypeError(f"unfold: expected a floating input, or bools, found {input.dtype}; convert with .float()")
    return _batched(ops.Unfold, input.ndim == 3, input, **_windows("unfold", kernel_size, stride, padding, dilation))


@public("nn.functional")
def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Add windows (N, C * taps, windows) into the image that :func:`unfold` would take them from. Saves: nothing.

    Raises:
        ShapeError: the windows are not those of an image of ``output_size``, or the input has not 2 or 3 axes.
        DTypeError: the input is not floating.
    """
    if input.ndim not in (2, 3):
        raise ShapeError(f"fold: Expected 2D or 3D (batch mode) tensor for input, found {list(input.shape)}")
    if not is_floating(input.dtype):
        raise DTypeError(f"fold: expected a floating input, found {input.dtype}")
    size = sizes_of("fold", "output_size", output_size, 2, 1)
    options = _windows("fold", kernel_size, stride, padding, dilation)
    return _batched(ops.Fold, input.ndim == 2, input, size=size, **options)
