"""Activation layers: one function of ``nn.functional`` each."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..functional import creation
from . import functional as F
from . import init
from .layer import FunctionLayer
from .module import Module
from .parameter import Parameter

__all__ = (
    "CELU", "ELU", "GELU", "GLU", "SELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax",
    "Mish", "PReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "Threshold",
)  # fmt: skip


class Tanh(FunctionLayer, function=F.tanh):
    """tanh(x). Saves its result."""


class Sigmoid(FunctionLayer, function=F.sigmoid):
    """1 / (1 + exp(-x)). Saves its result."""


class LogSigmoid(FunctionLayer, function=F.logsigmoid):
    """log(sigmoid(x)). Saves its input."""


class Softsign(FunctionLayer, function=F.softsign):
    """x / (1 + abs(x)). Saves its input."""


class _InPlace(FunctionLayer):
    """The base of layers that may write over their input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, *[getattr(self, name) for name in self._shown], self.inplace)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return f"{text}, inplace=True".removeprefix(", ") if self.inplace else text


class ReLU(_InPlace, function=F.relu):
    """max(x, 0). With ``inplace=True`` the result is written over x.

    Memory: in place, one array of x's size less while forward runs. Backward needs the same either way: the result is saved.

    Price: none.

    Do not use when: x is needed elsewhere. If backward needs x, backward raises.
    """


class ReLU6(_InPlace, function=F.relu6):
    """x between 0 and 6. Saves its result."""


class SELU(_InPlace, function=F.selu):
    """The self-normalising exponential unit. Saves its input."""


class SiLU(_InPlace, function=F.silu):
    """x * sigmoid(x). Saves its input."""


class Mish(_InPlace, function=F.mish):
    """x * tanh(softplus(x)). Saves its input."""


class Hardsigmoid(_InPlace, function=F.hardsigmoid):
    """x / 6 + 1 / 2, between 0 and 1. Saves its result."""

    def extra_repr(self) -> str:
        return ""


class Hardswish(_InPlace, function=F.hardswish):
    """x * hardsigmoid(x). Saves its input."""

    def extra_repr(self) -> str:
        return ""


class LeakyReLU(_InPlace, function=F.leaky_relu):
    """x, or ``negative_slope * x`` below 0. Saves its result; with a slope of 0 or less, its input."""

    _shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope


class _Exponential(_InPlace):
    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha


class ELU(_Exponential, function=F.elu):
    """x, or ``alpha * (exp(x) - 1)`` below 0. Saves its input."""


class CELU(_Exponential, function=F.celu):
    """x, or ``alpha * (exp(x / alpha) - 1)`` below 0. Saves its input."""


class GELU(FunctionLayer, function=F.gelu):
    """x times the normal distribution function of x, exactly or with ``approximate="tanh"``. Saves its input."""

    _shown = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Softplus(FunctionLayer, function=F.softplus):
    """log(1 + exp(beta * x)) / beta. Saves its input."""

    _shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


class Hardtanh(_InPlace, function=F.hardtanh):
    """x between ``min_val`` and ``max_val``. Saves its result."""

    _shown = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if self.max_val <= self.min_val:
            raise ValueError(f"max_val must be larger than min_val, found {self.min_val} and {self.max_val}")


class Threshold(_InPlace, function=F.threshold):
    """x where it is above ``threshold``, else ``value``. Saves its input."""

    _shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value


class PReLU(Module):
    """x, or x times a learned slope below 0: one slope, or one per channel. Saves its input and the slopes."""

    _shown = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(creation.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the slopes to their first value."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)


class GLU(FunctionLayer, function=F.glu):
    """The first half of ``dim`` times the sigmoid of the second."""

    _shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class _OverDim(FunctionLayer):
    _shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class Softmax(_OverDim, function=F.softmax):
    """exp(x), divided by its sum over ``dim``. Saves its result."""


class LogSoftmax(_OverDim, function=F.log_softmax):
    """log(softmax(x)). Saves its result."""
