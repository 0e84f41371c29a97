"""The numbers of a program that are known without computing: counters, scales, and what is made of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import DataDependenceError

aten = torch.ops.aten
_UNKNOWN = object()
_COUNTING = {aten._foreach_add_.Scalar, aten._foreach_add_.Tensor}


class KnownNumbers:
    """Follows tensors of one element whose value does not depend on data: ``torch.zeros(())``, ``step += 1``."""

    def __init__(self) -> None:
        self._values: dict[int, torch.Tensor] = {}  # by the storage's address in C++

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor on the CPU with the value of ``tensor``; ``None`` if it is not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        found = self._values.get(tensor.untyped_storage()._cdata) if tensor.numel() == 1 else None
        return tensor.constant if found is None or found.dtype != tensor.dtype else found

    def number(self, tensor: torch.Tensor) -> Any:
        """The number that an op reads from ``tensor``: one on the host, where C++ wants a plain one.

        Raises:
            DataDependenceError: it is not known.
        """
        known = self.value(tensor)
        if known is None:
            raise DataDependenceError(
                "a tensor is used as a plain number, such as a size, a bound or a scale, and its value is not known in a "
                "prediction. Give it a fixed number"
            )
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return known.item()

    def know(self, tensor: FakeTensor, real: torch.Tensor) -> None:
        """Note that ``tensor`` has the value of ``real``, if that is one number."""
        if real.numel() == 1 and real.untyped_storage().nbytes() == real.element_size() and real.device.type == "cpu":
            with _disable_current_modes(), torch.no_grad():
                self._values[tensor.untyped_storage()._cdata] = real.clone().reshape(())

    def forget(self, storage: int) -> None:
        """The storage at this address has ended."""
        self._values.pop(storage, None)

    def written(self, tensor: Any) -> None:
        """Random numbers, or what an op writes that is not computed here, are unknown."""
        if isinstance(tensor, FakeTensor):
            self.forget(tensor.untyped_storage()._cdata)
            tensor.constant = None

    def before(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The value of an op's result, if it reads known numbers alone; asked before the op, which may write to one."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if tensors and tensors[0].numel() == 1:  # most calls end here
            return self._computed(func, args, kwargs)
        return None

    def after(self, func: Any, args: tuple, kwargs: dict[str, Any], made: Any, value: torch.Tensor | None) -> None:
        """Note the value that an op made, or wrote; ``value`` is what :meth:`before` said."""
        writes = func._schema.is_mutable and args and isinstance(args[0], FakeTensor)
        if func._schema.is_mutable:
            if func in _COUNTING and self._count(*args[:2]):
                return
            self._forget_written(func, args, kwargs)
        target = args[0] if writes else made
        if not isinstance(target, FakeTensor) or target.untyped_storage().nbytes() != target.element_size():
            return
        key = target.untyped_storage()._cdata
        if not writes and key in self._values:
            return  # a view
        if value is None and not any(isinstance(arg, torch.Tensor) for arg in args):
            value = self._computed(func, args, kwargs)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def _count(self, tensors: Any, number: Any) -> bool:
        """Add a known number to each of a list of known ones: the steps of an optimizer. False: they are not known."""
        known = [self.value(each) if each.numel() == 1 else None for each in tensors]
        if any(each is None for each in known):
            return False
        with _disable_current_modes(), torch.no_grad():
            added: Any = self._real(number)
            if added is _UNKNOWN:
                return False
            for tensor, value in zip(tensors, known, strict=True):
                if value is not None:
                    self._values[tensor.untyped_storage()._cdata] = (value + added).to(value.dtype).reshape(())
        return True

    def _forget_written(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """Forget the numbers that an op writes beside its first argument, or in lists: they are not computed here."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in given if isinstance(given, (list, tuple)) else [given]:
                if place or given is not tensor:
                    self.written(tensor)

    def _computed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name:
            return None
        if not all(map(self._is_known, (*args, *kwargs.values()))):
            return None
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        with _disable_current_modes(), torch.no_grad():
            real, named = [self._real(arg) for arg in args], {key: self._real(value) for key, value in kwargs.items()}
            if any(each is _UNKNOWN for each in (*real, *named.values())):
                return None
            value = func(*real, **named)
            return value.reshape(()) if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    def _is_known(self, value: Any) -> bool:
        """False where :meth:`_real` would say that it is not known; most calls end here."""
        if isinstance(value, torch.Tensor):
            return value.numel() == 1 and self.value(value) is not None
        return not isinstance(value, (list, tuple)) or not any(isinstance(each, torch.Tensor) for each in value)

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.value(value)  # copied: an op may write to it
            return _UNKNOWN if known is None or known.numel() != 1 else known.reshape(value.shape).clone()
        if isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
            return _UNKNOWN
        return value
