"""Matrix products. Saves: each factor that the other's gradient needs."""

from __future__ import annotations

import math
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..dtypes import fitting, float32, float64, int32, want_fitting
from ..errors import ArgumentTypeError, DTypeError, NotOfferedError, ShapeError
from ..ops import linalg as ops
from ..ops.base import refuse_bools
from . import elementwise, reduce, shape
from .door import AS_IS, FLOAT32, LOWER, WIDEST, public


@public("torch", "linalg", "Tensor", "Tensor.__matmul__", cpu=LOWER, cuda=LOWER)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product: vectors are rows on the left and columns on the right, leading dimensions broadcast.

    Saves: each factor that the other's gradient needs.

    Raises:
        ShapeError: the inner sizes differ, or a tensor is 0-d.
        DTypeError: the dtypes differ.
    """
    if not isinstance(other, Tensor):
        raise ArgumentTypeError(f"matmul(): argument 'other' must be Tensor, not {type(other).__name__}")
    if input.ndim == 0 or other.ndim == 0:
        raise ShapeError(f"both arguments to matmul need to be at least 1D, but they are {input.ndim}D and {other.ndim}D")
    a = shape.unsqueeze(input, 0) if input.ndim == 1 else input
    b = shape.unsqueeze(other, 1) if other.ndim == 1 else other
    if a.size(-1) != b.size(-2):
        raise ShapeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(input.shape)} and {list(other.shape)}): "
            "the last dimension of the first must be the second to last of the second"
        )
    if b.ndim == 2 and a.ndim > 2:  # one large product instead of many small ones
        rows = math.prod(a.shape[:-1])
        product = shape.reshape(apply(ops.MatMul, shape.reshape(a, (rows, a.size(-1))), b), (*a.shape[:-1], b.size(1)))
    else:
        product = apply(ops.MatMul, a, b)
    if input.ndim == 1:
        product = shape.squeeze(product, -2)
    return shape.squeeze(product, -1) if other.ndim == 1 else product


@public("Tensor.__imatmul__")
def imatmul(input: Tensor, other: Tensor) -> Tensor:
    """``input @= other``: as in PyTorch, the name is bound to a new tensor."""
    return matmul(input, other)


@public("Tensor.__rmatmul__")
def rmatmul(input: Tensor, other: Tensor) -> Tensor:
    """``other @ input``."""
    return matmul(other, input)


def _check_dims(name: str, *pairs: tuple[Tensor, int], first: int = 1) -> None:
    for i, (x, ndim) in enumerate(pairs, first):
        if x.ndim != ndim:
            raise ShapeError(f"{name}: argument {i} must be a {ndim}-D tensor, found {x.ndim}-D {list(x.shape)}")


@public("torch", "Tensor", cpu=LOWER, cuda=LOWER)
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Two matrices: (n, m), (m, p) -> (n, p). Saves and raises as :func:`matmul`."""
    _check_dims("mm", (input, 2), (mat2, 2))
    return apply(ops.MatMul, input, mat2)


