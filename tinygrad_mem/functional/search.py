"""Search, counts and distinct values: no gradients."""

from __future__ import annotations

import math
from typing import Any

from .. import dtypes
from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DataDependenceError, DTypeError, ShapeError
from ..ops import search as ops
from . import compare, creation, elementwise, gather, join, rearrange, reduce, rewrite, scan, shape
from .choose import nonzero
from .door import public
from .elementwise import Number
from .sort import argsort, sort


@public("torch")
def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor | Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The position at which each value can be inserted into a sorted line: int64, of input's shape. No gradient.

    Both are compared in their common dtype. nan is behind all numbers, where ``sort`` puts it, also in ``sorted_sequence``.
    (PyTorch's depends there on where its halving meets a nan: 0 is after ``[1, nan, nan]``.)

    Args:
        sorted_sequence: one line for all, or one (the last dimension) for each line of ``input``.
        right: the position after equal elements instead of before them; ``side``, "left" or "right", says the same.
        sorter: indices that sort ``sorted_sequence``, if it is not sorted.

    Raises:
        ShapeError: the leading dimensions differ, or the sorter has another shape.
        DTypeError: the sorter is not int64.
        ArgumentError: ``side`` and ``right`` disagree, or ``side`` is another word.
    """
    if side is not None and side not in ("left", "right"):
        raise ArgumentError(f"searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise ArgumentError("searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape:
            raise ShapeError(
                f"searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sorted_sequence.shape)} and got sorter tensor {list(sorter.shape)}"
            )
        if sorter.dtype != dtypes.int64:
            raise DTypeError(f"searchsorted(): sorter must be a tensor of long dtype but got dtype {sorter.dtype}")
        sorted_sequence = gather.gather(sorted_sequence, -1, sorter)
    return _search("searchsorted", sorted_sequence, input, right or side == "right", out_int32)


@public("torch")
def bucketize(input: Tensor | Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The interval between sorted boundaries that contains each value: int64. No gradient. Raises: as :func:`searchsorted`.

    Args:
        right: ``boundaries[i - 1] <= value < boundaries[i]`` instead of ``boundaries[i - 1] < value <= boundaries[i]``.
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize(): boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _search("bucketize", boundaries, input, right, out_int32)


def _search(name: str, line: Tensor, input: Tensor | Number, right: bool, out_int32: bool) -> Tensor:
    if not line.ndim:
        raise ShapeError(f"{name}(): boundaries tensor should have positive dimension, but got 0 dimension")
    if not isinstance(input, Tensor):
        if line.ndim > 1:
            raise ShapeError(f"{name}(): a number is looked up in one line: boundaries have shape {list(line.shape)}")
        common = dtypes.result_type(line.array, input)
        value = creation.tensor(input, dtype=common, device=line.device)
    elif line.ndim > 1 and (line.ndim != input.ndim or line.shape[:-1] != input.shape[:-1]):
        raise ShapeError(
            f"{name}(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input "
            f"value tensor must match, but we got boundaries tensor {list(line.shape)} and input value tensor "
            f"{list(input.shape)}"
        )
    else:
        common = dtypes.result_type(line.array, input.array)
        value = input.detach().to(common)
    if common == dtypes.bool:
        raise DTypeError(f"{name}(): not implemented for bool: convert the boundaries with .int()")
    dtype = dtypes.int32 if out_int32 else dtypes.int64
    return apply(ops.SearchSorted, line.detach().to(common), value, right=bool(right), dtype=dtype)


@public("torch")
def isin(
    elements: Tensor | Number, test_elements: Tensor | Number, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """bool, of elements' shape: True where an element is one of ``test_elements``. No gradient.

    Raises:
        ArgumentTypeError: both are numbers.
        DTypeError: they are bools.
    """
    given = [x for x in (elements, test_elements) if isinstance(x, Tensor)]
    if not given:
        raise ArgumentTypeError("isin(): At least one of elements and test_elements must be a Tensor, found two numbers")
    common = dtypes.result_type(*[x.array if isinstance(x, Tensor) else x for x in (elements, test_elements)])
    if any(x.dtype == dtypes.bool for x in given):
        raise DTypeError("Unsupported input type encountered for isin(): bool; convert it with .byte()")
    device = given[0].device
    values, tests = [
        x.detach().to(common) if isinstance(x, Tensor) else creation.tensor(x, dtype=common, device=device)
        for x in (elements, test_elements)
    ]
    if not tests.numel():
        return creation.full(values.shape, bool(invert), dtype=dtypes.bool, device=device)
    line = sort(shape.reshape(tests, -1)).values
    place = rewrite.clamp_(apply(ops.SearchSorted, line, values, right=False, dtype=dtypes.int64), max=line.numel() - 1)
    found = compare.eq(gather.take(line, place), values)
    return compare.logical_not(found) if invert else found


@public("torch", "Tensor")
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of ``bins`` equal intervals from ``min`` to ``max``, in input's dtype. No gradient.

    If ``min`` equals ``max``, the smallest and the largest element are used; the last interval includes ``max``. The
    intervals of halves are those of the same numbers in float32. (PyTorch rounds each step to a half: an element near an edge
    is counted beside its interval, and no count exceeds 2,048 or 256.)

    Raises:
        ArgumentError: no bins, ``max`` below ``min``, or bounds that are not finite.
        DTypeError: bools, bytes and 16 bits; on the CPU, as in PyTorch, all integers.
    """
    if bins <= 0:
        raise ArgumentError(f"histc(): bins must be > 0, found {bins}")
    if min > max:
        raise ArgumentError(f"histc(): max must be larger than min, found {min} and {max}")
    if not (math.isfinite(min) and math.isfinite(max)):
        raise ArgumentError(f"histc: range of [{min}, {max}] is not finite")
    if not input.is_floating_point() and (input.device.kind == "cpu" or input.dtype not in (dtypes.int32, dtypes.int64)):
        raise DTypeError(f"histc: not implemented for {input.dtype}; convert it with .float(), or use bincount")
    return apply(ops.Histogram, input.detach(), bins=int(bins), low=float(min), high=float(max))


@public("torch", "Tensor")
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """Values (or slices along ``dim``) that differ from the one before; also the inverse and the counts if asked. No gradient.

    Raises:
        DataDependenceError: on device ``meta``: the shape depends on values.
        DimensionError: ``dim`` is outside the tensor.
    """
    if input.is_meta:
        raise DataDependenceError(
            "unique_consecutive: the number of results depends on values, and a tensor on meta or in a prediction has none"
        )
    x = input.detach()
    whole = shape.reshape(x, -1) if dim is None else x
    axis = 0 if dim is None else normalize_dim(dim, x.ndim)
    size = whole.size(axis)
    late, early = [shape.narrow(whole, axis, at, max(size - 1, 0)) for at in (min(1, size), 0)]
    differs = compare.ne(late, early)
    if whole.ndim > 1:
        differs = reduce.any(differs, [a for a in range(whole.ndim) if a != axis])
    new = join.cat([creation.ones(min(size, 1), dtype=dtypes.bool, device=x.device), differs])
    first = shape.reshape(nonzero(new), -1)
    result: list[Tensor] = [gather.index_select(whole, axis, first)]
    if return_inverse:
        inverse = elementwise.sub(scan.cumsum(new, 0), 1)
        result.append(shape.reshape(inverse, x.shape) if dim is None else inverse)
    if return_counts:
        result.append(rearrange.diff(first, append=creation.full((1,), size, dtype=dtypes.int64, device=x.device)))
    return tuple(result) if len(result) > 1 else result[0]


@public("torch", "Tensor")
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The distinct values (or slices along ``dim``), in order; also the inverse and the counts if asked. No gradient.

    Raises:
        DataDependenceError: on device ``meta``: the shape depends on values.
        DimensionError: ``dim`` is outside the tensor.
        ShapeError: another dimension than ``dim`` has no elements, so there is nothing to compare.
    """
    if input.is_meta:
        raise DataDependenceError(
            "unique: the number of results depends on values, and a tensor on meta or in a prediction has none"
        )
    x = input.detach()
    axis = 0 if dim is None else normalize_dim(dim, x.ndim)
    whole = shape.reshape(x, -1) if dim is None else x
    order = _order_of_slices(whole, axis)
    found, places, counts = unique_consecutive(
        gather.index_select(whole, axis, order), True, True, None if dim is None else axis
    )
    result = [found]
    if return_inverse:
        inverse = gather.scatter(creation.empty_like(places), 0, order, places)
        result.append(shape.reshape(inverse, x.shape) if dim is None else inverse)
    if return_counts:
        result.append(counts)
    return tuple(result) if len(result) > 1 else found


def _order_of_slices(x: Tensor, axis: int) -> Tensor:
    """Indices along ``axis`` that put slices in order: by their first elements, then by their second ones, ..."""
    count = x.size(axis)
    if x.ndim > 1 and not x.numel() and count:
        raise ShapeError(f"unique: slices along dimension {axis} of a tensor of shape {list(x.shape)} have no elements")
    columns = shape.reshape(shape.movedim(x, axis, 0), (count, -1 if count else 1))
    order = argsort(columns[:, -1])
    for column in reversed(range(columns.size(1) - 1)):  # the sort is stable: equal elements keep their order
        order = order[argsort(columns[:, column][order])]
    return order
