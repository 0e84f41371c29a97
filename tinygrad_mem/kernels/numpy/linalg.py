"""Matrix products through BLAS. NumPy's float16 product is a plain loop, so float16 goes through float32 tiles."""

import math

import numpy as np

from ...dtypes import is_half
from ...scope import local
from ..formula import formula
from ..grouped import each_group
from .fast.blas import add_product as _add_product
from .fast.blas import matmul as _product
from .fast.halves import cast
from .fast.threads import scratch

_TILE = 1 << 19  # elements of float32 in one cast tile: 2 MiB


def matmul_workspace(x_shape, y_shape, dtype):
    """Bytes of workspace for a product of these shapes: none, except for float16."""
    if not is_half(dtype):
        return 0
    m, k, n = x_shape[-2], x_shape[-1], y_shape[-1]
    rows = max(min(m, _TILE // max(k + n, 1)), 1)
    columns = max(min(n, _TILE // max(k, 1)), 1)
    return 4 * (rows * (k + columns) + k * columns)


@formula(lambda x, y: x @ y)
def matmul(x, y, work, out):
    """out = x @ y; work is the workspace asked for."""
    if out.size == 0:
        return
    if x.shape[-1] == 0:
        out.fill(0)
        return
    if not is_half(out.dtype):
        _product(x, y, out)
        return
    _half_products(x, y, None, 1, 1, work, out)


@formula(lambda x, y, addend, alpha, beta: alpha * (x @ y) + beta * addend)
def matmul_add(x, y, addend, alpha, beta, work, out):
    """out = alpha * (x @ y) + beta * addend, of halves: added in float32 and rounded once. addend may be out; beta is not 0."""
    if out.size:
        _half_products(x, y, np.broadcast_to(addend, out.shape), alpha, beta, work, out)


def _half_products(x, y, addend, alpha, beta, work, out):
    xs = np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:]))
    ys = np.broadcast_to(y, (*out.shape[:-2], *y.shape[-2:]))
    for index in np.ndindex(out.shape[:-2]):
        more = None if addend is None else addend[index]
        if out.dtype is local.narrow_products:
            _narrow_product(xs[index], ys[index], more, alpha, beta, out[index])
        else:
            _half_product(xs[index], ys[index], more, alpha, beta, work, out[index])


_NARROW = 1 << 17  # halves: a quarter of the scratch


def _narrow_product(x, y, addend, alpha, beta, out):
    """As :func:`_half_product`, for ``backends.accumulate_in``: each product and each sum is rounded. For lessons, and slow."""
    n = out.shape[1]
    for j in range(0, n, _NARROW):
        width = min(_NARROW, n - j)
        step = max(_NARROW // width, 1)
        for i in range(0, len(out), step):
            part = out[i : i + step, j : j + width]
            term, total = (scratch(part.shape, out.dtype, k, 4) for k in (0, 1))
            total.fill(0)
            for k in range(x.shape[1]):
                np.multiply(x[i : i + step, k, None], y[k, j : j + width], out=term)
                np.add(total, term, out=total)
            if alpha != 1:
                np.multiply(total, alpha, out=total)
            if addend is not None:
                np.multiply(addend[i : i + step, j : j + width], beta, out=term)
                np.add(total, term, out=total)
            np.copyto(part, total)


def _grouped(x, y, ends, out):
    group = np.searchsorted(ends, np.arange(len(x)), side="right")[:, None] == np.arange(len(ends))
    return np.einsum("ng,nk,gkm->nm", group, x, y) if out.ndim == 2 else np.einsum("ng,nk,nm->gkm", group, x, y)


@formula(_grouped)
def grouped_matmul(x, y, ends, work, out):
    """The rows of each group times its matrix, or x's rows times y's, as ``each_group`` has it."""
    each_group(matmul, x, y, ends.tolist(), work, out)


def solve_triangular_workspace(shape, dtype):
    """Bytes of workspace for solving for an array of this shape: one row of each matrix."""
    return math.prod((*shape[:-2], shape[-1])) * dtype.itemsize


def _solved(a, b, upper, unit):
    a = np.triu(a) if upper else np.tril(a)
    one = np.eye(a.shape[-1])
    return np.linalg.solve(np.where(one, 1.0, a) if unit else a, b)


@formula(_solved)
def solve_triangular(a, b, upper, unit, work, out):
    """out = what a triangular ``a`` takes to ``b``, a row after the other; where ``unit``, with ones for a's diagonal."""
    if out.size == 0:
        return
    np.copyto(out, b)
    row, size = work.view(out.dtype).reshape(*out.shape[:-2], 1, out.shape[-1]), a.shape[-1]
    for i in reversed(range(size)) if upper else range(size):
        known = slice(i + 1, size) if upper else slice(i)
        if i != (size - 1 if upper else 0):
            np.matmul(a[..., i : i + 1, known], out[..., known, :], out=row)
            np.subtract(out[..., i : i + 1, :], row, out=out[..., i : i + 1, :])
        if not unit:
            np.divide(out[..., i, :], a[..., i, i, None], out=out[..., i, :])


@formula(lambda x, y, out: out + x @ y)
def add_matmul(x, y, out):
    """out += x @ y, of matrices of float32 or float64."""
    if x.shape[1]:
        _add_product(x, y, out)


def _half_product(x, y, addend, alpha, beta, work, out):
    """One float16 product in tiles of rows and columns, multiplied and accumulated in float32."""
    (m, k), n = x.shape, y.shape[1]
    rows = max(min(m, _TILE // max(k + n, 1)), 1)
    columns = max(min(n, _TILE // max(k, 1)), 1)
    buffer = work.view(np.float32)
    left, right, result = np.split(buffer[: rows * k + k * columns + rows * columns], [rows * k, rows * k + k * columns])
    for j in range(0, n, columns):
        c = min(columns, n - j)
        b = right[: k * c].reshape(k, c)
        cast(y[:, j : j + c], b)
        for i in range(0, m, rows):
            r = min(rows, m - i)
            a, product = left[: r * k].reshape(r, k), result[: r * c].reshape(r, c)
            cast(x[i : i + r], a)
            if k:
                _product(a, b, product)
            else:
                product.fill(0)
            if alpha != beta:
                np.multiply(product, alpha / beta, out=product)
            if addend is not None:
                np.add(product, addend[i : i + r, j : j + c], out=product)
            if beta != 1:
                np.multiply(product, beta, out=product)
            cast(product, out[i : i + r, j : j + c])
