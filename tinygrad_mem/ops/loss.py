"""Losses of pairs of elements: each saves its inputs, never their difference, and sums as it computes."""

from __future__ import annotations

from typing import ClassVar

from ..dtypes import is_floating, result_type
from ..errors import DTypeError
from .base import Op, broadcast


class _Pair(Op):
    """A loss of x and y by kernel name; ``scale`` is what a sum is multiplied by, ``None`` for a loss per element.

    Further inputs are weights of the elements, ``None`` for none: they broadcast, and get no gradient. Saves x, y, and weights.
    """

    saves = ("x", "y", "weight", "positive")
    outputs = ()
    takes_numbers = False
    kernel: ClassVar[str]
    weights: ClassVar[tuple[str, ...]] = ()
    symmetric: ClassVar[bool] = True  # the gradient of y is that of x with the two exchanged: of equal ones, both are +0,
    negated: ClassVar[bool] = False  # or with the other sign, that of 0 too, as PyTorch has it

    @classmethod
    def forward(cls, ctx, x, y, *weights, scale, numbers=()):
        dtype = result_type(x, y)
        if not is_floating(dtype):
            raise DTypeError(f"{cls.kernel}: expected a floating input or target, found {x.dtype} and {y.dtype}; cast one")
        given = [w for w in weights if w is not None]
        shape = broadcast(cls.kernel, x.shape, y.shape, *[w.shape for w in given])
        out = ctx.empty(shape if scale is None else (), dtype)
        ctx.save(x=x, y=y, **dict(zip(cls.weights, weights, strict=True)))
        ctx.options = shape, numbers, scale
        getattr(ctx.kernels, cls.kernel)(*_broadcast(ctx, shape, x, y, *weights), *numbers, scale, out=out)
        return out

    @classmethod
    def backward(cls, ctx, gy):
        shape, numbers, scale = ctx.options
        arrays = _broadcast(ctx, shape, *[ctx.take(name) for name in ("x", "y", *cls.weights)])
        factor = 1.0 if scale is None else scale
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty(shape, gy.dtype)
            if cls.symmetric:
                pair, sign = (arrays, -1) if cls.negated else (arrays[::-1], 1)
                getattr(ctx.kernels, cls.kernel + "_backward")(gy, *pair, *numbers, sign * factor, out=gz)
            else:
                getattr(ctx.kernels, cls.kernel + "_backward_y")(gy, *arrays, *numbers, factor, out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy) if scale is None else ctx.empty(shape, gy.dtype)
            getattr(ctx.kernels, cls.kernel + "_backward")(gy, *arrays, *numbers, factor, out=gx)
        return (gx, gz, *[None for _ in cls.weights])


def _broadcast(ctx, shape, *arrays):
    return [None if a is None else ctx.broadcast(a, shape) for a in arrays]


class MSELoss(_Pair):
    """(x - y)**2; the gradients are gy * 2 (x - y) and its negative. Saves x and y."""

    kernel = "mse_loss"


class L1Loss(_Pair):
    """abs(x - y); the gradients are gy * sign(x - y) and its negative. Saves x and y."""

    kernel, negated = "l1_loss", True


class HuberLoss(_Pair):
    """Half of the square of x - y up to delta, linear beyond, times a factor: Huber and smooth L1. Saves x and y."""

    kernel = "huber_loss"


class BCELoss(_Pair):
    """-weight * (y ln x + (1 - y) ln(1 - x)). Saves x, y, and the weights."""

    kernel, weights, symmetric = "binary_cross_entropy", ("weight",), False

    @classmethod
    def forward(cls, ctx, x, y, *weights, scale, numbers=()):
        ctx.kernels.check_probabilities(x, y)
        return super().forward(ctx, x, y, *weights, scale=scale, numbers=numbers)


class BCEWithLogitsLoss(_Pair):
    """:class:`BCELoss` of sigmoid(x), without overflow. Saves x, y, and the weights."""

    kernel, weights, symmetric = "bce_with_logits", ("weight", "positive"), False


class KLDiv(_Pair):
    """y * (ln y - x), or e**y * (y - x). Saves x and y."""

    kernel, symmetric = "kl_div", False
