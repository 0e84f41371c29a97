"""Activations, with the names and arguments of ``torch.nn.functional``. Each saves one array for backward."""

from __future__ import annotations

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops import activation as ops
from ..ops.base import refuse_bools, want_floating, want_real
from . import elementwise, unary
from .door import FLOAT32, LOWER, public
from .shape import chunk


@public("torch", "nn.functional", "Tensor")
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(input, 0)``. Saves: the output, which the next layer usually keeps anyway."""
    return apply_(ops.ReLU, input) if inplace else apply(ops.ReLU, input)


@public("torch", "nn.functional", "Tensor")
def relu_(input: Tensor) -> Tensor:
    """In-place :func:`relu`: no new array; the output is saved as before."""
    return apply_(ops.ReLU, input)


@public("nn.functional")
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input, 0), 6)``. Saves: the output."""
    return hardtanh(input, 0.0, 6.0, inplace)


@public("nn.functional")
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``negative_slope * input``. Saves: the output; the input if the slope is not positive."""
    want_real("leaky_relu", True, negative_slope=negative_slope)
    return (apply_ if inplace else apply)(ops.LeakyReLU, input, slope=float(negative_slope))


@public("nn.functional", "Tensor")
def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return leaky_relu(input, negative_slope, True)


@public("nn.functional")
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (e**input - 1)``. Saves: the input."""
    want_real("elu", True, alpha=alpha)
    return (apply_ if inplace else apply)(ops.ELU, input, alpha=float(alpha), scale=1.0, inner=1.0)


@public("nn.functional")
def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(input, alpha, True)


@public("torch", "nn.functional")
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising ELU (Klambauer et al., 2017). Saves: the input."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return (apply_ if inplace else apply)(ops.ELU, input, alpha=alpha, scale=scale, inner=1.0)


@public("torch", "nn.functional")
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (e**(input / alpha) - 1)``. Saves: the input. Raises: ValueError: alpha is 0."""
    want_real("celu", True, alpha=alpha)
    if abs(alpha) < dtypes.finfo(dtypes.arithmetic(input.dtype)).tiny:
        raise ArgumentError(f"celu: alpha cannot be {alpha}, the input is divided by it: use relu, which is its limit at 0")
    return (apply_ if inplace else apply)(ops.ELU, input, alpha=float(alpha), scale=1.0, inner=1.0 / alpha)


@public("nn.functional")
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``input * Phi(input)``, exactly or by the tanh formula. Saves: the input.

    Raises:
        ValueError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate argument must be either none or tanh, found {approximate!r}")
    return apply(ops.GELU, input, tanh=approximate == "tanh")


@public("nn.functional")
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)``. Saves: the input."""
    return (apply_ if inplace else apply)(ops.SiLU, input)


@public("nn.functional")
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * tanh(softplus(input))``. Saves: the input."""
    return (apply_ if inplace else apply)(ops.Mish, input)


@public("nn.functional", cuda=FLOAT32)
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``ln(1 + e**(beta * input)) / beta``. Saves: the input."""
    want_real("softplus", beta=beta, threshold=threshold)
    return apply(ops.Softplus, input, beta=beta or 5e-324, threshold=threshold)  # divided by 0 the result is infinite


@public("nn.functional")
def softsign(input: Tensor) -> Tensor:
    """``input / (1 + |input|)``; integers give the default dtype. Saves: the input."""
    refuse_bools("softsign", input.array)
    if not input.is_floating_point():
        input = input.to(dtypes.get_default_dtype())
    return apply(ops.Softsign, input)


@public("nn.functional")
def logsigmoid(input: Tensor) -> Tensor:
    """``ln(sigmoid(input))``. Saves: the input."""
    want_floating("logsigmoid", input.array)
    return apply(ops.LogSigmoid, input)


@public("nn.functional")
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input / 6 + 1 / 2, 0), 1)``. Saves: the output."""
    return (apply_ if inplace else apply)(ops.Ramp, input, low=0.0, high=1.0, slope=1 / 6)


@public("nn.functional")
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * hardsigmoid(input)``. Saves: the input."""
    return (apply_ if inplace else apply)(ops.Hardswish, input)


@public("nn.functional")
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` within ``[min_val, max_val]``. Saves: the output. Raises: ValueError: the bounds cross.

    At a bound the gradient is 0. In half precision, where the dtype rounds a bound inwards, PyTorch's is 1 there.
    """
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val cannot be greater than max_val, found {min_val} and {max_val}")
    return (apply_ if inplace else apply)(ops.Ramp, input, low=min_val, high=max_val)


@public("torch", "nn.functional")
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``input`` where above ``threshold``, else ``value``. Saves: the input."""
    return (apply_ if inplace else apply)(ops.Threshold, input, limit=threshold, value=value)


@public("torch", "nn.functional", "Tensor", cpu=LOWER, cuda=LOWER)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """``input`` where positive, else ``weight * input``: one weight, or one a channel (axis 1). Saves: input and weight.

    Raises:
        ShapeError: ``weight`` has more than one dimension, or is not one a channel.
        DTypeError: ``weight`` has another dtype.
    """
    if weight.ndim > 1:
        raise ShapeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}")
    if weight.dtype != input.dtype:
        raise DTypeError(f"prelu: Type promoting not supported. Got {input.dtype} and {weight.dtype}: convert one")
    if not input.ndim:
        return apply(ops.PReLU, input.reshape(1), weight).reshape(())
    return apply(ops.PReLU, input, weight)


@public("nn.functional")
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of ``dim`` times the sigmoid of the second. Saves: both halves' views and the sigmoid.

    Raises:
        ShapeError: the size of ``dim`` is odd.
    """
    want_floating("glu", input.array)
    if input.size(dim) % 2:
        raise ShapeError(f"Halving dimension must be even, but dimension {dim} is size {input.size(dim)}")
    a, b = chunk(input, 2, dim)
    return elementwise.mul(a, unary.sigmoid(b))
