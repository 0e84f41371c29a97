"""``einsum``: sums of products over letters, as batched matrix products; and ``bilinear``, which is such a sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .. import dtypes
from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import DimensionError, ShapeError
from ..ops import linalg as ops
from . import elementwise, reduce, shape
from .door import AS_IS, LOWER, WIDEST, public
from .linalg import matmul


@public("torch", "nn.functional", cpu=AS_IS, cuda=WIDEST)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[k] = input1 @ weight[k] @ input2 + bias[k]``: (..., i), (..., j), (k, i, j) -> (..., k).

    Saves: what its parts save.

    Raises:
        ShapeError, DimensionError: the shapes do not fit.
    """
    if input1.ndim != input2.ndim:
        raise ShapeError(f"bilinear(): input dimensions do not match: got {input1.ndim} and {input2.ndim}")
    if input1.shape[:-1] != input2.shape[:-1] or weight.shape[1:] != (*input1.shape[-1:], *input2.shape[-1:]):
        raise ShapeError(
            "bilinear(): input batch dimensions do not match, or their sizes those of the weight: "
            f"found {list(input1.shape)} and {list(input2.shape)}, weight {list(weight.shape)}"
        )
    if bias is not None and not bias.ndim:
        raise DimensionError("bilinear(): Dimension specified as 0 but the bias has no dimensions")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"bilinear(): bias size does not match weight size: got {list(bias.shape)} but expected {list(weight.shape[:1])}"
        )
    out = einsum("...i,kij,...j->...k", input1, weight, input2)
    return out if bias is None else elementwise.add(out, bias)


@public("torch", cuda=LOWER)
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products over the letters that are not in the result; ``...`` means broadcast dimensions.

    Pairs are contracted from the left, each as one batched matrix product. ``einsum(x, [0, 1], y, [1, 2], [0, 2])`` gives
    the letters as numbers, and ``...`` as an ellipsis.

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
    first, *rest = [_take_diagonals(term, x) for term, x in zip(terms, tensors, strict=True)]
    if rest:
        first, *rest = _in_one_dtype([_drop_ones(term, x, result) for term, x in (first, *rest)], result)
    for i, (term, x) in enumerate(rest):
        later = set(result).union(*[t for t, _ in rest[i + 1 :]])
        first = _contract(*first, term, x, later)
    term, x = first
    x, term = _sum_out(x, term, set(result))
    x = _permute(x, [term.index(letter) for letter in result])
    return shape.expand(x, *[sizes[letter] for letter in result]) if list(x.shape) != [sizes[c] for c in result] else x


def _from_sublists(*parts: Any) -> tuple[str, tuple]:
    """The equation and the operands, from the form with lists of numbers."""

    def letters(numbers: Sequence) -> str:
        if any(n is not ... and not 0 <= n < 52 for n in numbers):
            raise ShapeError(f"einsum: subscripts in lists must be in the range [0, 52), found {list(numbers)}")
        return "".join("..." if n is ... else (chr(65 + n) if n < 26 else chr(71 + n)) for n in numbers)

    operands = tuple(parts[0 : len(parts) - len(parts) % 2 : 2])
    equation = ",".join(letters(numbers) for numbers in parts[1::2])
    return equation + ("->" + letters(parts[-1]) if len(parts) % 2 else ""), operands


