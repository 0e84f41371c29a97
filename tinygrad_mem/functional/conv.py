"""Convolutions and their transposes, with the names and arguments of ``torch.nn.functional``.

Each takes a batch (N, C, *spatial) or one unbatched (C, *spatial) input. Saves: the input if the weight needs a gradient,
the weight if the input does. Workspace: about 2 MiB while a kernel runs, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..dtypes import is_floating
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops import conv as ops
from . import shape

Sizes = int | Sequence[int]


def _sizes(name: str, what: str, value: Any, count: int, least: int) -> tuple[int, ...]:
    """``value`` for each of ``count`` axes; raises unless all are at least ``least``."""
    if isinstance(value, int):
        sizes = (value,) * count
    else:
        sizes = tuple(int(v) for v in value)
        if len(sizes) == 1:
            sizes *= count
    if len(sizes) != count:
        raise ShapeError(f"{name}: expected {what} to be one integer or {count}, found {value!r}")
    if min(sizes) < least:
        bound = "negative values are" if least == 0 else "zero or negative values are"
        raise ShapeError(f"{name}: {what} {value!r}: {bound} not supported")
    return sizes


def _check(name: str, axes: int, input: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether the input is unbatched; raises where the number of axes is wrong."""
    if weight.ndim != axes + 2:
        raise ShapeError(f"{name}: expected a {axes + 2}D weight, found {list(weight.shape)}")
    if input.ndim not in (axes + 1, axes + 2):
        raise ShapeError(
            f"Expected {axes + 1}D (unbatched) or {axes + 2}D (batched) input to {name}, but got input of size: "
            f"{list(input.shape)}"
        )
    if groups < 1:
        raise ShapeError(f"{name}: non-positive groups is not supported, found {groups}")
    return input.ndim == axes + 1


def _padding(name: str, padding: Any, axes: int, weight: Tensor, stride: tuple, dilation: tuple) -> tuple:
    """(before, behind) for each axis; "same" puts the odd one behind, as PyTorch does."""
    if not isinstance(padding, str):
        return tuple((p, p) for p in _sizes(name, "padding", padding, axes, 0))
    if padding == "valid":
        return ((0, 0),) * axes
    if padding != "same":
        raise ArgumentError(f"{name}: Invalid padding string {padding!r}, should be one of 'valid', 'same', or integers")
    if any(s != 1 for s in stride):
        raise ArgumentError(f"{name}: padding='same' is not supported for strided convolutions, found stride {stride}")
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


_LETTERS = {1: ("L", "K"), 2: ("H, W", "K, L"), 3: ("D, H, W", "J, K, L")}


def _conv(axes: int) -> Any:
    name = f"conv{axes}d"

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: str | Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Tensor:
        unbatched = _check(name, axes, input, weight, groups)
        stride = _sizes(name, "stride", stride, axes, 1)
        dilation = _sizes(name, "dilation", dilation, axes, 1)
        pads = _padding(name, padding, axes, weight, stride, dilation)
        x = shape.unsqueeze(input, 0) if unbatched else input
        y = apply(ops.Conv, x, weight, bias, stride=stride, padding=pads, dilation=dilation, groups=groups)
        return shape.squeeze(y, 0) if unbatched else y

    conv.__name__ = conv.__qualname__ = name
    space, taps = _LETTERS[axes]
    conv.__doc__ = f"""Cross-correlation of (N, C, {space}) with (O, C / groups, {taps}); ``padding`` may be "same" or "valid".

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError: channels, groups, bias or sizes do not fit.
        DTypeError: the dtypes differ, or are not floating.
    """
    return conv


conv1d, conv2d, conv3d = _conv(1), _conv(2), _conv(3)


def _conv_transpose(axes: int) -> Any:
    name = f"conv_transpose{axes}d"

    def conv_transpose(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Tensor:
        unbatched = _check(name, axes, input, weight, groups)
        options: dict[str, Any] = {
            "stride": _sizes(name, "stride", stride, axes, 1),
            "padding": _sizes(name, "padding", padding, axes, 0),
            "output_padding": _sizes(name, "output_padding", output_padding, axes, 0),
            "dilation": _sizes(name, "dilation", dilation, axes, 1),
        }
        for e, s, d in zip(options["output_padding"], options["stride"], options["dilation"], strict=True):
            if e >= s and e >= d:
                raise ShapeError(
                    f"{name}: output padding must be smaller than either stride or dilation, but got output_padding {e}, "
                    f"stride {s}, dilation {d}"
                )
        x = shape.unsqueeze(input, 0) if unbatched else input
        y = apply(ops.ConvTranspose, x, weight, bias, groups=groups, **options)
        return shape.squeeze(y, 0) if unbatched else y

    conv_transpose.__name__ = conv_transpose.__qualname__ = name
    space, taps = _LETTERS[axes]
    conv_transpose.__doc__ = f"""The gradient of :func:`conv{axes}d` as a function: (N, C, {space}), (C, O / groups, {taps}).

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError: channels, groups, bias, output_padding or sizes do not fit.
        DTypeError: the dtypes differ, or are not floating.
    """
    return conv_transpose


conv_transpose1d, conv_transpose2d, conv_transpose3d = _conv_transpose(1), _conv_transpose(2), _conv_transpose(3)


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Windows of (N, C, H, W) as columns (N, C * taps, windows). Saves: nothing.

    Raises:
        ShapeError: no window fits, or the input has not 3 or 4 axes.
    """
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: Expected 3D or 4D (batch mode) tensor, found {list(input.shape)}")
    options = {
        "kernel": _sizes("unfold", "kernel_size", kernel_size, 2, 1),
        "stride": _sizes("unfold", "stride", stride, 2, 1),
        "padding": _sizes("unfold", "padding", padding, 2, 0),
        "dilation": _sizes("unfold", "dilation", dilation, 2, 1),
    }
    y = apply(ops.Unfold, shape.unsqueeze(input, 0) if input.ndim == 3 else input, **options)
    return shape.squeeze(y, 0) if input.ndim == 3 else y


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The sum of windows (N, C * taps, windows) where :func:`unfold` would take them from. Saves: nothing.

    Raises:
        ShapeError: the windows are not those of an image of ``output_size``, or the input has not 2 or 3 axes.
        DTypeError: the input is not floating.
    """
    if input.ndim not in (2, 3):
        raise ShapeError(f"fold: Expected 2D or 3D (batch mode) tensor for input, found {list(input.shape)}")
    if not is_floating(input.dtype):
        raise DTypeError(f"fold: expected a floating input, found {input.dtype}")
    options = {
        "size": _sizes("fold", "output_size", output_size, 2, 1),
        "kernel": _sizes("fold", "kernel_size", kernel_size, 2, 1),
        "stride": _sizes("fold", "stride", stride, 2, 1),
        "padding": _sizes("fold", "padding", padding, 2, 0),
        "dilation": _sizes("fold", "dilation", dilation, 2, 1),
    }
    y = apply(ops.Fold, shape.unsqueeze(input, 0) if input.ndim == 2 else input, **options)
    return shape.squeeze(y, 0) if input.ndim == 2 else y
