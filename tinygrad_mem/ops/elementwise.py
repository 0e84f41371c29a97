"""Arithmetic of two operands, with broadcasting and PyTorch's promotion."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import dtypes
from ..dtypes import category, is_floating, result_type
from ..errors import DivisionError, DTypeError
from .base import Op, broadcast


def binary_output(ctx, name, x, y, floating=False):
    """The output of a broadcasting, promoting op of two operands, each an array or a Python number."""
    if not (type(x) is type(y) and (shape := x.shape) == y.shape and (dtype := x.dtype) is y.dtype):
        shape, dtype = _shape_and_dtype(name, x, y)
    if floating and not is_floating(dtype):
        dtype = dtypes.get_default_dtype()
    return ctx.device.empty(shape, dtype) if ctx.target is None else ctx.output(shape, dtype)


def not_bool(name: str, out: Any) -> Any:
    """The output of an op of numbers. Raises: DTypeError: it would be bool."""
    if out.dtype == dtypes.bool:
        raise DTypeError(
            f"{name} is not implemented for bool: give one operand another dtype, or use logical_and() or logical_xor()"
        )
    return out


_NUMBERS = {bool: 0, int: 1, float: 2}  # the category of each kind of Python number


def _shape_and_dtype(name: str, x: Any, y: Any) -> tuple[tuple, Any]:
    """Of two operands that are not alike; a number has no influence on an array's dtype unless its category is higher."""
    array, number = (x, y) if type(y) in _NUMBERS else (y, x)
    if type(number) in _NUMBERS and category(array.dtype) >= _NUMBERS[type(number)]:
        shape, dtype = array.shape, array.dtype
    else:
        shape, dtype = broadcast(name, *[z.shape for z in (x, y) if hasattr(z, "shape")]), result_type(x, y)
    if type(number) is int:
        dtypes.want_held(dtype, number)
    return shape, dtype


def alike(ctx, x, y, of_y=None):
    """Two operands with the values that PyTorch computes with: numbers and 0-d arrays as the common dtype holds them.

    So the rest of 1 / 0.1 depends on the dtype, and a 0-d 1000 is -24 beside an int8 array. Sums and products do without: they
    wrap round. ``of_y``: the dtype of y from the common dtype, if it is another.
    """
    if getattr(x, "dtype", None) == getattr(y, "dtype", None) or (type(y) is int and -256 <= y <= 256):
        return x, y  # small whole numbers are the same in every dtype
    dtype = result_type(x, y)
    if dtypes.bool in (getattr(x, "dtype", None), getattr(y, "dtype", None)):
        dtypes.want_held(dtype, x, y)
    return _in_dtype(ctx, x, dtype), _in_dtype(ctx, y, of_y(dtype) if of_y else dtype)


def _in_dtype(ctx, x, dtype):
    if hasattr(x, "dtype"):
        return x if x.ndim or x.dtype == dtype else ctx.copy(x, dtype)
    return float(dtype.type(x)) if is_floating(dtype) and type(x) in _NUMBERS else x


