"""A base for families of layers, and sizes given as one number or as one per dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..autograd.tensor import Tensor
from .module import Module


class FunctionLayer(Module):
    """The base of layers around one function, which most call with the input and the attributes in ``_shown``.

    A class names it, and the dimensions, in its head: ``class Tanh(FunctionLayer, function=F.tanh)``.
    """

    function: Any
    dimensions: Any

    def __init_subclass__(cls, *, function: Any = None, dimensions: Any = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if function is not None:
            cls.function = staticmethod(function)
        if dimensions is not None:
            cls.dimensions = dimensions

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, *[getattr(self, name) for name in self._shown])


def ntuple(value: Any, n: int) -> tuple:
    """``value`` as a tuple of n numbers: a single number is repeated."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,) * n
