"""Questions of programs about the memory of a tensor: where it begins, if it is pinned, and what a copy of it would be."""

from __future__ import annotations

from collections.abc import Callable
from functools import total_ordering
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import NotOfferedError
from .reading import handles
from .watch import Watch

Tensor = torch.Tensor

# --- addresses ------------------------------------------------------------------------------------------------------------


@total_ordering
class Address:
    """An address in the memory of a prediction. Programs compare addresses to find out which tensors share memory.

    It is not an ``int``: no C code can read from it.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __eq__(self, other: object) -> bool:
        return self._number == _number(other)

    def __lt__(self, other: Any) -> bool:
        return self._number < _number(other)

    def __hash__(self) -> int:
        return hash(self._number)

    def __bool__(self) -> bool:
        return self._number != 0

    def __add__(self, size: int) -> Address:
        return Address(self._number + size)

    def __sub__(self, other: Any) -> Any:
        return self._number - other._number if isinstance(other, Address) else Address(self._number - other)

    def __mod__(self, size: int) -> int:
        return self._number % size

    def __repr__(self) -> str:
        return repr(self._number)

    def __format__(self, spec: str) -> str:
        return format(self._number, spec)

    def __index__(self) -> int:
        raise NotOfferedError("data_ptr() in a prediction only tells which tensors share memory: nothing can be read there")


def _number(value: Any) -> Any:
    return value._number if isinstance(value, Address) else value


@handles(Tensor.data_ptr)
def _address(watch: Watch, tensor: Tensor) -> Any:
    """The address of a tensor; PyTorch's is 0 for each tensor of a prediction."""
    local = watch.local(tensor)
    if not isinstance(local, FakeTensor):
        return tensor.data_ptr()
    begin = watch.address(local.untyped_storage()) if local.numel() else 0
    return Address(begin + int(local.storage_offset()) * local.element_size() if begin else 0)


def begin(watch: Watch, own: Callable[[Any], int], storage: torch.UntypedStorage) -> Any:
    """``UntypedStorage.data_ptr``. Storages of a prediction are on ``meta``."""
    return Address(watch.address(storage)) if storage.device.type == "meta" else own(storage)


# --- pinned memory --------------------------------------------------------------------------------------------------------


@handles(Tensor.pin_memory)
def _pinned(watch: Watch, tensor: Tensor, device: Any = None) -> Tensor:
    """The tensor in pinned memory; one of a loader's batch keeps its values where it is."""
    return tensor if _is_pinned(watch, tensor) else pin(tensor.clone() if isinstance(tensor, FakeTensor) else tensor)


@handles(Tensor.share_memory_)
def _shared(watch: Watch, tensor: Tensor) -> Tensor:
    """``share_memory_`` does nothing for a tensor of the GPU. On the CPU PyTorch copies it to memory of the system."""
    if not isinstance(watch.local(tensor), FakeTensor):
        return tensor.share_memory_()
    if watch.device.type == tensor.device.type == "cpu":
        raise NotOfferedError(
            "share_memory_() moves a tensor to memory that PyTorch's CPU allocator does not count. Leave it out of what is "
            "predicted"
        )
    return tensor


def pin(tensor: Tensor) -> Tensor:
    """Note that the memory of ``tensor`` is pinned, as programs may ask."""
    tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return tensor


@handles(Tensor.is_pinned)
def _is_pinned(watch: Watch, tensor: Tensor, device: Any = None) -> bool:
    return getattr(tensor.untyped_storage(), "pinned", False)


# --- copies ---------------------------------------------------------------------------------------------------------------


@handles(Tensor.__reduce_ex__)
def _reduced(watch: Watch, tensor: Tensor, protocol: int) -> Any:
    """The parts of which ``copy.copy`` makes a tensor. ``pickle`` asks for the same, and is refused when it looks inside."""
    if not isinstance(watch.local(tensor), FakeTensor):
        return tensor.__reduce_ex__(protocol)
    return _shallow, (_WithoutValues(tensor),)


class _WithoutValues:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        raise NotOfferedError(
            "pickle writes the values of a tensor, which a prediction does not have. Use torch.save and torch.load, which do "
            "without, or leave it out of what is predicted"
        )


def _shallow(given: _WithoutValues) -> Tensor:
    tensor, made = given.tensor, given.tensor.detach()
    trained = tensor.requires_grad
    return torch.nn.Parameter(made, trained) if isinstance(tensor, torch.nn.Parameter) else made.requires_grad_(trained)
