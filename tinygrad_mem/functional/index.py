"""Indexing, read and write. Basic keys (integers, slices, None, ...) give views; tensors, lists and masks give copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DataDependenceError, DimensionError, DTypeError, ShapeError
from ..ops import index as ops
from ..ops import shape as shape_ops
from . import elementwise, shape
from .creation import tensor
from .elementwise import Number


def _expanded(input: Tensor, key: Any) -> list:
    """The key as a list with ``...`` replaced by slices, and sequences and arrays by tensors."""
    parts = list(key) if isinstance(key, tuple) else [key]
    made: list[Any] = []
    for part in parts:
        if isinstance(part, (list, np.ndarray, range)):
            part = np.asarray(part)
            if part.dtype.kind in "iu" or part.size == 0:
                part = part.astype(np.int64) if part.ndim else int(part)
        if isinstance(part, Tensor) and part.ndim == 0 and part.dtype.kind in "iu" and not part.is_meta:
            part = int(part.item())
        made.append(part)
    used = sum(p.ndim if _is_mask(p) else 0 if p is None or p is Ellipsis or isinstance(p, bool) else 1 for p in made)
    if used > input.ndim:
        raise DimensionError(f"too many indices for tensor of dimension {input.ndim}: found {used}")
    dots = [i for i, p in enumerate(made) if p is Ellipsis]
    if len(dots) > 1:
        raise DimensionError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(made)
    return _on_device(input, made[:at] + [slice(None)] * (input.ndim - used) + made[at + 1 :])


def _on_device(input: Tensor, parts: list) -> list:
    """Arrays as tensors on the input's device; what they hold is checked here, where it is known on every device."""
    axis = 0
    for i, part in enumerate(parts):
        if isinstance(part, np.ndarray):
            if part.dtype == np.int64 and part.size:
                size = input.array.shape[axis]
                refuse_outside(int(part.min()), int(part.max()), size, axis)
                part = np.where(part < 0, part + size, part)
            parts[i] = tensor(part, device=input.device)
        if part is not None and not isinstance(part, bool):
            axis += part.ndim if _is_mask(part) else 1
    return parts


def _is_mask(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray)) and part.dtype in (dtypes.bool, dtypes.uint8)


def _checked(input: Tensor, parts: list) -> list:
    """Integers within bounds, slices with positive steps: in PyTorch's words where not."""
    axis = 0
    for part in parts:
        if isinstance(part, bool) or part is None:
            continue
        if isinstance(part, slice):
            if part.step is not None and part.step <= 0:
                raise ArgumentError("step must be greater than zero")
        elif not isinstance(part, Tensor):
            try:
                number = part.__index__()
            except AttributeError:
                raise ArgumentTypeError(
                    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
                    f"(got {type(part).__name__})"
                ) from None
            size = input.array.shape[axis]
            if not -size <= number < size:
                raise DimensionError(f"index {number} is out of bounds for dimension {axis} with size {size}")
        axis += part.ndim if isinstance(part, Tensor) and _is_mask(part) else 1
    return parts


def _basic(input: Tensor, parts: list) -> tuple[Tensor, list]:
    """Apply integers, slices and new axes as a view; what is left has slices and index tensors only."""
    key, left = [], []
    for part in parts:
        if isinstance(part, Tensor):
            count = part.ndim if _is_mask(part) else 1
            key += [slice(None)] * count
            left.append(part)
        elif part is None or part is True:
            key.append(None)
            left.append(slice(None))
        elif part is False:
            raise DTypeError("indexing with False is not offered: use narrow(..., 0, 0)")
        else:
            key.append(part if isinstance(part, slice) else part.__index__())
            if isinstance(part, slice):
                left.append(slice(None))
    if all(isinstance(k, slice) and k == slice(None) for k in key):
        return input, left
    return apply(shape_ops.Slice, input, key=tuple(key)), left


def _indices(input: Tensor, left: list) -> tuple[list[int], list[Tensor]]:
    """Axes that are indexed, and an int64 index tensor each, wrapped to positive and checked."""
    axes, found, axis = [], [], 0
    for part in left:
        if not isinstance(part, Tensor):
            axis += 1
            continue
        if part.dtype.kind not in "iub":
            raise DimensionError(f"tensors used as indices must be long, int, byte or bool tensors, found {part.dtype}")
        if _is_mask(part):
            if tuple(part.shape) != tuple(input.shape[axis : axis + part.ndim]):
                raise DimensionError(
                    f"The shape of the mask {list(part.shape)} at index {axis} does not match the shape of the indexed tensor "
                    f"{list(input.shape)} at index {axis}"
                )
            for positions in nonzero(part, as_tuple=True):
                axes.append(axis)
                found.append(positions.to(input.device))
                axis += 1
        else:
            axes.append(axis)
            found.append(wrapped(part.to(dtype=dtypes.int64, device=input.device), input.size(axis), axis))
            axis += 1
    broadcast_shape("indexing", DimensionError, *found)
    return axes, found


