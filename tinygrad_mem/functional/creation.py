"""Tensors from data, constants and ranges."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.grad_mode import no_grad
from ..autograd.known import REMEMBERED, remember
from ..autograd.tensor import Tensor
from ..autograd.unknown import has_unknown, stated
from ..devices import device as Device
from ..dtypes import borrowed
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from ..scope import local
from .convert import formatted, to
from .door import public
from .host import host_array, shared_on_gpu
from .shape import sizes_of

strided = Tensor.layout


def device_of(device: Any) -> Device:
    """The named device, or the default of this thread."""
    return Device(device if device is not None else local.default_device or "cpu")


@public("torch")
def set_default_device(device: Any) -> None:
    """Set the device of new tensors of this thread; ``None`` is the CPU."""
    local.default_device = None if device is None else Device(device)


@public("torch")
def get_default_device() -> Device:
    """The device of new tensors of this thread."""
    return device_of(None)


def _new(shape: tuple[int, ...], dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    if any(n < 0 for n in shape):
        raise ShapeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    where = device_of(device)
    out = Tensor._wrap(where.empty(shape, dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)), where)
    return _begun(out, requires_grad)


def _begun(out: Tensor, requires_grad: bool) -> Tensor:
    """A new tensor, marked with the modes that are on, such as inference mode."""
    if local.inference:
        out._inference = True
    if requires_grad:
        out.requires_grad = True
    return out


def _new_filled(value: Any, shape: tuple[int, ...], dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    value = dtypes.fitting(value, dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype))
    out = _new(shape, dtype, device, requires_grad)
    out.device.kernels.fill(value, out=out.array)
    if local.dry is not None and out.array.size <= REMEMBERED:
        remember(np.full(shape, value, out.array.dtype), out)
    return out


@public("torch")
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A copy of ``data`` (numbers, nested lists, arrays, tensors) on ``device``; Python floats become the default dtype.

    Args:
        data: arrays and tensors keep their dtypes; a list gets the dtype to which all its items are promoted.
        device: ``None`` means the default device if one was set, else that of ``data``, a tensor or an array, else the cpu.

    Raises:
        ValueError: ``data`` is ragged, has no numbers, or has numbers that an integer dtype cannot hold.
        DTypeError: its dtype is not offered.
    """
    data = shared_on_gpu(data)
    where = _device_for(data, device)
    if isinstance(data, Tensor) and where is data.device:
        return _begun(_copy_tensor(data, dtype), requires_grad)
    unknown = local.dry is not None and has_unknown(data)
    source = host_array(stated(data) if unknown else data, dtype)
    out = Tensor._wrap(where.empty(source.shape, source.dtype), where)
    where.upload(source, out.array)
    if not unknown:
        remember(source, out)
    return _begun(out, requires_grad)


def _device_for(data: Any, device: Any) -> Device:
    """The device for a tensor of ``data``: the given one, else the default if one was set, else that of ``data``."""
    stays = device is None and local.default_device is None and isinstance(data, Tensor)
    return data.device if stays else device_of(device)


def _copy_tensor(data: Tensor, dtype: Any) -> Tensor:
    known = data._constant()
    with no_grad():
        out = to(data, dtype=dtype, copy=True)
    if known is not None:
        remember(known.astype(out.dtype), out)
    return out


@public("torch")
def from_numpy(array: np.ndarray) -> Tensor:
    """A CPU tensor that shares the array's memory: a write to one changes the other.

    Raises:
        TypeError: not a NumPy array.
        DTypeError: its dtype is not offered.
        ValueError: it has negative strides, strides that are not multiples of the element size, or another byte order.
    """
    if not isinstance(array, np.ndarray):
        whose = type(array).__module__.partition(".")[0]
        raise ArgumentTypeError(f"expected np.ndarray (got {whose}.{type(array).__name__}); as_tensor takes other arrays too")
    return Tensor._wrap(borrowed(array), Device("cpu"))