class Add(Op):
    """x + y; both gradients are gy. Saves nothing."""

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "add", x, y)
        ctx.kernels.add(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        return gy, gy


class Sub(Op):
    """x - y; the gradients are gy and -gy. Saves nothing."""

    @staticmethod
    def forward(ctx, x, y):
        if dtypes.bool in (getattr(x, "dtype", type(x)), getattr(y, "dtype", type(y))):
            raise DTypeError("Subtraction, the `-` operator, with a bool tensor is not supported: use ^ or logical_xor()")
        out = binary_output(ctx, "sub", x, y)
        ctx.kernels.subtract(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        if not ctx.needs[1]:
            return gy, None
        minus = ctx.empty_like(gy) if ctx.needs[0] else ctx.grad_buffer(gy)
        ctx.kernels.negative(gy, out=minus)
        return gy if ctx.needs[0] else None, minus


class Mul(Op):
    """x * y; the gradients are gy * y and gy * x. Saves x if y needs a gradient, and y if x does."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "mul", x, y)
        needs = ctx.needs
        if needs[1]:
            keep_factor(ctx, "x", x)
        if needs[0]:
            keep_factor(ctx, "y", y)
        ctx.kernels.multiply(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.multiply(gy, factor(ctx, "x"), out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.multiply(gy, factor(ctx, "y"), out=gx)
        return gx, gz


def keep_factor(ctx, name, value):
    """Keep an operand for backward: an array is saved, a Python number is remembered and costs nothing."""
    if type(value) in _NUMBERS or not hasattr(value, "dtype"):
        setattr(ctx, name, value)
    elif ctx.target is None:
        ctx.saved[name] = value  # what save() does in the end, at half the price: every product comes here
    else:
        ctx.save(**{name: value})


def factor(ctx, name):
    """The factor that :func:`keep_factor` kept."""
    return ctx.take(name) if name in ctx.saved else getattr(ctx, name)


class Div(Op):
    """x / y; the gradients are gy / y and -gy * x / y**2. Saves y, and x if y needs a gradient."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "div", x, y, floating=True)
        if ctx.needs[0] or ctx.needs[1]:
            keep_factor(ctx, "y", y)
        if ctx.needs[1]:
            keep_factor(ctx, "x", x)
        ctx.kernels.divide(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        y = factor(ctx, "y")
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.divide_backward_y(gy, factor(ctx, "x"), y, out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.divide(gy, y, out=gx)
        return gx, gz


class Pow(Op):
    """out = x**y; the gradients are gy * y * x**(y - 1) and gy * out * ln(x). Saves x, y, and out if y needs a gradient."""

    saves = ("x", "y", "out")
    outputs = ("out",)

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "pow", x, y)
        if hasattr(y, "dtype"):
            not_bool("pow", out)
        if hasattr(x, "dtype") and hasattr(y, "dtype"):
            x, y = alike(ctx, x, y)
        if not hasattr(y, "dtype") and out.dtype.kind in "iu" and y < 0:
            raise DTypeError("Integers to negative integer powers are not allowed: make the tensor floating first")
        if ctx.needs[0] or ctx.needs[1]:
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        ctx.kernels.power(x, y, out=out)
        ctx.save(out=out if ctx.needs[1] else None)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = factor(ctx, "x"), factor(ctx, "y")
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.power_backward_y(gy, x, ctx.take("out"), out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.power_backward_x(gy, x, y, out=gx)
        return gx, gz


class _Extremum(Op):
    """Saves x and y (a number costs nothing); where they are equal each gets half of the gradient."""

    saves = ("x", "y")
    outputs = ()
    low: ClassVar[bool]

    @classmethod
    def forward(cls, ctx, x, y):
        kernel = cls.__name__.lower()
        out = binary_output(ctx, kernel, x, y)
        x, y = alike(ctx, x, y)
        if any(ctx.needs):
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        getattr(ctx.kernels, kernel)(x, y, out=out)
        return out

    @classmethod
    def backward(cls, ctx, gy):
        x, y = factor(ctx, "x"), factor(ctx, "y")
        grads = []
        for need, mine, other in ((ctx.needs[0], x, y), (ctx.needs[1], y, x)):
            grad = ctx.empty_like(gy) if need else None
            if need:
                ctx.kernels.extremum_backward(gy, mine, other, cls.low, out=grad)
            grads.append(grad)
        return tuple(grads)


class Maximum(_Extremum):
    """max(x, y); nan if either is. Saves x and y."""

    low = False


class Minimum(_Extremum):
    """min(x, y); nan if either is. Saves x and y."""

    low = True


class Atan2(Op):
    """The angle of the point (y, x), from -pi to pi. Saves y and x.

    The gradients are gy * x / r and -gy * y / r, where r = x**2 + y**2.
    """

    saves = ("y", "x")
    outputs = ()

    @staticmethod
    def forward(ctx, y, x):
        out = binary_output(ctx, "atan2", y, x, floating=True)
        if is_floating(result_type(y, x)):
            y, x = alike(ctx, y, x)
            ctx.save(y=y, x=x)
        else:  # NumPy would compute bools and bytes in half precision
            ctx.kernels.copy(y, out=out)
            y = out
        ctx.kernels.arctan2(y, x, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        y, x = ctx.take("y"), ctx.take("x")
        ga = gb = None
        if ctx.needs[0]:
            ga = ctx.empty_like(gy)
            ctx.kernels.arctan2_backward(gy, y, x, 1.0, out=ga)
        if ctx.needs[1]:
            gb = ctx.empty_like(gy)
            ctx.kernels.arctan2_backward(gy, x, y, -1.0, out=gb)
        return ga, gb


def divided(ctx, name, x, y):
    """The output of a division that gives integers for integers, which cannot be divided by 0.

    Raises:
        DivisionError: integers are divided by 0: by the number 0 on every device, by a 0 in an array where values can be read.
        DTypeError: both are bool.
    """
    out = not_bool(name, binary_output(ctx, name, x, y))
    if not is_floating(out.dtype):
        if not hasattr(y, "shape"):
            if y == 0 and out.size:
                raise DivisionError(f"{name}: ZeroDivisionError: integers divided by the number 0")
        elif out.size:
            ctx.kernels.check_divisor(name, y)
    return out


class Remainder(Op):
    """x - y * floor(x / y) or, by the kernel's name, C's fmod. Saves x if y needs a gradient, and y if y does."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        out = divided(ctx, kernel, x, y)
        x, y = alike(ctx, x, y)
        if ctx.needs[1]:
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        ctx.floor = kernel == "remainder"
        getattr(ctx.kernels, kernel)(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            if ctx.floor:  # floor(x / y) of the rounded x / y may be one more than the remainder was made with
                ctx.kernels.floor_divide(factor(ctx, "x"), factor(ctx, "y"), out=gz)
            else:
                ctx.kernels.divide(factor(ctx, "x"), factor(ctx, "y"), out=gz)
                ctx.kernels.trunc(gz, out=gz)
            ctx.kernels.multiply(gz, gy, out=gz)
            ctx.kernels.negative(gz, out=gz)
        return gy, gz


class DivRound(Op):
    """x / y rounded down or towards zero. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x, y, *, rounding):
        out = divided(ctx, "div", x, y)
        x, y = alike(ctx, x, y, dtypes.arithmetic)  # the divisor is not rounded to half precision
        kernels = ctx.kernels
        truncated = kernels.truncated_division if is_floating(out.dtype) else kernels.truncated_quotient
        (kernels.floor_divide if rounding == "floor" else truncated)(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        zero = ctx.grad_zeros(gy)
        return (zero if ctx.needs[0] else None), (ctx.zeros(gy.shape, gy.dtype) if ctx.needs[1] else None)