def broadcast_shape(name: str, error: type[Exception], *tensors: Tensor) -> tuple[int, ...]:
    """The common shape of the tensors.

    Raises:
        error: they do not broadcast.
    """
    try:
        return tuple(np.broadcast_shapes(*[tuple(t.shape) for t in tensors]))
    except ValueError:
        shapes = ", ".join(str(list(t.shape)) for t in tensors)
        raise error(f"shape mismatch: {name} tensors could not be broadcast together with shapes {shapes}") from None


def wrapped(index: Tensor, size: int, dim: int, negative: bool = True) -> Tensor:
    """``index`` with negative entries counted from the end, checked where there are values.

    Raises:
        DimensionError: an entry is out of bounds.
    """
    if index.numel() == 0:
        return index
    low, high = index.min(), index.max()
    if index.is_meta:
        return index
    low, high = low.item(), high.item()
    refuse_outside(low, high, size, dim, negative)
    return index if low >= 0 else elementwise.where(elementwise.lt(index, 0), elementwise.add(index, size), index)


def refuse_outside(low: int, high: int, size: int, dim: int, negative: bool = True) -> None:
    """Indices from ``low`` to ``high`` are within bounds.

    Raises:
        DimensionError: one is not.
    """
    if high >= size or low < (-size if negative else 0):
        raise DimensionError(f"index {high if high >= size else low} is out of bounds for dimension {dim} with size {size}")


def getitem(input: Tensor, key: Any) -> Tensor:
    """``input[key]``. Saves: the index, joined into one where there are several.

    Raises:
        DimensionError: out of bounds, or too many indices.
        DataDependenceError: a mask on device meta.
    """
    view, left = _basic(input, _checked(input, _expanded(input, key)))
    if not any(isinstance(part, Tensor) for part in left):
        return view if view is not input else apply(shape_ops.Slice, input, key=(...,))
    axes, indices = _indices(view, left)
    common = tuple(np.broadcast_shapes(*[tuple(i.shape) for i in indices]))
    sizes = [view.size(a) for a in axes]
    flat = indices[0]
    for size, index in zip(sizes[1:], indices[1:], strict=True):
        flat = elementwise.add(elementwise.mul(flat, size), index)
    rest = [a for a in range(view.ndim) if a not in axes]
    moved = shape.permute(view, *axes, *rest) if axes != list(range(len(axes))) else view
    rows = shape.reshape(moved, (_product(sizes), *[view.size(a) for a in rest])) if len(axes) > 1 else moved
    taken = apply(ops.Take, rows, flat if tuple(flat.shape) == common else flat.expand(*common).contiguous())
    first = axes[0]
    if axes == list(range(first, first + len(axes))) and first:  # adjacent indices stay where they were
        n = len(common)
        order = [*range(n, n + first), *range(n), *range(n + first, taken.ndim)]
        taken = shape.permute(taken, *order).contiguous()
    return taken


def _product(sizes: Any) -> int:
    count = 1
    for n in sizes:
        count *= n
    return count


def setitem(input: Tensor, key: Any, value: Any) -> None:
    """``input[key] = value``, in place, with gradients for both. Saves: the indices.

    Raises:
        DTypeError: the key holds tensors, and the value is a tensor of another dtype.
    """
    given = value if isinstance(value, Tensor) else None
    parts = _checked(input, _expanded(input, key))
    if not isinstance(value, Tensor):
        value = tensor(value, dtype=input.dtype, device=input.device)
    value = value.to(device=input.device)
    if not any(isinstance(part, Tensor) for part in parts):
        view, _ = _basic(input, parts)
        if view is input:
            view = apply(shape_ops.Slice, input, key=(...,))
        while value.ndim > view.ndim and value.size(0) == 1:
            value = value.squeeze(0)
        view.copy_(value)
        return
    if given is not None and (given.ndim or not all(isinstance(part, Tensor) and part.dtype == dtypes.bool for part in parts)):
        _same_dtype("index_put_", input, given)
    view, left = _basic(input, parts)
    axes, indices = _indices(view, left)
    key = tuple((axes.index(a),) if a in axes else slice(None) for a in range(view.ndim))
    apply_(ops.IndexPut, view, value.to(dtype=input.dtype), *indices, key=key, accumulate=False)