@public("torch")
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ``data``, which shares its memory if dtype, byte order and device allow it, on a GPU too (CuPy's arrays)."""
    data = shared_on_gpu(data)
    if isinstance(data, Tensor):
        wanted = data if dtype is None else data.to(dtypes.as_dtype(dtype))
        return wanted.to(_device_for(data, device))
    if isinstance(data, np.ndarray) and data.dtype.isnative and (dtype is None or dtypes.as_dtype(dtype) == data.dtype):
        shared = from_numpy(data)
        return shared if device_of(device).kind == "cpu" else shared.to(device_of(device))
    return tensor(data, dtype=dtype, device=device)


@public("torch")
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor."""
    return tensor(value, dtype=dtype or dtypes.get_default_dtype(), device=device, requires_grad=requires_grad)


@public("torch")
def empty(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor of uninitialised memory."""
    formatted(memory_format)
    return _new(sizes_of(size), dtype, device, requires_grad)


@public("torch")
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _new_filled(0, sizes_of(size), dtype, device, requires_grad)


@public("torch")
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _new_filled(1, sizes_of(size), dtype, device, requires_grad)


@public("torch")
def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ``fill_value``, whose type decides the dtype. Raises: ArgumentError: a given dtype does not hold it."""
    return _new_filled(fill_value, sizes_of((size,)), dtype or _dtype_of(fill_value), device, requires_grad)


def _dtype_of(value: Any) -> np.dtype:
    if isinstance(value, Tensor):  # an integer for this purpose: only its kind matters
        return {"b": dtypes.bool, "i": dtypes.int64, "u": dtypes.int64}.get(value.dtype.kind, dtypes.get_default_dtype())
    if isinstance(value, bool):
        return dtypes.bool
    return dtypes.int64 if isinstance(value, (int, np.integer)) else dtypes.get_default_dtype()


def _like(input: Tensor, dtype: Any, device: Any) -> tuple[tuple[int, ...], Any, Any]:
    return tuple(input.array.shape), dtype or input.dtype, device or input.device


@public("torch")
def empty_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """A tensor of uninitialised memory, of ``input``'s shape."""
    formatted(memory_format)
    return _new(*_like(input, dtype, device), requires_grad)


@public("torch")
def zeros_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Zeros of ``input``'s shape."""
    return _new_filled(0, *_like(input, dtype, device), requires_grad)


@public("torch")
def ones_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Ones of ``input``'s shape."""
    return _new_filled(1, *_like(input, dtype, device), requires_grad)


@public("torch")
def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A tensor of ``input``'s shape, filled with ``fill_value``."""
    return _new_filled(fill_value, *_like(input, dtype, device), requires_grad)


@public("Tensor")
def new_empty(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of uninitialised memory, of ``input``'s dtype and device."""
    return _new(sizes_of(size), dtype or input.dtype, device or input.device, requires_grad)


@public("Tensor")
def new_zeros(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of ``input``'s dtype and device."""
    return _new_filled(0, sizes_of(size), dtype or input.dtype, device or input.device, requires_grad)


@public("Tensor")
def new_ones(input: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of ``input``'s dtype and device."""
    return _new_filled(1, sizes_of(size), dtype or input.dtype, device or input.device, requires_grad)


@public("Tensor")
def new_full(
    input: Tensor, size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ``input``'s dtype and device, filled with ``fill_value``."""
    return _new_filled(fill_value, sizes_of((size,)), dtype or input.dtype, device or input.device, requires_grad)


@public("Tensor")
def new_tensor(input: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A copy of ``data``, of ``input``'s dtype and device."""
    return tensor(data, dtype=dtype or input.dtype, device=device or input.device, requires_grad=requires_grad)


@public("torch")
def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``start``, ``start + step``, ... below ``end``; int64 where all are integers.

    In an integer dtype the numbers are made from the integer parts of ``start`` and ``step``. How many there are follows from
    the numbers as they are given; for int64 from their integer parts, as in PyTorch.

    Raises:
        DTypeError: the dtype is bool.
        ValueError: the step is 0 or leads away from the end.
    """
    first, last = (0, start) if end is None else (start, end)
    first, last, step = (x.item() if isinstance(x, Tensor) else x for x in (first, last, step))
    whole = all(isinstance(x, (int, np.integer)) for x in (first, last, step))
    kind = dtypes.as_dtype(dtype) if dtype is not None else dtypes.int64 if whole else dtypes.get_default_dtype()
    _want_numbers("arange", kind)
    first, last, step = _numbers(kind if kind == dtypes.int64 else dtypes.float64, first, last, step)
    if step == 0:
        raise ArgumentError("step must be nonzero")
    if (last - first) * step < 0:
        raise ArgumentError(f"upper bound and lower bound inconsistent with step sign: {first} to {last} by {step}")
    count = math.ceil((last - first) / step)
    first, step = _numbers(kind, first, step)
    return tensor((first + step * np.arange(count)).astype(kind), device=device, requires_grad=requires_grad)


def _want_numbers(name: str, kind: np.dtype) -> None:
    if kind == dtypes.bool:
        raise DTypeError(f"{name}(): not implemented for bool; compare the numbers, as in torch.arange(3) > 0")


def _numbers(dtype: np.dtype, *values: Any) -> tuple:
    """The numbers; for an integer dtype their integer parts, as in PyTorch."""
    return tuple(map(int, values)) if dtype.kind in "iu" else values


@public("torch")
def linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``steps`` numbers from ``start`` to ``end``, both included; an integer dtype gets their integer parts.

    Raises:
        DTypeError: the dtype is bool.
        ArgumentError: a number that the dtype cannot hold, or a negative ``steps``.
    """
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    _want_numbers("linspace", kind)
    if not hasattr(steps, "__index__"):
        raise ArgumentTypeError(f"argument 'steps' must be int, not {type(steps).__name__}")
    if steps < 0:
        raise ArgumentError(f"number of steps must be non-negative, found {steps}")
    first, last = (dtypes.fitting(number.item() if isinstance(number, Tensor) else number, kind) for number in (start, end))
    count = np.arange(steps)
    with np.errstate(invalid="ignore"):  # inf * 0
        step = (last - first) / (steps - 1) if steps > 1 else 0.0
        middle = max(steps // 2, 1)  # each from the nearer end
        numbers = np.where(count < middle, first + step * count, last - step * (steps - 1 - count))
    return tensor(numbers, dtype=kind, device=device, requires_grad=requires_grad)


@public("torch")
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """1 on the diagonal, 0 elsewhere."""
    return tensor(np.eye(n, m), dtype=dtype or dtypes.get_default_dtype(), device=device, requires_grad=requires_grad)


def _want_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if operator.index(size) < 0:
            raise ShapeError(f"{name} must be non-negative, got {size}")


@public("torch")
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the lower triangle, int64 unless another dtype is given, shape (2, n)."""
    _want_sizes(row=row, col=col)
    return tensor(np.stack(np.tril_indices(row, offset, col)), dtype=dtype or dtypes.int64, device=device)


@public("torch")
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the upper triangle, int64 unless another dtype is given, shape (2, n)."""
    _want_sizes(row=row, col=col)
    return tensor(np.stack(np.triu_indices(row, offset, col)), dtype=dtype or dtypes.int64, device=device)


@public("torch")
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid: every tensor expanded along the axes of the others.

    Raises:
        ValueError: ``indexing`` is neither ``"ij"`` nor ``"xy"``.
        ShapeError: a tensor has two dimensions or more.
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    axes = list(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else list(tensors)
    for index, x in enumerate(axes):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"meshgrid: expected a tensor as element {index}, but got {type(x).__name__}")
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: Expected 0D or 1D tensor in the tensor list but found {list(x.shape)}")
        if x.dtype != axes[0].dtype:
            raise DTypeError(f"meshgrid: expects all tensors to have the same dtype, found {axes[0].dtype} and {x.dtype}")
    swap = indexing == "xy" and len(axes) > 1
    if swap:
        axes[0], axes[1] = axes[1], axes[0]
    shape = [x.numel() for x in axes]
    grids = [x.reshape([-1 if i == j else 1 for j in range(len(axes))]).expand(*shape) for i, x in enumerate(axes)]
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@public("torch")
def is_tensor(value: Any) -> bool:
    """True if the object is a tensor."""
    return isinstance(value, Tensor)


@public("torch")
def is_floating_point(input: Tensor) -> bool:
    """True if the dtype is floating."""
    return input.is_floating_point()


@public("torch")
def is_complex(input: Tensor) -> bool:
    """Complex dtypes are not offered: always False."""
    return input.is_complex()


@public("torch")
def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()
