"""Reading, writing and adding entries of one dimension by a tensor of indices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DimensionError, DTypeError, NotOfferedError, ShapeError
from ..ops import index as ops
from ..ops.base import refuse_bools
from ..ops.scatter_reduce import ScatterReduce
from . import elementwise, rewrite, shape
from .choose import one_value
from .creation import tensor
from .door import WIDEST, public
from .elementwise import Number
from .index import ends, same_dtype, within


def _line(value: Any) -> Any:
    """A 0-d tensor as a vector of one entry: a view."""
    return shape.reshape(value, (1,)) if isinstance(value, Tensor) and value.ndim == 0 else value


def _of_lines(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator: ``function`` treats 0-d tensors (input, index or source) as vectors of one entry."""

    @functools.wraps(function)
    def of_lines(input: Tensor, dim: int, index: Tensor, *rest: Any, **options: Any) -> Tensor:
        if input.ndim > 1 or (input.ndim and index.ndim):
            return function(input, dim, index, *rest, **options)
        named = {name: _line(value) for name, value in options.items()}
        out = function(_line(input), dim, _line(index), *map(_line, rest), **named)
        return input if function.__name__.endswith("_") else shape.reshape(out, input.shape)

    return of_lines


def _along(input: Tensor, dim: int, index: Tensor, name: str, negative: bool = False) -> tuple[int, Tensor]:
    axis = normalize_dim(dim, input.ndim)
    if index.dtype not in (dtypes.int64, dtypes.int32) and index.numel():
        raise DTypeError(f"{name}(): Expected dtype int32/int64 for index, found {index.dtype}; use index.long()")
    index = index.to(dtypes.int64)
    if index.ndim != input.ndim:
        raise ShapeError(f"{name}(): Index tensor must have the same number of dimensions as input tensor, found {index.ndim}")
    for a in range(input.ndim):
        if a != axis and index.size(a) > input.size(a):
            raise ShapeError(
                f"Size does not match at dimension {a} expected index {list(index.shape)} to be no larger than self "
                f"{list(input.shape)} apart from dimension {axis}"
            )
    found = within(index, input.size(axis), axis, negative)
    return axis, elementwise.remainder(found, max(input.size(axis), 1)) if negative else found


def _enough(input: Tensor, axis: int, index: Tensor, src: Any, name: str) -> None:
    """Check that the source has an element for each element of the index."""
    if not isinstance(src, Tensor):
        return
    if src.ndim != index.ndim:
        raise ShapeError(f"{name}(): Index tensor must have the same number of dimensions as src tensor, found {src.ndim}")
    if any(i > n for i, n in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(
            f"Expected index {list(index.shape)} to be no larger than self {list(input.shape)} apart from dimension {axis} "
            f"and to be no larger size than src {list(src.shape)}"
        )


@public("torch", "Tensor")
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """``out[i][j] = input[index[i][j]][j]`` for ``dim`` 0. Saves: index.

    Raises:
        NotOfferedError: ``sparse_grad`` is ``True``.
    """
    if sparse_grad:
        raise NotOfferedError("gather: sparse_grad=True is not offered: the input's gradient is dense, as large as the input")
    if index.numel():
        axis, places = _along(_line(input), dim, _line(index), "gather")
        out = apply(ops.Gather, _line(input), places, axis=axis)
    else:  # of any dimensions and dtype, as in PyTorch
        normalize_dim(dim, input.ndim)
        out = apply(ops.Gather, shape.reshape(input, (-1,)), shape.reshape(index.to(dtypes.int64), (-1,)), axis=0)
    return out if out.ndim == index.ndim else shape.reshape(out, index.shape)


@public("torch", "Tensor")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """:func:`gather` with broadcasting of the other dimensions; negative indices count from the end.

    Raises:
        ShapeError: the two have different numbers of dimensions.
    """
    if dim is None:
        return take_along_dim(input.reshape(-1), indices.reshape(-1), 0)
    if input.ndim != indices.ndim:
        raise ShapeError(
            "take_along_dim(): input and indices should have the same number of dimensions, "
            f"found {list(input.shape)} and {list(indices.shape)}"
        )
    axis = normalize_dim(dim, input.ndim)
    wanted = list(np.broadcast_shapes(*[[1 if a == axis else n for a, n in enumerate(x.shape)] for x in (input, indices)]))
    both = []
    for x in (input, indices):
        sizes = list(wanted)
        sizes[axis] = x.size(axis)
        both.append(x.expand(*sizes))
    axis, places = _along(both[0], axis, both[1], "take_along_dim", negative=True)
    return apply(ops.Gather, both[0], places, axis=axis)


@public("torch", "Tensor")
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Number | None = None,
    *,
    value: Number | None = None,
    reduce: str | None = None,
) -> Tensor:
    """``out[index[i][j]][j] = src[i][j]`` for ``dim`` 0, on a copy. Saves: index."""
    return scatter_(input.clone(), dim, index, src, value=value, reduce=reduce)


