"""Matrix products. float16 is multiplied in float32 tiles on the cpu and accumulated in float32 everywhere."""

import math

from ..dtypes import is_half, refuse_complex
from ..errors import DTypeError, ShapeError
from .base import Op, broadcast, refuse_bools, want_numbers


def _product(ctx, a, b, out):
    """out = a @ b through BLAS, with the workspace that the kernel asks for."""
    work = ctx.workspace(ctx.kernels.matmul_workspace(a.shape, b.shape, a.dtype))
    ctx.kernels.matmul(a, b, work, out=out)


def _half_sum(ctx, a, b, addend, alpha, beta, out):
    """out = alpha * (a @ b) + beta * addend of halves, rounded once."""
    work = ctx.workspace(ctx.kernels.matmul_workspace(a.shape, b.shape, a.dtype))
    ctx.kernels.matmul_add(a, b, addend, alpha, beta, work, out=out)


def _blas_ready(ctx, x):
    """``x`` if BLAS can read it in place (one of its last two axes is contiguous), else a copy."""
    size = x.itemsize
    if x.ndim < 2 or x.flags.c_contiguous:
        return x
    (rows, columns), (down, right) = x.shape[-2:], x.strides[-2:]
    if (right == size and down >= columns * size) or (down == size and right >= rows * size):
        return x
    return ctx.copy(x)


class MatMul(Op):
    """x @ y of matrices or batches of them (at least 2-d each); the gradients are gy @ y.T and x.T @ gy.

    Saves x if y needs a gradient, and y if x does.
    """

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        if x.dtype != y.dtype:
            raise DTypeError(f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {y.dtype}")
        refuse_bools("matmul", x)
        if x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"mat1 and mat2 shapes cannot be multiplied ({_size(x)} and {_size(y)}): the last dimension of the first must "
                f"be the second to last of the second"
            )
        batch = broadcast("matmul", x.shape[:-2], y.shape[:-2]) if x.ndim > 2 or y.ndim > 2 else ()
        out = ctx.empty((*batch, x.shape[-2], y.shape[-1]), x.dtype)
        ctx.save(y=y if ctx.needs[0] else None, x=x if ctx.needs[1] else None)
        _product(ctx, _blas_ready(ctx, x), _blas_ready(ctx, y), out)
        return out

    @staticmethod
    def backward(ctx, gy):
        return _factor_gradients(ctx, _blas_ready(ctx, gy), "x", "y", ctx.needs)


def _factor_gradients(ctx, gy, first, second, needs):
    """The gradients of x @ y, saved as ``first`` and ``second``: gy @ y.T and x.T @ gy, ``None`` where not needed."""
    gx = gw = None
    if needs[1]:
        x = _blas_ready(ctx, ctx.take(first))
        gw = ctx.empty((*gy.shape[:-2], x.shape[-1], gy.shape[-1]), gy.dtype)
        _product(ctx, _swap(x), gy, gw)
        del x
    if needs[0]:
        y = _blas_ready(ctx, ctx.take(second))
        gx = ctx.empty((*gy.shape[:-2], gy.shape[-2], y.shape[-2]), gy.dtype)
        _product(ctx, gy, _swap(y), gx)
    return gx, gw


def _size(x):
    return "x".join(str(n) for n in x.shape)


