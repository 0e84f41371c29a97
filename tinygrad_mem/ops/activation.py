"""Activations: each saves one array, the input or the output, whichever its derivative can be made from."""

from .. import dtypes
from ..dtypes import fitting, is_floating, want_fitting, want_held
from ..errors import DTypeError, ShapeError
from .base import Op, refuse_bools, want_floating, want_numbers, want_real
from .unary import Unary


def _of_dtype(x, number):
    """``number`` for an op on ``x``: without its decimals where x has integers, as in PyTorch."""
    return number if is_floating(x.dtype) else int(number)


class ReLU(Op):
    """max(x, 0); the gradient is gy where y > 0, else 0. Saves y: y > 0 is the mask."""

    saves = ("y",)

    @staticmethod
    def forward(ctx, x):
        refuse_bools("relu", x)
        y = ctx.output_like(x)
        ctx.kernels.relu(x, out=y)
        ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.relu_backward(gy, ctx.take("y"), out=gx)
        return gx


class LeakyReLU(Op):
    """x where x > 0, else slope * x; the derivative is 1 or slope. Saves y if ``slope > 0``, x if ``slope <= 0``."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, slope):
        want_floating("leaky_relu", x)
        want_fitting(x.dtype, slope)
        y = ctx.output_like(x)
        ctx.slope = slope
        ctx.save(x=x if slope <= 0 else None)
        ctx.kernels.leaky_relu(x, slope, out=y)
        ctx.save(y=y if slope > 0 else None)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.leaky_relu_backward(gy, ctx.take("y" if ctx.slope > 0 else "x"), ctx.slope, out=gx)
        return gx


class Activation(Unary):
    """The base of activations that are computed from x and a few numbers, and refuse integers. Saves x."""

    saves = ("x",)

    @classmethod
    def forward(cls, ctx, x, **numbers):
        want_floating(cls.kernel, x)
        want_fitting(x.dtype, *numbers.values())
        y = ctx.output_like(x)
        ctx.save(x=x)
        ctx.numbers = tuple(numbers.values())
        getattr(ctx.kernels, cls.kernel)(x, *ctx.numbers, out=y)
        return y

    @classmethod
    def backward(cls, ctx, gy):
        gx = ctx.grad_buffer(gy)
        getattr(ctx.kernels, cls.kernel + "_backward")(gy, ctx.take("x"), *ctx.numbers, out=gx)
        return gx


class ELU(Activation):
    """scale * (x where x > 0, else alpha * (e**(inner * x) - 1)); ELU, SELU and CELU by their numbers. Saves x."""


class GELU(Activation):
    """x * Phi(x), exactly or by tanh. Saves x. Source: Hendrycks and Gimpel, *Gaussian error linear units*, 2016."""


class SiLU(Activation):
    """x * s, s = sigmoid(x); the derivative is s * (1 + x * (1 - s)). Saves x."""


class Softplus(Activation):
    """ln(1 + e**(beta * x)) / beta, x itself above the threshold; the derivative is sigmoid(beta * x). Saves x."""


class Mish(Activation):
    """x * tanh(softplus(x)). Saves x."""


class Softsign(Activation):
    """x / (1 + abs(x)); the derivative is 1 / (1 + abs(x))**2. Saves x."""


class Hardswish(Activation):
    """x * min(max(x + 3, 0), 6) / 6. Saves x."""


class LogSigmoid(Unary):
    """-ln(1 + e**-x); the derivative is sigmoid(-x). Saves x."""

    saves = ("x",)


class Ramp(Op):
    """x between two bounds, constant outside: hardtanh, ReLU6, hardsigmoid (``slope`` 1/6). Saves y.

    The kernel is ``clamp`` with the bounds, or ``hardsigmoid``.
    """

    saves = ("y",)

    @staticmethod
    def forward(ctx, x, *, low, high, slope=1.0):
        if slope == 1.0:
            refuse_bools("hardtanh", x)
            want_numbers("hardtanh", min_val=low, max_val=high)
            low, high = _of_dtype(x, low), _of_dtype(x, high)
            if x.dtype == dtypes.uint8 and low < 0:
                raise DTypeError(f"hardtanh: {x.dtype} cannot hold the limit {low}: convert the tensor to a dtype with a sign")
            want_held(x.dtype, low, high)
        else:
            want_floating("hardsigmoid", x)
        y = ctx.output_like(x)
        ctx.bounds, ctx.kernel = (
            (dtypes.rounded(low, x.dtype), dtypes.rounded(high, x.dtype)),
            "hardtanh" if slope == 1.0 else "hardsigmoid",
        )
        if slope == 1.0:
            ctx.kernels.clamp(x, low, high, out=y)
        else:
            ctx.kernels.hardsigmoid(x, out=y)
        ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        getattr(ctx.kernels, ctx.kernel + "_backward")(gy, ctx.take("y"), *ctx.bounds, out=gx)
        return gx


class Threshold(Op):
    """x where x > limit, else value; the gradient is gy where x > limit, else 0. Saves x."""

    saves = ("x",)
    outputs = ()

    @staticmethod
    def forward(ctx, x, *, limit, value):
        refuse_bools("threshold", x)
        want_real("threshold", threshold=limit, value=value)
        limit, value = fitting(limit, x.dtype), fitting(value, x.dtype)
        y = ctx.output_like(x)
        ctx.save(x=x)
        ctx.limit = limit
        ctx.kernels.threshold(x, limit, value, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.threshold_backward(gy, ctx.take("x"), ctx.limit, out=gx)
        return gx


class PReLU(Op):
    """x where x > 0, else weight * x, a weight for all or one per channel. Saves x, and weight if x needs a gradient."""

    saves = ("x", "weight")
    outputs = ()
    takes_numbers = False

    @staticmethod
    def forward(ctx, x, weight):
        want_floating("prelu", x)
        channels = x.shape[1] if x.ndim > 1 else 1
        if weight.size not in (1, channels):
            raise ShapeError(f"prelu: expected 1 weight or one for each of {channels} channels, found {weight.size}")
        y = ctx.output_like(x)
        ctx.weights = weight.size
        ctx.save(x=x, weight=weight if ctx.needs[0] else None)
        ctx.kernels.prelu(x, _per_channel(weight, x.ndim), out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        gx = gw = None
        if ctx.needs[1]:
            product = ctx.empty_like(gy)
            ctx.kernels.prelu_backward_weight(gy, x, out=product)
            gw = ctx.empty((ctx.weights,), gy.dtype)
            axes = tuple(i for i in range(x.ndim) if i != 1 or gw.size == 1)
            ctx.kernels.sum(product, axes, out=_per_channel(gw, x.ndim))
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.prelu_backward(gy, x, _per_channel(ctx.take("weight"), x.ndim), out=gx)
        return gx, gw


def _per_channel(weight, ndim):
    """The weight, shaped to broadcast along axis 1."""
    return weight.reshape((1, weight.size) + (1,) * (ndim - 2) if ndim > 1 else weight.shape[:ndim])