@public("Tensor")
@_of_lines
def scatter_(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Number | None = None,
    *,
    value: Number | None = None,
    reduce: str | None = None,
) -> Tensor:
    """In-place :func:`scatter`; ``reduce`` may be ``"add"``.

    Raises:
        ValueError: another reduction.
        ShapeError: the index is larger than the source.
    """
    if reduce not in (None, "add"):
        raise ArgumentError(f"scatter: reduce must be None or 'add', found {reduce!r}; see scatter_reduce")
    axis, index = _along(input, dim, index, "scatter")
    if src is None and value is None:
        raise ArgumentTypeError("scatter_(): expected src, a tensor, or value, a number; found neither")
    _enough(input, axis, index, src, "scatter")
    return apply_(ops.Scatter, input, index, value if src is None else src, axis=axis, add=reduce == "add")


@public("Tensor")
@_of_lines
def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input[index[i][j]][j] += src[i][j]`` for ``dim`` 0. Saves: index.

    Raises:
        ArgumentTypeError: the source is not a tensor.
        ShapeError: the index is larger than the source.
    """
    axis, index = _along(input, dim, index, "scatter_add")
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"scatter_add_(): argument 'src' must be Tensor, not {type(src).__name__}")
    _enough(input, axis, index, src, "scatter_add")
    return apply_(ops.Scatter, input, index, src, axis=axis, add=True)


@public("torch", "Tensor", cuda=WIDEST)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """:func:`scatter_add_` on a copy."""
    return scatter_add_(input.clone(), dim, index, src)


_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _scatter_reduced(
    name: str, apply: Any, input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    axis, index = _along(input, dim, index, "scatter_reduce")
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"{name}(): argument 'src' must be Tensor, not {type(src).__name__}")
    _enough(input, axis, index, src, "scatter_reduce")
    if reduce not in _REDUCTIONS:
        raise ArgumentError(f"{name}(): reduce argument must be one of {', '.join(_REDUCTIONS)}, got {reduce!r}")
    if reduce == "mean":
        refuse_bools(f"{name}: mean", input.array)
    return apply(ScatterReduce, input, index, src, axis=axis, reduce=reduce, include_self=bool(include_self))


@public("Tensor")
@_of_lines
def scatter_reduce_(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Reduce the elements of ``src`` that ``index`` sends to one place, with the element there: sum, prod, mean, amax or amin.

    Args:
        include_self: whether the element there is part of the reduction.

    Saves: index; input and src too for prod; these and the output for amax and amin.

    Raises:
        ArgumentError: another reduction.
        ArgumentTypeError: ``src`` is not a tensor.
        ShapeError, DTypeError, DimensionError: as :func:`scatter_add_`.
    """
    return _scatter_reduced("scatter_reduce_", apply_, input, dim, index, src, reduce, include_self)


@public("torch", "Tensor")
@_of_lines
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """:func:`scatter_reduce_` into a new tensor. Saves: as :func:`scatter_reduce_`."""
    return _scatter_reduced("scatter_reduce", apply, input, dim, index, src, reduce, include_self)