def index_put_(input: Tensor, indices: tuple, values: Tensor, accumulate: bool = False) -> Tensor:
    """``input[indices] = values``, or ``+=`` with repeated entries adding up. Saves: the indices.

    Raises:
        DTypeError: the values are of another dtype.
    """
    _same_dtype("index_put_", input, values)
    parts = [shape.reshape(p, (1,)) if p.ndim == 0 else p for p in _tensors("index_put_", indices)]
    axes, found = _indices(input, _expanded(input, tuple(parts)))
    key = tuple((axes.index(a),) if a in axes else slice(None) for a in range(input.ndim))
    return apply_(ops.IndexPut, input, values, *found, key=key, accumulate=accumulate)


def _tensors(name: str, indices: Any) -> list[Tensor]:
    for i, index in enumerate(indices):
        if not isinstance(index, Tensor):
            raise ArgumentTypeError(f"{name}: expected Tensor as element {i} of the indices, but got {type(index).__name__}")
    return list(indices)


def _same_dtype(name: str, input: Tensor, source: Tensor) -> None:
    if source.dtype != input.dtype:
        raise DTypeError(f"{name}(): self and source expected to have the same dtype, but got {input.dtype} and {source.dtype}")


def index_put(input: Tensor, indices: tuple, values: Tensor, accumulate: bool = False) -> Tensor:
    """:func:`index_put_` on a copy."""
    return index_put_(input.clone(), indices, values, accumulate)


def _along(input: Tensor, dim: int, index: Tensor, name: str) -> tuple[int, Tensor]:
    axis = normalize_dim(dim, input.ndim)
    if index.dtype != dtypes.int64:
        raise DTypeError(f"{name}(): Expected dtype int64 for index, found {index.dtype}")
    if index.ndim != input.ndim:
        raise ShapeError(f"{name}(): Index tensor must have the same number of dimensions as input tensor, found {index.ndim}")
    for a in range(input.ndim):
        if a != axis and index.size(a) > input.size(a):
            raise ShapeError(
                f"Size does not match at dimension {a} expected index {list(index.shape)} to be no larger than self "
                f"{list(input.shape)} apart from dimension {axis}"
            )
    return axis, wrapped(index, input.size(axis) if input.ndim else 1, axis, negative=False)


def _enough(input: Tensor, axis: int, index: Tensor, src: Any, name: str) -> None:
    """A source has an element for each of the index."""
    if not isinstance(src, Tensor):
        return
    if src.ndim != index.ndim:
        raise ShapeError(f"{name}(): Index tensor must have the same number of dimensions as src tensor, found {src.ndim}")
    if any(i > n for i, n in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(
            f"Expected index {list(index.shape)} to be no larger than self {list(input.shape)} apart from dimension {axis} "
            f"and to be no larger size than src {list(src.shape)}"
        )


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """``out[i][j] = input[index[i][j]][j]`` for ``dim`` 0. Saves: index."""
    axis, index = _along(input, dim, index, "gather")
    if input.ndim == 0:
        return input.clone()
    return apply(ops.Gather, input, index, axis=axis)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """:func:`gather` with broadcasting of the other dimensions."""
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1))
    axis = normalize_dim(dim, input.ndim)
    wanted = list(np.broadcast_shapes(*[[1 if a == axis else n for a, n in enumerate(x.shape)] for x in (input, indices)]))
    both = []
    for x in (input, indices):
        sizes = list(wanted)
        sizes[axis] = x.size(axis)
        both.append(x.expand(*sizes))
    return gather(both[0], axis, both[1])


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


def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input[index[i][j]][j] += src[i][j]`` for ``dim`` 0. Saves: index.

    Raises:
        ArgumentTypeError: the source is no tensor.
        ShapeError: the index is larger than the source.
    """
    axis, index = _along(input, dim, index, "scatter_add")
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"scatter_add_(): argument 'src' must be Tensor, not {type(src).__name__}")
    _enough(input, axis, index, src, "scatter_add")
    return apply_(ops.Scatter, input, index, src, axis=axis, add=True)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """:func:`scatter_add_` on a copy."""
    return scatter_add_(input.clone(), dim, index, src)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Entries of ``dim`` by a vector of indices. Saves: index."""
    axis = normalize_dim(dim, input.ndim)
    if index.ndim > 1 or index.dtype.kind not in "iu":
        raise DimensionError("index_select(): Index is supposed to be a vector of integers")
    found = wrapped(index.to(dtypes.int64).reshape(-1), input.size(axis), axis, negative=False)
    if axis == 0:
        return apply(ops.Take, input, found)
    moved = shape.transpose(input, 0, axis)
    return shape.transpose(apply(ops.Take, moved, found), 0, axis).contiguous()


_ONE_VALUE: Any = object()  # instead of a source: one value