def _swap(x):
    """The last two axes swapped: a view."""
    return x.transpose((*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


class GroupedMatMul(Op):
    """Rows of x, cut in groups that end before the rows ``ends``, each group times its own matrix of y.

    The gradients are the same products with gy: of gy's rows with y.T, and of x.T with gy within each group.

    Saves x if y needs a gradient, y if x does, and ends if ``needs["x"] or needs["y"]``.
    """

    saves = ("x", "y", "ends")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y, ends):
        out = ctx.empty((x.shape[0], y.shape[2]), x.dtype)
        ctx.save(y=y if ctx.needs[0] else None, x=x if ctx.needs[1] else None, ends=ends)
        _grouped(ctx, x, y, ends, out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = gw = None
        gy, ends = _blas_ready(ctx, gy), ctx.take("ends")
        if ctx.needs[1]:
            x = ctx.take("x")
            gw = ctx.empty((ends.shape[0], x.shape[1], gy.shape[1]), gy.dtype)
            _grouped(ctx, x, gy, ends, gw)
            del x
        if ctx.needs[0]:
            y = ctx.take("y")
            gx = ctx.empty((gy.shape[0], y.shape[1]), gy.dtype)
            _grouped(ctx, gy, _swap(y), ends, gx)
        return gx, gw, None


def _grouped(ctx, x, y, ends, out):
    """The products of all groups, with the workspace of the largest that there could be."""
    x, y = _blas_ready(ctx, x), _blas_ready(ctx, y)
    shapes = (x.shape, y.shape[1:]) if out.ndim == 2 else (x.shape[::-1], y.shape)
    work = ctx.workspace(ctx.kernels.matmul_workspace(*shapes, x.dtype))
    ctx.kernels.grouped_matmul(x, y, ctx.contiguous(ends), work, out=out)


class SolveTriangular(Op):
    """The x for which a @ x is b, where a is triangular: the rest of a is not read.

    Where ``unit``, its diagonal counts as ones.

    The gradient of b is what a.T takes to gy; that of a is minus its product with x.T, in a's triangle.

    Saves a, and y if a needs a gradient.
    """

    saves = ("a", "y")

    @staticmethod
    def forward(ctx, a, b, *, upper, unit):
        y = ctx.empty((*broadcast("linalg.solve_triangular", a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), b.dtype)
        ctx.save(a=a, y=y if ctx.needs[0] else None)
        ctx.upper, ctx.unit = upper, unit
        _solve(ctx, a, b, upper, y)
        return y

    @staticmethod
    def backward(ctx, gy):
        ga, gb = None, ctx.empty(gy.shape, gy.dtype)
        _solve(ctx, _swap(ctx.take("a")), gy, not ctx.upper, gb)
        if ctx.needs[0]:
            y = ctx.take("y")
            ga = ctx.empty((*gy.shape[:-1], gy.shape[-2]), gy.dtype)
            _product(ctx, gb, _swap(y), ga)
            ctx.kernels.negative(ga, out=ga)
            ctx.kernels.triangle(ga, (1 if ctx.upper else -1) if ctx.unit else 0, not ctx.upper, out=ga)
        return ga, gb if ctx.needs[1] else None


def _solve(ctx, a, b, upper, out):
    work = ctx.workspace(ctx.kernels.solve_triangular_workspace(out.shape, out.dtype))
    ctx.kernels.solve_triangular(a, b, upper, ctx.unit, work, out=out)


class Linear(Op):
    """x @ weight.T + bias, for any leading dimensions, as one op.

    The gradients are gy @ weight, gy.T @ x, and the sum of gy over all rows.

    Saves x if weight needs a gradient, and weight if x does; the gradient of the bias needs nothing.
    """

    saves = ("x", "weight")

    @staticmethod
    def forward(ctx, x, weight, bias):
        y = linear_forward(ctx, x, weight, bias)
        ctx.weight_shape = weight.shape
        ctx.save(x=x if ctx.needs[1] else None, weight=weight if ctx.needs[0] else None)
        return y

    @staticmethod
    def backward(ctx, gy):
        rows = matrix(ctx, gy)
        gx = gw = gb = None
        if len(ctx.needs) > 2 and ctx.needs[2]:
            gb = bias_gradient(ctx, rows)
        if ctx.needs[1]:
            gw = ctx.empty(ctx.weight_shape, gy.dtype)
            _product(ctx, rows.T, matrix(ctx, ctx.take("x")), gw)
        if ctx.needs[0]:
            gx = input_gradient(ctx, rows, ctx.take("weight"))
        return gx, gw, gb


def linear_forward(ctx, x, weight, bias):
    """x @ weight.T + bias, as a new array. It notes x's leading dimensions for :func:`input_gradient`."""
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: mat1 and mat2 shapes cannot be multiplied: x is {_size(x)}, weight is {_size(weight)} "
            f"and expects a last dimension of {weight.shape[-1]}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"linear: bias has shape {list(bias.shape)}, weight {_size(weight)} gives {weight.shape[0]} outputs")
    if x.dtype != weight.dtype:
        raise DTypeError(f"mat1 and mat2 must have the same dtype, but got {x.dtype} and {weight.dtype}")
    refuse_bools("linear", x)
    ctx.lead = x.shape[:-1]
    out = ctx.empty((*x.shape[:-1], weight.shape[0]), x.dtype)
    rows = out if x.ndim == 2 else out.reshape(math.prod(ctx.lead), weight.shape[0])
    if bias is not None and is_half(x.dtype):
        _half_sum(ctx, matrix(ctx, x), _blas_ready(ctx, weight).T, bias, 1, 1, rows)
        return out
    _product(ctx, matrix(ctx, x), _blas_ready(ctx, weight).T, rows)
    if bias is not None:
        ctx.kernels.add(rows, bias, out=rows)
    return out


def input_gradient(ctx, rows, weight):
    """The gradient of a linear layer's input: rows @ weight, where ``rows`` is the gradient of its output as a matrix."""
    gx = ctx.empty((*ctx.lead, weight.shape[1]), rows.dtype)
    _product(ctx, rows, _blas_ready(ctx, weight), gx.reshape(rows.shape[0], weight.shape[1]))
    return gx


def bias_gradient(ctx, rows):
    """The gradient of a linear layer's bias: the sum of the rows."""
    gb = ctx.empty((1, rows.shape[1]), rows.dtype)
    ctx.kernels.sum(rows, (0,), out=gb)
    return gb.reshape(rows.shape[1])


def matrix(ctx, x):
    """``x`` as a matrix that BLAS can read: a view where its strides allow it."""
    if x.ndim != 2:
        x = ctx.contiguous(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _blas_ready(ctx, x)


class AddMM(Op):
    """beta * x + alpha * (a @ b), matrices or batches. Saves a if b needs a gradient, and b if a does."""

    saves = ("a", "b")

    @staticmethod
    def forward(ctx, x, a, b, *, beta, alpha):
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            raise ShapeError(f"addmm: mat1 and mat2 shapes cannot be multiplied ({_size(a)} and {_size(b)})")
        if not x.dtype == a.dtype == b.dtype:
            raise DTypeError(f"addmm: expected all to have the same dtype, but got: {x.dtype}, {a.dtype} and {b.dtype}")
        refuse_bools("addmm", x)
        refuse_complex(beta, alpha)
        want_numbers("addmm", beta=beta, alpha=alpha)
        shape = (*a.shape[:-1], b.shape[-1])
        if broadcast("addmm", x.shape, shape) != shape:
            raise ShapeError(
                f"addmm: The expanded size of the tensor must match the existing size: {list(x.shape)} does not broadcast to "
                f"{list(shape)}"
            )
        out = ctx.output(shape, x.dtype)
        ctx.beta, ctx.alpha = beta, alpha
        ctx.save(b=b if ctx.needs[1] else None, a=a if ctx.needs[2] else None)
        fresh = out is not x and out.flags.c_contiguous
        if is_half(x.dtype) and beta != 0 and out.flags.c_contiguous:
            _half_sum(ctx, _blas_ready(ctx, a), _blas_ready(ctx, b), x, alpha, beta, out)
            return out
        product = out if fresh else ctx.empty(shape, x.dtype)
        _product(ctx, _blas_ready(ctx, a), _blas_ready(ctx, b), product)
        if alpha != 1:
            ctx.kernels.multiply(product, alpha, out=product)
        if beta == 1:
            ctx.kernels.add(product, x, out=out)
        elif beta != 0:
            scaled = out if not fresh else ctx.empty(x.shape, x.dtype)
            ctx.kernels.multiply(x, beta, out=scaled)
            ctx.kernels.add(product, scaled, out=out)
        elif not fresh:
            ctx.kernels.copy(product, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        ga = gb = gx = None
        if any(ctx.needs[1:]):
            ga, gb = _factor_gradients(ctx, _blas_ready(ctx, gy), "a", "b", ctx.needs[1:])
        if ctx.alpha != 1:
            for g in (ga, gb):
                if g is not None:
                    ctx.kernels.multiply(g, ctx.alpha, out=g)
        if ctx.needs[0]:
            gx = gy
            if ctx.beta != 1:
                gx = ctx.grad_buffer(gy)
                ctx.kernels.multiply(gy, ctx.beta, out=gx)
        return gx, ga, gb
