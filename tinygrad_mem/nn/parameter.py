"""``Parameter`` and ``Buffer``: tensors that a module registers when they are assigned to it."""

from __future__ import annotations

from typing import Any

from .. import scope
from ..autograd.tensor import Tensor
from ..functional import creation

__all__ = ("Buffer", "Parameter")


def _check_data(name: str, data: Any) -> Tensor:
    if data is None:
        return creation.empty(0)
    if not isinstance(data, Tensor):
        raise TypeError(f"{name}: expected a Tensor, found {type(data).__name__}; make one with tensor()")
    return data


class Parameter(Tensor):
    """A leaf with ``data``'s memory that requires a gradient. A module registers it when it is assigned.

    Args:
        data: the values; by default an empty tensor.
        requires_grad: whether backward computes its gradient.
    """

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        data = _check_data("Parameter", data)
        self.array, self.device, self._storage = data.array, data.device, data.storage
        if requires_grad:
            self.requires_grad = True
        scope.report_role(self.array, "PARAMETER", self)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        copy = self._deepcopy(memo)  # without the gradient, as in PyTorch
        scope.report_role(copy.array, "PARAMETER", copy)
        return copy


class _IsBuffer(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and getattr(instance, "_is_buffer", False)


class Buffer(Tensor, metaclass=_IsBuffer):
    """A tensor with ``data``'s memory. A module registers it as a buffer when it is assigned.

    Args:
        data: the values; by default an empty tensor.
        persistent: whether it is part of the module's state dict.
    """

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        data = _check_data("Buffer", data)
        made: Any = data.detach().requires_grad_(data.requires_grad)
        made.persistent, made._is_buffer = persistent, True
        return made