@public("torch", "Tensor", cpu=LOWER, cuda=LOWER)
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Two batches of matrices, one by one: (b, n, m), (b, m, p) -> (b, n, p). Saves and raises as :func:`matmul`."""
    _check_dims("bmm", (input, 3), (mat2, 3))
    if input.size(0) != mat2.size(0):
        raise ShapeError(f"bmm: batch sizes differ: {list(input.shape)} and {list(mat2.shape)}; use matmul to broadcast")
    return apply(ops.MatMul, input, mat2)


@public("nn.functional")
def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """Groups of rows, each times its own matrix, as experts compute: (n, m), (groups, m, p) -> (n, p).

    Args:
        offs: (groups), int32: the row before which each group ends. Rows beyond the last group become 0.
        bias: not offered, as in PyTorch.
        out_dtype: the dtype of both matrices, or ``None``.

    Saves: each factor that the other's gradient needs, and ``offs``.

    Raises:
        ShapeError: the sizes do not fit, or ``offs`` decreases or goes beyond the rows (found when the product runs).
        DTypeError: ``offs`` is not int32, or the dtypes differ.
        NotOfferedError: a bias, another dtype of the result, other numbers of dimensions.
    """
    other = out_dtype is not None and out_dtype is not mat_a.dtype
    if bias is not None or other or (mat_a.ndim, mat_b.ndim) not in ((2, 3), (3, 3)):
        raise NotOfferedError(
            f"grouped_mm: offered are (n, m) or (groups, m, p) times (groups, m, p) without bias, in one dtype: found "
            f"{list(mat_a.shape)} and {list(mat_b.shape)}; write others as matmul, and add the bias"
        )
    if (offs is None) != (mat_a.ndim == 3):
        raise ShapeError("grouped_mm: Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if offs is None:
        return bmm(mat_a, mat_b)
    if offs.dtype is not int32 or mat_a.dtype is not mat_b.dtype:
        raise DTypeError(
            f"grouped_mm: Offsets have to be int32, matrices of one dtype, found {offs.dtype}, {mat_a.dtype} and {mat_b.dtype}"
        )
    if mat_a.size(1) != mat_b.size(1) or offs.shape != mat_b.shape[:1]:
        raise ShapeError(
            f"grouped_mm: contraction dimension of mat_a and mat_b must match, and offs has one end a group: found "
            f"{list(mat_a.shape)}, {list(mat_b.shape)} and {list(offs.shape)}"
        )
    return apply(ops.GroupedMatMul, mat_a, mat_b, offs)


@public("torch", "Tensor", cpu=AS_IS, cuda=LOWER)
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix and a vector: (n, m), (m) -> (n). Saves and raises as :func:`matmul`."""
    _check_dims("mv", (input, 2), (vec, 1))
    return matmul(input, vec)


@public("torch", "Tensor", cpu=AS_IS, cuda=WIDEST)
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Two vectors of one size: (n), (n) -> (). Saves and raises as :func:`matmul`."""
    _check_dims("dot", (input, 1), (tensor, 1))
    if input.size(0) != tensor.size(0):
        raise ShapeError(f"dot: inconsistent tensor size: {input.size(0)} elements and {tensor.size(0)}; they must be equal")
    return matmul(input, tensor)


@public("torch", "Tensor", "torch.ger", "Tensor.ger")
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors' elements: (n), (m) -> (n, m). Saves: each for the other's gradient."""
    _check_dims("outer", (input, 1), (vec2, 1))
    return elementwise.mul(shape.unsqueeze(input, 1), vec2)