@public("torch", "Tensor")
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Entries of ``dim`` by a vector of indices. Saves: index."""
    axis = normalize_dim(dim, input.ndim)
    if index.ndim > 1 or index.dtype.kind not in "iu":
        raise DimensionError("index_select(): Index is supposed to be a vector of integers")
    if input.ndim == 0:
        if index.numel() != 1:
            raise DimensionError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
        return shape.reshape(index_select(_line(input), 0, index), ())
    found = within(index.to(dtypes.int64).reshape(-1), input.size(axis), axis, negative=False)
    if axis == 0:
        return apply(ops.Take, input, found)
    moved = shape.transpose(input, 0, axis)
    return shape.transpose(apply(ops.Take, moved, found), 0, axis).contiguous()


_ONE_VALUE: Any = object()  # instead of a source: one value


def _entries(name: str, input: Tensor, dim: int, index: Tensor, source: Any) -> tuple[Tensor, tuple]:
    """The index, checked against input and source, and the key of its entries of ``dim``."""
    axis = normalize_dim(dim, input.ndim)
    if index.dtype not in (dtypes.int64, dtypes.int32):
        raise DTypeError(f"{name}(): Expected dtype int32/int64 for index but got: {index.dtype}; use index.long()")
    if index.ndim > 1:
        raise DimensionError(f"{name}(): Index is supposed to be a vector, but got {list(index.shape)}")
    if source is not _ONE_VALUE:
        same_dtype(name, input, source)
        wanted = [index.numel() if a == axis else n for a, n in enumerate(input.shape)]
        if list(source.shape) != wanted and (source.ndim or index.numel() != 1 or input.ndim > 1):
            raise DimensionError(
                f"{name}(): expected source to have one entry of dim {axis} an index, and self's shape elsewhere: {wanted} for "
                f"{index.numel()} indices into {list(input.shape)}, found {list(source.shape)}"
            )
    found = within(shape.reshape(index.to(dtypes.int64), (-1,)), input.size(axis), axis, negative=source is _ONE_VALUE)
    return found, tuple((0,) if a == axis else slice(None) for a in range(input.ndim))


@public("Tensor")
@_of_lines
def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """``input`` entries of ``dim`` += ``alpha * source``. Saves: index.

    Raises:
        ShapeError, DTypeError, DimensionError: index and source differ from input in dtype, or in shape outside of ``dim``.
        DTypeError: alpha is floating, and the input is not.
    """
    found, key = _entries("index_add_", input, dim, index, source)
    value = elementwise.times(input, source, alpha)
    return apply_(ops.IndexPut, input, value, found, key=key, accumulate=True)


@public("torch", "Tensor")
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """:func:`index_add_` on a copy."""
    return index_add_(input.clone(), dim, index, source, alpha=alpha)


@public("Tensor")
@_of_lines
def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``input`` entries of ``dim`` = ``source``. Saves: index. Raises: as :func:`index_add_`."""
    found, key = _entries("index_copy_", input, dim, index, source)
    return apply_(ops.IndexPut, input, source, found, key=key, accumulate=False)


@public("Tensor")
def index_fill_(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """``input`` entries of ``dim`` = ``value``. Saves: index. Raises: as :func:`index_add_`; ShapeError: several values."""
    if not input.ndim:
        index_fill_(_line(input), dim, index, value)
        return input
    found, key = _entries("index_fill_", input, dim, index, _ONE_VALUE)
    whole = isinstance(value, Tensor)
    if whole and one_value("index_fill_", value, input.dtype).requires_grad:  # an entry that appears twice counts once
        chosen = index_fill_(tensor([False] * input.size(dim), dtype=dtypes.bool, device=input.device), 0, index, True)
        lone = [-1 if a == normalize_dim(dim, input.ndim) else 1 for a in range(input.ndim)]
        return rewrite.masked_fill_(input, shape.reshape(chosen, lone), value)
    number = value if whole else tensor(dtypes.fitting(value, input.dtype), dtype=input.dtype, device=input.device)
    return apply_(ops.IndexPut, input, number, found, key=key, accumulate=False)


@public("torch", "Tensor", cpu=WIDEST)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """:func:`index_copy_` on a copy."""
    return index_copy_(input.clone(), dim, index, source)  # type: ignore[attr-defined]


@public("torch", "Tensor")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """:func:`index_fill_` on a copy."""
    return index_fill_(input.clone(), dim, index, value)  # type: ignore[attr-defined]


@public("torch", "Tensor")
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements by position in row-major order. Saves: index. Raises: DTypeError: the index is not int64."""
    if index.dtype != dtypes.int64:
        raise DTypeError(f"take(): Expected a long tensor for index, but got {index.dtype}; convert it with .long()")
    flat = input.reshape(-1)
    return apply(ops.Take, flat, within(index, flat.numel(), 0))


@public("nn.functional")
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors in a new last dimension of ``num_classes``, int64.

    Raises:
        DTypeError: not integers.
        ValueError: a class is negative or too large.
    """
    if tensor.dtype != dtypes.int64:
        raise DTypeError(f"one_hot is only applicable to index tensor of type int64, found {tensor.dtype}")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    found = ends(tensor)
    if found and (found[0] < 0 or found[1] >= num_classes):
        raise ArgumentError(f"Class values must be non-negative and smaller than num_classes: found {found[0]} to {found[1]}")
    out = tensor.new_zeros(*tensor.shape, num_classes)
    return scatter_(out, -1, shape.unsqueeze(tensor, -1), value=1)
