"""A parameter: a leaf tensor that a module registers when it is assigned to it."""

from __future__ import annotations

from typing import Any

from .. import scope
from ..autograd.tensor import Tensor
from ..functional import creation


class Parameter(Tensor):
    """``data``'s memory as a leaf that requires a gradient; assigned to a module, it is one of its parameters.

    Args:
        data: the values; none makes an empty tensor.
        requires_grad: whether backward leaves a gradient here.
    """

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            data = creation.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(f"Parameter: expected a Tensor, found {type(data).__name__}; make one with tensor()")
        self.array, self.device, self._storage = data.array, data.device, data.storage
        if requires_grad:
            self.requires_grad = True
        report_role(self, "PARAMETER")

    def __deepcopy__(self, memo: dict) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        copy = self._deepcopy(memo)  # without the gradient, as in PyTorch
        report_role(copy, "PARAMETER")
        return copy


class _IsBuffer(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and getattr(instance, "_is_buffer", False)


class Buffer(Tensor, metaclass=_IsBuffer):
    """``data``'s memory as a tensor that a module registers as a buffer when it is assigned to it.

    Args:
        data: the values; none makes an empty tensor.
        persistent: whether it is part of the module's state dict.
    """

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        if data is None:
            data = creation.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(f"Buffer: expected a Tensor, found {type(data).__name__}; make one with tensor()")
        made: Any = data.detach().requires_grad_(data.requires_grad)
        made.persistent, made._is_buffer = persistent, True
        return made


def report_role(tensor: Tensor, role: str) -> None:
    """Tell listeners what the tensor's memory is for."""
    for listener in scope.listeners:
        listener.role(tensor.array, role, tensor)


def report_role_ended(tensor: Tensor | None, role: str) -> None:
    """Tell listeners that the tensor is that no longer, whoever may keep it."""
    for listener in scope.listeners if tensor is not None else ():
        listener.role(None, role, tensor)
