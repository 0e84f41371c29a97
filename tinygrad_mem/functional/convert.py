"""Copies, casts and moves between devices. All are differentiable; gradients have the source's dtype and device."""

from __future__ import annotations

import builtins
from typing import Any

from .. import dtypes
from ..absent import say_once
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import refuse_outside
from ..errors import ArgumentTypeError
from ..ops import convert as ops
from ..scope import local
from .door import public

preserve_format, contiguous_format = "preserve_format", "contiguous_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"
"""Values of ``memory_format``. It is accepted everywhere and changes nothing: new tensors are contiguous in any case."""


def formatted(memory_format: Any) -> None:
    """Warn once that ``channels_last`` changes nothing. Raises: ArgumentTypeError: it is not a memory format."""
    if memory_format in (channels_last, channels_last_3d):
        said = "memory_format=channels_last changes nothing: arrays keep channels first, and use the same bytes"
        say_once("channels_last", said)
    elif memory_format not in (None, preserve_format, contiguous_format):
        raise ArgumentTypeError(f"memory_format: expected contiguous_format or channels_last, found {memory_format!r}")


@public("torch")
def detach(input: Tensor) -> Tensor:
    """``input.detach()``: the same memory, cut off the tape. Saves nothing."""
    return input.detach()


@public("Tensor")
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """The tensor itself: memory of the host is not pinned, as copies between devices are waited for. Saves nothing."""
    return input


@public("Tensor")
def is_pinned(input: Tensor, device: Any = None) -> builtins.bool:
    """Return False: memory of the host is not pinned."""
    return False


@public("Tensor")
def to_dense(input: Tensor, dtype: Any = None) -> Tensor:
    """The tensor itself, or in another dtype. Saves nothing."""
    return input if dtype is None else to(input, dtype)


@public("Tensor")
def to(
    input: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: builtins.bool = False,
    copy: builtins.bool = False,
    memory_format: Any = None,
) -> Tensor:
    """``input`` with another dtype, on another device, or like another tensor; itself if nothing changes.

    A floating number that an integer dtype does not hold becomes any number, as in PyTorch: on a GPU another than on the CPU.

    Args:
        args: a dtype, a device, a device and a dtype, or a tensor; then ``non_blocking`` and ``copy``.
        copy: make a copy even if nothing changes.
        memory_format: changes nothing; ``channels_last`` warns once that it does not.
    """
    if memory_format is not None:
        formatted(memory_format)
    flags = [arg for arg in args if isinstance(arg, builtins.bool)]  # non_blocking, and copy
    copy = flags[1] if len(flags) > 1 else copy
    for arg in args:
        if isinstance(arg, Tensor):
            dtype, device = arg.dtype, arg.device
        elif isinstance(arg, Device) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda", "meta")):
            device = arg
        elif arg is not None and not isinstance(arg, builtins.bool):
            dtype = arg
    result = input
    where = input.device if device is None else Device(device)
    if dtype is not None and dtypes.as_dtype(dtype) != input.dtype:
        result = apply(ops.Cast, result, dtype=dtypes.as_dtype(dtype))
    if where is not input.device:
        if where is local.dry:
            if input.device is Device("meta"):
                input.device.download(input.array, input.array)  # refuses it, as in the run: there are no values
            refuse_outside(input.device, "to")
        result = _move(result, where)
    return clone(result) if copy and result is input else result


def _move(input: Tensor, where: Device) -> Tensor:
    moved = apply(ops.Transfer, input, to=where)
    moved.device = where
    if moved._node is not None:  # gradients arrive there
        moved._node.device, moved._node.kernels = where, where.kernels
    return moved


@public("torch", "Tensor")
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A contiguous copy. Saves nothing."""
    if memory_format is not None:
        formatted(memory_format)
    return apply(ops.Clone, input)


@public("Tensor")
def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if it is contiguous, else a copy."""
    if memory_format is not None:
        formatted(memory_format)
    return input if input.is_contiguous() else apply(ops.Clone, input)


@public("Tensor")
def copy_(input: Tensor, src: Tensor, non_blocking: builtins.bool = False) -> Tensor:
    """Write ``src``, broadcast and cast, into the tensor; from any device."""
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"copy_(): argument 'other' must be Tensor, not {type(src).__name__}")
    return apply_(ops.Copy, input, to(src, device=input.device))


@public("Tensor")
def cpu(input: Tensor) -> Tensor:
    """Move to the CPU."""
    return to(input, device="cpu")


@public("Tensor")
def cuda(input: Tensor, device: Any = None, non_blocking: builtins.bool = False) -> Tensor:
    """Move to a GPU, by default the first."""
    return to(input, device="cuda" if device is None else f"cuda:{device}" if isinstance(device, builtins.int) else device)


@public("Tensor")
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """Cast to another tensor's dtype and move to its device."""
    return to(input, other)


LETTERS = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
LETTERS |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}
"""The first part of the legacy types' names, such as ``FloatTensor``, and their dtypes."""


@public("Tensor")
def type(input: Tensor, dtype: Any = None) -> Any:
    """Cast to ``dtype``; without one, return the name of the legacy type, such as ``torch.FloatTensor``."""
    if dtype is None:
        names = {dtypes.as_dtype(v): k for k, v in LETTERS.items()}
        return f"tinygrad_mem.{names.get(input.dtype, input.dtype.name)}Tensor"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")  # FloatTensor, or its name
    letters = name.rpartition(".")[2].removesuffix("Tensor")
    if not name.endswith("Tensor") or letters not in LETTERS:
        return to(input, dtype=dtype)
    kind = getattr(dtype, "kind", "cuda" if ".cuda." in name else "cpu")
    return to(input, dtype=LETTERS[letters], device=None if input.device.type == kind else kind)


@public("Tensor")
def half(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to float16."""
    return to(input, dtype=dtypes.float16, memory_format=memory_format)


@public("Tensor")
def bfloat16(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to bfloat16."""
    return to(input, dtype=dtypes.bfloat16, memory_format=memory_format)


@public("Tensor")
def float(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to float32."""
    return to(input, dtype=dtypes.float32, memory_format=memory_format)


@public("Tensor")
def double(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to float64."""
    return to(input, dtype=dtypes.float64, memory_format=memory_format)


@public("Tensor")
def long(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to int64."""
    return to(input, dtype=dtypes.int64, memory_format=memory_format)


@public("Tensor")
def int(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to int32."""
    return to(input, dtype=dtypes.int32, memory_format=memory_format)


@public("Tensor")
def short(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to int16."""
    return to(input, dtype=dtypes.int16, memory_format=memory_format)


@public("Tensor")
def char(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to int8."""
    return to(input, dtype=dtypes.int8, memory_format=memory_format)


@public("Tensor")
def byte(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to uint8."""
    return to(input, dtype=dtypes.uint8, memory_format=memory_format)


@public("Tensor")
def bool(input: Tensor, memory_format: Any = None) -> Tensor:
    """Cast to bool."""
    return to(input, dtype=dtypes.bool, memory_format=memory_format)
