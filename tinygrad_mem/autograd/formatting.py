"""Printing of tensors, in PyTorch's layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import get_default_dtype, is_floating

_LINE, _EDGE, _MANY = 80, 3, 1000  # columns; items shown at each end of a tensor of more elements than many
_INDENT = len("tensor(")


def format_tensor(tensor: Any) -> str:
    """``tensor([[1., 2.]], device='cuda:0', requires_grad=True)``; on meta, the size instead of values."""
    shape = tuple(tensor.array.shape)
    tail = [f"device='{tensor.device}'"] if tensor.device.type != "cpu" else []
    plain = [get_default_dtype()] if not tensor.array.size else [get_default_dtype(), np.dtype(np.int64), np.dtype(np.bool_)]
    if tensor.is_meta:
        body, plain = "...", plain[:1]
    elif tensor.array.size == 0:
        body = "[]"
    else:
        body = _format_values(tensor._host())
    if tensor.is_meta or (tensor.array.size == 0 and tensor.ndim != 1):
        tail.append(f"size={shape}")
    if tensor.dtype not in plain:
        tail.append(f"dtype={tensor.dtype.name}")
    if tensor.grad_fn is not None:
        tail.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        tail.append("requires_grad=True")
    prefix = "Parameter containing:\n" if type(tensor).__name__ == "Parameter" else ""
    return prefix + _with_tail("tensor(" + body, tail) + ")"


def _with_tail(text: str, tail: list[str]) -> str:
    """``text`` with the suffixes after it; they go on a new line if the line would be too long."""
    length = len(text) - text.rfind("\n") + 1
    for each in tail:
        if length + len(each) + 2 > _LINE:
            text += ",\n" + " " * _INDENT + each
            length = _INDENT + len(each)
        else:
            text += ", " + each
            length += len(each) + 2
    return text


def _format_values(values: np.ndarray) -> str:
    short = values.size > _MANY
    shown = values
    for axis, size in enumerate(values.shape):
        if short and size > 2 * _EDGE:
            shown = np.take(shown, [*range(_EDGE), *range(size - _EDGE, size)], axis)
    form = _number_format(shown)
    width = 0
    if values.ndim:  # a single number is not padded
        wide = shown[np.isfinite(shown) & (shown != 0)] if is_floating(values.dtype) else shown
        width = max((len(form(v)) for v in wide.ravel().tolist()), default=1)
    return _format_axes(values, short, lambda v: form(v).rjust(width), width, _INDENT)


def _number_format(shown: np.ndarray) -> Callable[[Any], str]:
    """One format for all values: integers with a point, four decimals, or exponents if the sizes differ too much."""
    if not is_floating(shown.dtype):
        return str
    shown = shown.astype(np.float64)
    sizes = np.abs(shown[np.isfinite(shown) & (shown != 0)])
    if not sizes.size:
        return _integer
    low, high = float(sizes.min()), float(sizes.max())
    whole = bool((sizes == np.ceil(sizes)).all())
    if high / low > 1000.0 or high > 1.0e8 or (low < 1.0e-4 and not whole):
        return "{:.4e}".format
    return _integer if whole else "{:.4f}".format


def _integer(value: float) -> str:
    return f"{value:.0f}." if math.isfinite(value) else f"{value:.0f}"


def _format_axes(values: np.ndarray, short: bool, form: Callable[[Any], str], width: int, indent: int) -> str:
    if not values.ndim:
        return form(values.item())
    cut = short and len(values) > 2 * _EDGE
    parts = [values[:_EDGE], values[len(values) - _EDGE :]] if cut else [values]
    if values.ndim > 1:
        rows = [[_format_axes(row, short, form, width, indent + 1) for row in part] for part in parts]
        items = [*rows[0], "...", *rows[1]] if cut else rows[0]
        return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(items) + "]"
    numbers = [[form(v) for v in part.tolist()] for part in parts]
    items = [*numbers[0], " ...", *numbers[1]] if cut else numbers[0]
    per_line = max(1, (_LINE - indent) // (width + 2))
    lines = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