def _entries(name: str, input: Tensor, dim: int, index: Tensor, source: Any) -> tuple[Tensor, tuple]:
    """The index, checked against input and source, and the key of the entries of ``dim`` that it names."""
    axis = normalize_dim(dim, input.ndim)
    if index.dtype.name not in ("int64", "int32"):
        raise DTypeError(f"{name}(): Expected dtype int32/int64 for index but got: {index.dtype}; use index.long()")
    if index.ndim > 1:
        raise DimensionError(f"{name}(): Index is supposed to be a vector, but got {list(index.shape)}")
    if source is not _ONE_VALUE:
        _same_dtype(name, input, source)
        wanted = [index.numel() if a == axis else n for a, n in enumerate(input.shape)]
        if list(source.shape) != wanted and (source.ndim or index.numel() != 1 or input.ndim > 1):
            raise DimensionError(
                f"{name}(): expected source to have one entry of dim {axis} an index, and self's shape elsewhere: {wanted} for "
                f"{index.numel()} indices into {list(input.shape)}, found {list(source.shape)}"
            )
    found = wrapped(shape.reshape(index.to(dtypes.int64), (-1,)), input.size(axis), axis, negative=source is _ONE_VALUE)
    return found, tuple((0,) if a == axis else slice(None) for a in range(input.ndim))


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """``input`` entries of ``dim`` += ``alpha * source``. Saves: index.

    Raises:
        ShapeError, DTypeError, DimensionError: index and source are not of input's shape, but for ``dim``, and dtype.
    """
    found, key = _entries("index_add_", input, dim, index, source)
    value = source if alpha == 1 else elementwise.mul(source, alpha)
    return apply_(ops.IndexPut, input, value, found, key=key, accumulate=True)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """:func:`index_add_` on a copy."""
    return index_add_(input.clone(), dim, index, source, alpha=alpha)


def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``input`` entries of ``dim`` = ``source``. Saves: index. Raises: as :func:`index_add_`."""
    found, key = _entries("index_copy_", input, dim, index, source)
    return apply_(ops.IndexPut, input, source, found, key=key, accumulate=False)


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """``input`` entries of ``dim`` = ``value``. Saves: index. Raises: as :func:`index_add_`."""
    found, key = _entries("index_fill_", input, dim, index, _ONE_VALUE)
    number = value if isinstance(value, Tensor) else tensor(value, dtype=input.dtype, device=input.device)
    return apply_(ops.IndexPut, input, number, found, key=key, accumulate=False)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """:func:`index_copy_` on a copy."""
    return index_copy_(input.clone(), dim, index, source)  # type: ignore[attr-defined]


def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """:func:`index_fill_` on a copy."""
    return index_fill_(input.clone(), dim, index, value)  # type: ignore[attr-defined]


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements by position in row-major order. Saves: index.

    Raises:
        DTypeError: the index is not int64.
    """
    if index.dtype != dtypes.int64:
        raise DTypeError(f"take(): Expected a long tensor for index, but got {index.dtype}; convert it with .long()")
    flat = input.reshape(-1)
    return apply(ops.Take, flat, wrapped(index, flat.numel(), 0))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Elements where ``mask``, as a vector. Saves: the index of each, 8 bytes.

    Raises:
        DTypeError: the mask is not bool.
    """
    if mask.dtype != dtypes.bool:
        raise DTypeError(
            f"masked_select: expected BoolTensor for mask, found {mask.dtype}; compare it, or convert it with .bool()"
        )
    wanted = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return getitem(input.expand(*wanted), mask.expand(*wanted))


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of elements that are not zero, int64: (n, dims), or one vector a dimension.

    Raises:
        DataDependenceError: on device meta, where how many there are is not known.
    """
    if input.is_meta:
        raise DataDependenceError(
            "nonzero: how many elements are not zero depends on values, which device meta has not. "
            "Use where(condition, a, b) or masked_fill, whose shapes do not depend on values."
        )
    found = np.nonzero(np.atleast_1d(input.detach()._host()))
    if as_tuple:
        return tuple(tensor(f, device=input.device) for f in found)
    count = input.ndim
    return tensor(np.stack(found[:count], 1) if count else np.empty((len(found[0]), 0), np.int64), device=input.device)


def argwhere(input: Tensor) -> Tensor:
    """:func:`nonzero`."""
    return nonzero(input)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A last dimension of ``num_classes`` with 1 at the class, int64.

    Raises:
        DTypeError: not integers.
        ValueError: a class is negative or too large.
    """
    if tensor.dtype != dtypes.int64:
        raise DTypeError(f"one_hot is only applicable to index tensor of type int64, found {tensor.dtype}")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    if tensor.numel() and not tensor.is_meta:
        low, high = tensor.min().item(), tensor.max().item()
        if low < 0 or high >= num_classes:
            raise ArgumentError(f"Class values must be non-negative and smaller than num_classes: found {low} to {high}")
    out = tensor.new_zeros(*tensor.shape, num_classes)
    return scatter_(out, -1, shape.unsqueeze(tensor, -1), value=1)