@lru_cache(maxsize=256)
def _parse(equation: str, ndims: tuple[int, ...]) -> tuple[list[list[str]], list[str]]:
    """The letters of every operand and of the result; each dimension of ``...`` gets a new letter."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    for term in (*inputs, right):
        if not all(c.isascii() and c.isalpha() for c in term.replace("...", "", 1)):
            raise ShapeError(f"einsum: {term!r} in {equation!r}: subscripts are letters a to z, A to Z, and one '...' a term")
    if len(inputs) != len(ndims):
        raise ShapeError(f"einsum: {equation!r} names {len(inputs)} operands, found {len(ndims)}")
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
        raise ShapeError(
            f"einsum: the output of {equation!r} names {unknown or result}: each must be in an operand, and once in the output"
        )
    return terms, result


def _take_diagonals(term: list[str], x: Tensor) -> tuple[list[str], Tensor]:
    """The operand with the diagonal of dimensions that have the same letter."""
    term = list(term)
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        a = term.index(letter)
        b = term.index(letter, a + 1)
        if x.shape[a] != x.shape[b]:  # within an operand a 1 is not broadcast
            raise ShapeError(f"einsum: subscript {letter!r} is repeated for an operand of sizes {x.shape[a]} and {x.shape[b]}")
        x = shape.diagonal(x, 0, a, b)
        term = [c for i, c in enumerate(term) if i not in (a, b)] + [letter]
    return term, x


def _drop_ones(term: list[str], x: Tensor, result: list[str]) -> tuple[list[str], Tensor]:
    """The operand without dimensions of size 1 that are not in the result: what they broadcast to is summed elsewhere."""
    kept = [c for c, n in zip(term, x.shape, strict=True) if n != 1 or c in result]
    return kept, _reshape(x, [n for c, n in zip(term, x.shape, strict=True) if c in kept])


def _in_one_dtype(parts: list[tuple[list[str], Tensor]], result: list[str]) -> list[tuple[list[str], Tensor]]:
    """The operands; of whole numbers, the first one as int64 if a letter of one operand is summed: that sum is int64, and a
    product before it would wrap round in fewer bits.
    """
    once = Counter(letter for term, _ in parts for letter in term)
    if any(once[c] == 1 for c in once.keys() - set(result)) and not any(x.is_floating_point() for _, x in parts):
        (term, x), *rest = parts
        return [(term, x.to(dtypes.int64)), *rest]
    return parts


def _contract(left: list[str], a: Tensor, right: list[str], b: Tensor, later: set[str]) -> tuple[list[str], Tensor]:
    """Two operands as one batched matrix product; letters that are not needed later are summed."""
    a, left = _sum_out(a, left, set(right) | later)
    b, right = _sum_out(b, right, set(left) | later)
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    if a.dtype != b.dtype and (not inner or not (a.is_floating_point() or b.is_floating_point())):  # sums are int64
        common = dtypes.promote_types(a.dtype, b.dtype)
        a, b = a.to(common), b.to(common)
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    size = {c: max(n, 1) if n else 0 for c, n in zip(right, b.shape, strict=True)}
    for c, n in zip(left, a.shape, strict=True):
        size[c] = max(size.get(c, 1), n) if n and size.get(c, 1) else 0
    x, y = _arrange(a, left, batch, [rows, inner], size), _arrange(b, right, batch, [inner, columns], size)
    product = matmul(x, y) if inner else apply(ops.MatMul, x, y)  # without a sum: autocast does not cast it
    return batch + rows + columns, _reshape(product, [size[c] for c in batch + rows + columns])


def _sum_out(x: Tensor, term: list[str], needed: set[str]) -> tuple[Tensor, list[str]]:
    """The operand summed over the letters that are not needed."""
    gone = [i for i, c in enumerate(term) if c not in needed]
    return (reduce.sum(x, gone), [c for c in term if c in needed]) if gone else (x, term)


def _arrange(x: Tensor, term: list[str], batch: list[str], groups: list[list[str]], size: dict[str, int]) -> Tensor:
    """``x`` with the batch's letters first, then each group as one dimension: a view if each group's are adjacent."""
    rest = [c for group in groups for c in group]
    x = _permute(x, [term.index(c) for c in batch + rest])
    lead = list(x.shape[: len(batch)])  # the product broadcasts these
    sizes = lead + [size[c] for c in rest]
    if list(x.shape) != sizes:
        x = shape.expand(x, *sizes)
    return _reshape(x, lead + [math.prod(size[c] for c in group) for group in groups])


def _permute(x: Tensor, order: list[int]) -> Tensor:
    return x if order == list(range(x.ndim)) else shape.permute(x, *order)


def _reshape(x: Tensor, sizes: list[int]) -> Tensor:
    return x if list(x.shape) == sizes else shape.reshape(x, sizes)
