"""Matrix products. Saves: each factor that the other's gradient needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..ops import linalg as ops
from . import elementwise, reduce, shape


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
        rows = _count(a.shape[:-1])
        product = shape.reshape(apply(ops.MatMul, shape.reshape(a, (rows, a.size(-1))), b), (*a.shape[:-1], b.size(1)))
    else:
        product = apply(ops.MatMul, a, b)
    if input.ndim == 1:
        product = shape.squeeze(product, -2)
    return shape.squeeze(product, -1) if other.ndim == 1 else product


def imatmul(input: Tensor, other: Tensor) -> Tensor:
    """``input @= other``: PyTorch has no product in place; the name is bound to a new tensor."""
    return matmul(input, other)


def rmatmul(input: Tensor, other: Tensor) -> Tensor:
    """``other @ input``."""
    return matmul(other, input)


def _count(sizes: Any) -> int:
    count = 1
    for n in sizes:
        count *= n
    return count


def _need(name: str, *pairs: tuple[Tensor, int], first: int = 1) -> None:
    for i, (x, ndim) in enumerate(pairs, first):
        if x.ndim != ndim:
            raise ShapeError(f"{name}: argument {i} must be a {ndim}-D tensor, found {x.ndim}-D {list(x.shape)}")


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Two matrices: (n, m), (m, p) -> (n, p). Saves and raises as :func:`matmul`."""
    _need("mm", (input, 2), (mat2, 2))
    return apply(ops.MatMul, input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Two batches of matrices, one by one: (b, n, m), (b, m, p) -> (b, n, p). Saves and raises as :func:`matmul`."""
    _need("bmm", (input, 3), (mat2, 3))
    if input.size(0) != mat2.size(0):
        raise ShapeError(f"bmm: batch sizes differ: {list(input.shape)} and {list(mat2.shape)}; use matmul to broadcast")
    return apply(ops.MatMul, input, mat2)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix and a vector: (n, m), (m) -> (n). Saves and raises as :func:`matmul`."""
    _need("mv", (input, 2), (vec, 1))
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Two vectors of one size: (n), (n) -> (). Saves and raises as :func:`matmul`."""
    _need("dot", (input, 1), (tensor, 1))
    if input.size(0) != tensor.size(0):
        raise ShapeError(f"dot: inconsistent tensor size: {input.size(0)} elements and {tensor.size(0)}; they must be equal")
    return matmul(input, tensor)


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """:func:`dot`: there are no complex tensors here."""
    return dot(input, other)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products summed over the last dimensions: (..., n), (***, n) -> (..., ***). A 0-d tensor multiplies.

    Saves: each for the other's gradient.
    """
    if input.ndim == 0 or other.ndim == 0:
        return elementwise.mul(input, other)
    if input.ndim == other.ndim == 1:
        return dot(input, other)
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors' elements: (n), (m) -> (n, m). Saves: each for the other's gradient."""
    _need("outer", (input, 1), (vec2, 1))
    return elementwise.mul(shape.unsqueeze(input, 1), vec2)


ger = outer


def _added(run: Any, input: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta * input + alpha * (a @ b)``; integers are multiplied by the whole part of the numbers, as PyTorch does it."""
    if not input.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    return run(ops.AddMM, input, a, b, beta=beta, alpha=alpha)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``; with ``beta`` 0, nan in input is ignored. Of integers, numbers are cut.

    Saves: each matrix for the other's gradient.

    Raises:
        ShapeError, DTypeError: they do not fit.
    """
    _need("addmm", (mat1, 2), (mat2, 2), first=2)
    return _added(apply, input, mat1, mat2, beta, alpha)


def addmm_(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """:func:`addmm` in place."""
    _need("addmm_", (mat1, 2), (mat2, 2), first=2)
    return _added(apply_, input, mat1, mat2, beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)``, batch by batch. Saves and raises as :func:`addmm`."""
    _need("baddbmm", (batch1, 3), (batch2, 3), first=2)
    return _added(apply, input, batch1, batch2, beta, alpha)


def baddbmm_(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """:func:`baddbmm` in place."""
    _need("baddbmm_", (batch1, 3), (batch2, 3), first=2)
    return _added(apply_, input, batch1, batch2, beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * the sum of batch1[i] @ batch2[i]``, as one product of (n, b * m) and (b * m, p).

    Saves: those two, for each other's gradient.
    """
    _need("addbmm", (batch1, 3), (batch2, 3), first=2)
    if batch1.size(0) != batch2.size(0):
        raise ShapeError(f"addbmm: batch sizes differ: {list(batch1.shape)} and {list(batch2.shape)}")
    wide = shape.reshape(shape.permute(batch1, 1, 0, 2), (batch1.size(1), batch1.size(0) * batch1.size(2)))
    tall = shape.reshape(batch2, (batch2.size(0) * batch2.size(1), batch2.size(2)))
    return _added(apply, input, wide, tall, beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``. Saves and raises as :func:`addmm`."""
    _need("addmv", (mat, 2), (vec, 1), first=2)
    column = shape.unsqueeze(input, -1) if input.ndim else input
    return shape.squeeze(_added(apply, column, mat, shape.unsqueeze(vec, 1), beta, alpha), 1)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``. Saves and raises as :func:`addmm`."""
    _need("addr", (vec1, 1), (vec2, 1), first=2)
    return _added(apply, input, shape.unsqueeze(vec1, 1), shape.unsqueeze(vec2, 0), beta, alpha)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of input times all of other. Saves: each for the other's gradient."""
    n = max(input.ndim, other.ndim)
    a = shape.reshape(input, (1,) * (n - input.ndim) + tuple(input.shape))
    b = shape.reshape(other, (1,) * (n - other.ndim) + tuple(other.shape))
    left = shape.reshape(a, [k for size in a.shape for k in (size, 1)])
    right = shape.reshape(b, [k for size in b.shape for k in (1, size)])
    return shape.reshape(elementwise.mul(left, right), [i * j for i, j in zip(a.shape, b.shape, strict=True)])


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, in the order that takes the fewest multiplications. Saves: what its parts save.

    Raises:
        ShapeError: one is not a matrix, or neighbours do not fit.
    """
    _need("chain_matmul", *[(m, 2) for m in matrices])
    if not matrices:
        raise ArgumentError("chain_matmul(): Expected one or more matrices")
    sizes = [m.size(0) for m in matrices] + [matrices[-1].size(1)]
    cuts: dict = {}
    _cheapest(sizes, 0, len(matrices) - 1, cuts)
    return _chain(matrices, 0, len(matrices) - 1, cuts)


def _cheapest(sizes: list[int], i: int, j: int, cuts: dict) -> int:
    """The fewest multiplications for matrices i to j; ``cuts[i, j]`` is where the last product is, and their number."""
    if i == j:
        return 0
    if (i, j) not in cuts:
        cuts[i, j] = min(
            (_cheapest(sizes, i, k, cuts) + _cheapest(sizes, k + 1, j, cuts) + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
            for k in range(i, j)
        )
    return cuts[i, j][0]


def _chain(matrices: Sequence[Tensor], i: int, j: int, cuts: dict) -> Tensor:
    if i == j:
        return matrices[i]
    k = cuts[i, j][1]
    return mm(_chain(matrices, i, k, cuts), _chain(matrices, k + 1, j, cuts))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``: (..., in), (out, in), (out,) -> (..., out).

    Saves: input (for the weight's gradient) and weight (for the input's).

    Raises:
        ShapeError, DTypeError: they do not fit.
    """
    if weight.ndim == 1:  # as in PyTorch: the last dimension goes
        return matmul(input, weight) if bias is None else elementwise.add(matmul(input, weight), bias)
    return apply(ops.Linear, input, weight, bias)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[k] = input1 @ weight[k] @ input2 + bias[k]``: (..., i), (..., j), (k, i, j) -> (..., k).

    Saves: what its parts save.
    """
    out = einsum("...i,kij,...j->...k", input1, weight, input2)
    return out if bias is None else elementwise.add(out, bias)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over pairs of dimensions: the last of ``a`` with the first of ``b``, or two lists.

    Saves: each for the other's gradient.
    """
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = [d % a.ndim for d in dims[0]], [d % b.ndim for d in dims[1]]
    for i, j in zip(left, right, strict=False):  # a dimension of size 1 fits every other
        if b.size(j) == 1 != a.size(i):
            a = reduce.sum(a, i, keepdim=True)
        elif a.size(i) == 1 != b.size(j):
            b = reduce.sum(b, j, keepdim=True)
    if [a.size(d) for d in left] != [b.size(d) for d in right]:
        raise ShapeError(
            f"contracted dimensions need to match, but they do not: {list(a.shape)} and {list(b.shape)} over {dims}"
        )
    free_a = [d for d in range(a.ndim) if d not in left]
    free_b = [d for d in range(b.ndim) if d not in right]
    inner = _count(a.size(d) for d in left)
    x = shape.reshape(shape.permute(a, *free_a, *left), (_count(a.size(d) for d in free_a), inner))
    y = shape.reshape(shape.permute(b, *right, *free_b), (inner, _count(b.size(d) for d in free_b)))
    return shape.reshape(mm(x, y), [a.size(d) for d in free_a] + [b.size(d) for d in free_b])


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    _need("trace", (input, 2))
    return reduce.sum(shape.diagonal(input))


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Products summed over the letters that the result does not name; ``...`` stands for broadcast dimensions.

    Pairs are contracted from the left, each as one batched matrix product. ``einsum(x, [0, 1], y, [1, 2], [0, 2])`` gives
    the letters as numbers, ``...`` for the ellipsis.

    Saves: what the products save; operands whose dimensions must be moved are copied, and the copies saved.

    Raises:
        ShapeError: the equation does not fit the operands.
    """
    if isinstance(equation, Tensor):
        equation, operands = _from_sublists(equation, *operands)
    tensors = list(operands[0]) if len(operands) == 1 and not isinstance(operands[0], Tensor) else list(operands)
    terms, result = _parse(equation, tuple([x.ndim for x in tensors]))
    sizes: dict[str, int] = {}
    for term, x in zip(terms, tensors, strict=True):
        for letter, n in zip(term, x.shape, strict=True):
            if sizes.setdefault(letter, n) != n and 1 not in (sizes[letter], n):
                raise ShapeError(f"einsum: subscript {letter!r} has size {n} and {sizes[letter]} in {equation!r}")
            sizes[letter] = n if sizes[letter] == 1 else sizes[letter]
    first, *rest = [_merged(term, x) for term, x in zip(terms, tensors, strict=True)]
    for i, (term, x) in enumerate(rest):
        later = set(result).union(*[t for t, _ in rest[i + 1 :]])
        first = _contract(*first, term, x, later)
    term, x = first
    gone = [i for i, letter in enumerate(term) if letter not in result]
    if gone:
        x = reduce.sum(x, gone)
        term = [letter for letter in term if letter in result]
    x = _permuted(x, [term.index(letter) for letter in result])
    return shape.expand(x, *[sizes[letter] for letter in result]) if list(x.shape) != [sizes[c] for c in result] else x


def _from_sublists(*parts: Any) -> tuple[str, tuple]:
    """The equation and the operands of the form with lists of numbers."""

    def letters(numbers: Sequence) -> str:
        if any(n is not ... and not 0 <= n < 52 for n in numbers):
            raise ShapeError(f"einsum: subscripts in lists must be in the range [0, 52), found {list(numbers)}")
        return "".join("..." if n is ... else (chr(65 + n) if n < 26 else chr(71 + n)) for n in numbers)

    operands = tuple(parts[0 : len(parts) - len(parts) % 2 : 2])
    equation = ",".join(letters(numbers) for numbers in parts[1::2])
    return equation + ("->" + letters(parts[-1]) if len(parts) % 2 else ""), operands


@lru_cache(maxsize=256)
def _parse(equation: str, ndims: tuple[int, ...]) -> tuple[list[list[str]], list[str]]:
    """Letters of every operand and of the result; the dimensions of ``...`` become letters of their own."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    for term in (*inputs, right):
        if not all(c.isascii() and c.isalpha() for c in term.replace("...", "", 1)):
            raise ShapeError(f"einsum: {term!r} in {equation!r}: subscripts are letters a to z, A to Z, and one '...' a term")
    if len(inputs) != len(ndims):
        raise ShapeError(f"einsum: {equation!r} names {len(inputs)} operands, {len(ndims)} were given")
    extra = [n - len(term.replace("...", "")) if "..." in term else 0 for term, n in zip(inputs, ndims, strict=True)]
    most = max(extra, default=0)
    dots = [chr(0xE000 + i) for i in range(most)]
    terms = []
    for term, n, k in zip(inputs, ndims, extra, strict=True):
        letters = list(term.replace("...", "".join(dots[most - k :] if k > 0 else [])))
        if len(letters) != n or k < 0:
            raise ShapeError(f"einsum: the subscripts {term!r} name {len(letters)} dimensions, the operand has {n}")
        terms.append(letters)
    if arrow:
        result = list(right.replace("...", "".join(dots)))
    else:
        every = [letter for term in terms for letter in term]
        result = dots + sorted({c for c in every if every.count(c) == 1 and c not in dots})
    unknown = [c for c in result if not any(c in term for term in terms)]
    if unknown or len(set(result)) != len(result):
        raise ShapeError(f"einsum: the output of {equation!r} names {unknown or result}, which no operand has once")
    return terms, result


def _merged(term: list[str], x: Tensor) -> tuple[list[str], Tensor]:
    """An operand that names a letter twice shows the diagonal of those dimensions."""
    term = list(term)
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        a = term.index(letter)
        b = term.index(letter, a + 1)
        x = shape.diagonal(x, 0, a, b)
        term = [c for i, c in enumerate(term) if i not in (a, b)] + [letter]
    return term, x


def _contract(left: list[str], a: Tensor, right: list[str], b: Tensor, later: set[str]) -> tuple[list[str], Tensor]:
    """Two operands as one batched matrix product; letters that nobody needs later are summed."""
    a, left = _summed(a, left, set(right) | later)
    b, right = _summed(b, right, set(left) | later)
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    size = {c: max(n, 1) if n else 0 for c, n in zip(right, b.shape, strict=True)}
    for c, n in zip(left, a.shape, strict=True):
        size[c] = max(size.get(c, 1), n) if n and size.get(c, 1) else 0
    x, y = _arranged(a, left, batch, [rows, inner], size), _arranged(b, right, batch, [inner, columns], size)
    product = matmul(x, y) if inner else apply(ops.MatMul, x, y)  # without a sum it is no product that autocast casts
    return batch + rows + columns, _shaped(product, [size[c] for c in batch + rows + columns])


def _summed(x: Tensor, term: list[str], needed: set[str]) -> tuple[Tensor, list[str]]:
    gone = [i for i, c in enumerate(term) if c not in needed]
    return (reduce.sum(x, gone), [c for c in term if c in needed]) if gone else (x, term)


def _arranged(x: Tensor, term: list[str], batch: list[str], groups: list[list[str]], size: dict[str, int]) -> Tensor:
    """``x`` with the letters of the batch first, then each group as one dimension: a view, unless a group is torn apart."""
    rest = [c for group in groups for c in group]
    x = _permuted(x, [term.index(c) for c in batch + rest])
    lead = list(x.shape[: len(batch)])  # the product broadcasts these by itself
    sizes = lead + [size[c] for c in rest]
    if list(x.shape) != sizes:
        x = shape.expand(x, *sizes)
    return _shaped(x, lead + [_count(size[c] for c in group) for group in groups])


def _permuted(x: Tensor, order: list[int]) -> Tensor:
    return x if order == list(range(x.ndim)) else shape.permute(x, *order)


def _shaped(x: Tensor, sizes: list[int]) -> Tensor:
    return x if list(x.shape) == sizes else shape.reshape(x, sizes)
