"""The numbers of a program that are known without computing: counters, scales, and what is made of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_UNKNOWN = object()


class Numbers:
    """Follows tensors of one element whose value does not depend on data: ``torch.zeros(())``, ``step += 1``."""

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}  # by the storage's address in C++

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor on the CPU with the value of ``tensor``; ``None`` if it is not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        found = self._values.get(tensor.untyped_storage()._cdata) if tensor.numel() == 1 else None
        return tensor.constant if found is None or found.dtype != tensor.dtype else found.reshape(tensor.shape)

    def forget(self, storage: int) -> None:
        """The storage at this address has ended."""
        self._values.pop(storage, None)

    def follow(self, func: Any, args: tuple, kwargs: dict[str, Any], made: Any) -> None:
        """Note the value that an op made, or wrote, if all that it read is known."""
        writes = func._schema.is_mutable and args and isinstance(args[0], FakeTensor)
        target = args[0] if writes else made
        if not isinstance(target, FakeTensor) or target.untyped_storage().nbytes() != target.element_size():
            return
        key = target.untyped_storage()._cdata
        if not writes and key in self._values:
            return  # a view
        value = self._computed(func, args, kwargs)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value.reshape(())

    def _computed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
        real, named = [self._real(arg) for arg in args], {key: self._real(value) for key, value in kwargs.items()}
        random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name
        if random or func.namespace != "aten" or any(each is _UNKNOWN for each in (*real, *named.values())):
            return None
        if "device" in named:
            named["device"] = torch.device("cpu")
        with _disable_current_modes(), torch.no_grad():
            value = func(*real, **named)
        return value if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.value(value)
            return _UNKNOWN if known is None else known
        if isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
            return _UNKNOWN
        return value