def _added(run: Any, name: str, ndim: int, input: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta * input + alpha * (a @ b)``; for integers, beta and alpha are truncated, and wrap round, as in PyTorch."""
    _check_dims(name, (a, ndim), (b, ndim), first=2)
    if input.is_floating_point():
        want_fitting(input.dtype, beta, alpha)
    else:
        beta, alpha = fitting(beta, input.dtype), fitting(alpha, input.dtype)
    return run(ops.AddMM, input, a, b, beta=beta, alpha=alpha)


@public("torch", "Tensor", cpu=LOWER, cuda=LOWER)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``; with ``beta`` 0, nan in input is ignored. Integers truncate beta and alpha.

    Saves: each matrix for the other's gradient.

    Raises:
        ShapeError, DTypeError: they do not fit.
    """
    return _added(apply, "addmm", 2, input, mat1, mat2, beta, alpha)


@public("Tensor")
def addmm_(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _added(apply_, "addmm_", 2, input, mat1, mat2, beta, alpha)


@public("torch", "Tensor", cpu=LOWER, cuda=LOWER)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)``, batch by batch. Saves and raises as :func:`addmm`."""
    return _added(apply, "baddbmm", 3, input, batch1, batch2, beta, alpha)


@public("nn.functional", cpu=LOWER, cuda=LOWER)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``: (..., in), (out, in), (out,) -> (..., out).

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError, DTypeError: they do not fit.
    """
    if weight.ndim == 1:  # as in PyTorch, the last dimension is removed
        return matmul(input, weight) if bias is None else elementwise.add(matmul(input, weight), bias)
    return apply(ops.Linear, input, weight, bias)


@public("torch", "Tensor", cuda=WIDEST)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over pairs of dimensions: the last of ``a`` with the first of ``b``, or two lists.

    Saves: each for the other's gradient.

    Raises:
        ShapeError, DimensionError: the sizes differ, or a dimension is outside its tensor.
    """
    if isinstance(dims, int):
        if dims < 0:
            raise ShapeError(f"tensordot expects dims >= 0, but got dims={dims}: how many of the last dimensions are summed")
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = [normalize_dim(d, a.ndim) for d in dims[0]], [normalize_dim(d, b.ndim) for d in dims[1]]
    for i, j in zip(left, right, strict=False):  # a dimension of size 1 broadcasts
        if b.size(j) == 1 != a.size(i):
            a = reduce.sum(a, i, keepdim=True, dtype=a.dtype)
        elif a.size(i) == 1 != b.size(j):
            b = reduce.sum(b, j, keepdim=True, dtype=b.dtype)
    if [a.size(d) for d in left] != [b.size(d) for d in right]:
        raise ShapeError(
            f"contracted dimensions need to match, but they do not: {list(a.shape)} and {list(b.shape)} over {dims}"
        )
    free_a = [d for d in range(a.ndim) if d not in left]
    free_b = [d for d in range(b.ndim) if d not in right]
    inner = math.prod(a.size(d) for d in left)
    x = shape.reshape(shape.permute(a, *free_a, *left), (math.prod(a.size(d) for d in free_a), inner))
    y = shape.reshape(shape.permute(b, *right, *free_b), (inner, math.prod(b.size(d) for d in free_b)))
    return shape.reshape(mm(x, y), [a.size(d) for d in free_a] + [b.size(d) for d in free_b])


@public("torch", "Tensor", cpu=FLOAT32, cuda=AS_IS)
def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal. Raises: ShapeError: no matrix. DTypeError: bools."""
    _check_dims("trace", (input, 2))
    refuse_bools("trace", input.array)
    return reduce.sum(shape.diagonal(input))


@public("linalg", cuda=FLOAT32)
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The X for which ``A @ X`` is ``B``, of a triangular ``A``: (..., n, n), (..., n, k) -> (..., n, k).

    What is on the other side of the diagonal is not read. A 0 on the diagonal gives infinities.

    Args:
        upper: which side of the diagonal is read.
        left: False: ``X @ A`` is ``B``.
        unitriangular: the diagonal is not read, and counts as ones.

    Saves: ``A``, and the result if ``A`` needs a gradient.

    Raises:
        ShapeError: ``A`` is not square, or the sizes do not fit.
        DTypeError: dtypes that differ, or other ones than float32 and float64.
    """
    if A.ndim < 2 or B.ndim < 2 or A.size(-1) != A.size(-2) or A.size(-1) != B.size(-2 if left else -1):
        raise ShapeError(
            f"linalg.solve_triangular: A must be square matrices, with as many rows as B has {'rows' if left else 'columns'}: "
            f"found {list(A.shape)} and {list(B.shape)}"
        )
    if A.dtype is not B.dtype or A.dtype not in (float32, float64):
        raise DTypeError(f"linalg.solve_triangular: A and B must be float32 or float64, found {A.dtype} and {B.dtype}")
    if not left:
        a, b = shape.transpose(A, -2, -1), shape.transpose(B, -2, -1)
        turned = solve_triangular(a, b, upper=not upper, unitriangular=unitriangular)
        return shape.transpose(turned, -2, -1)
    return apply(ops.SolveTriangular, A, B, upper=bool(upper), unit=bool(unitriangular))
