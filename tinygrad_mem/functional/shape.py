"""Views and rearrangements. A view shares memory: writing to it writes the original. Views save nothing for backward."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DimensionError, ShapeError
from ..ops import convert
from ..ops import shape as ops
from .door import public


def sizes_of(sizes: tuple) -> tuple[int, ...]:
    """The sizes, given as several numbers or as one sequence."""
    if len(sizes) == 1 and not isinstance(sizes[0], int) and hasattr(sizes[0], "__iter__") and getattr(sizes[0], "ndim", 1):
        sizes = tuple(sizes[0])
    try:
        return tuple(map(operator.index, sizes))
    except TypeError:
        found = ", ".join(type(n).__name__ for n in sizes)
        raise ArgumentTypeError(f"argument 'size' must be tuple of ints, but found elements of type {found}") from None


def _filled(input: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with a -1 replaced by the remaining size."""
    count = input.numel()
    if shape.count(-1) > 1:
        raise ShapeError(f"only one dimension can be inferred, found several -1 in {list(shape)}")
    if any(n < -1 for n in shape):
        raise ShapeError(f"invalid shape dimension {min(shape)} in {list(shape)}")
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if known == 0:
            raise ShapeError(f"cannot reshape tensor of {count} elements into shape {list(shape)}: the -1 can be any value")
        if count % known == 0:
            return tuple(count // known if n == -1 else n for n in shape)
    elif math.prod(shape) == count:
        return shape
    raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {count}")


@public("Tensor")
def view(input: Tensor, *shape: Any) -> Tensor:
    """The same memory in another shape; one -1 is inferred.

    Raises:
        ShapeError: the sizes do not fit, or the strides do not allow a view.
    """
    return apply(ops.View, input, shape=_filled(input, sizes_of(shape)))


@public("torch", "Tensor")
def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Another shape: a view if strides allow it, else a copy."""
    sizes = _filled(input, sizes_of(shape))
    if input.array.flags.c_contiguous:
        return apply(ops.View, input, shape=sizes)
    if ops._reshaped(input.array, sizes) is not None:
        return apply(ops.View, input, shape=sizes)
    return apply(ops.View, apply(convert.Clone, input), shape=sizes)


@public("Tensor")
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`view` with another tensor's shape."""
    return view(input, other.shape)


@public("Tensor")
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`reshape` to another tensor's shape."""
    return reshape(input, other.shape)


@public("torch", "Tensor")
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge dimensions ``start_dim`` to ``end_dim`` into one."""
    start, end = normalize_dim(start_dim, input.ndim), normalize_dim(end_dim, input.ndim)
    if start > end:
        raise ShapeError(f"flatten() has invalid args: start_dim cannot come after end_dim, found {start_dim} and {end_dim}")
    if input.ndim == 0:
        return reshape(input, 1)
    if start == end:
        return input
    return reshape(input, (*input.shape[:start], math.prod(input.shape[start : end + 1]), *input.shape[end + 1 :]))


@public("torch", "Tensor")
def ravel(input: Tensor) -> Tensor:
    """Flatten into one dimension: a view of contiguous memory, else a copy."""
    return reshape(input.contiguous(), -1)


@public("torch", "Tensor")
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dimension into several; one -1 is inferred. Raises: ShapeError: the sizes do not fit."""
    axis = normalize_dim(dim, input.ndim)
    sizes = list(sizes)
    if sizes.count(-1) > 1:
        raise ShapeError(f"only one dimension can be inferred, found several -1 in {sizes}")
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = input.size(axis) // max(known, 1)
    if math.prod(sizes) != input.shape[axis] or min(sizes, default=0) < 0:
        raise ShapeError(
            f"unflatten: Provided sizes {sizes} don't multiply up to the size of dim {dim} ({input.shape[axis]}) in the tensor"
        )
    return reshape(input, (*input.shape[:axis], *sizes, *input.shape[axis + 1 :]))


@public("torch", "Tensor")
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Remove dimensions of size 1: all, or the named ones."""
    if dim is None:
        chosen = set(range(input.ndim))
    else:
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        chosen = {normalize_dim(d, input.ndim) for d in dims}
        if len(chosen) != len(dims):
            raise ArgumentError(f"squeeze: dim {dims} appears multiple times in the list of dims")
    kept = tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in chosen)
    return apply(ops.View, input, shape=kept)


@public("torch", "Tensor")
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Insert a dimension of size 1 at ``dim``."""
    axis = normalize_dim(dim, input.ndim + 1)
    return apply(ops.Slice, input, key=(slice(None),) * axis + (None,)) if input.ndim else apply(ops.View, input, shape=(1,))


@public("torch", "Tensor")
def permute(input: Tensor, *dims: Any) -> Tensor:
    """Reorder the dimensions. Raises: ShapeError: the order does not name every dimension once."""
    axes = tuple(normalize_dim(d, input.ndim) for d in sizes_of(dims))
    if sorted(axes) != list(range(input.ndim)):
        raise ShapeError(
            f"permute: the order names each dimension once: expected {input.ndim} different numbers from 0 to "
            f"{input.ndim - 1}, found {list(sizes_of(dims))} for the shape {list(input.shape)}"
        )
    return apply(ops.Permute, input, axes=axes)


@public("torch", "Tensor", "torch.swapaxes", "torch.swapdims", "Tensor.swapaxes", "Tensor.swapdims")
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions."""
    a, b = normalize_dim(dim0, input.ndim), normalize_dim(dim1, input.ndim)
    axes = list(range(input.ndim))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return apply(ops.Permute, input, axes=tuple(axes))


@public("torch", "Tensor")
def t(input: Tensor) -> Tensor:
    """Transpose a matrix; a tensor of fewer dimensions is returned as it is."""
    if input.ndim > 2:
        raise ShapeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return transpose(input, 0, 1) if input.ndim == 2 else apply(ops.Permute, input, axes=tuple(range(input.ndim)))


@public("torch", "Tensor", "torch.moveaxis", "Tensor.moveaxis")
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move dimensions; the others keep their order."""
    if isinstance(source, int) != isinstance(destination, int):
        found = f"{source} and {destination}"
        raise ArgumentTypeError(f"movedim(): source and destination must both be int or both tuple of ints, found {found}")
    sources = [normalize_dim(d, input.ndim) for d in ((source,) if isinstance(source, int) else source)]
    targets = [normalize_dim(d, input.ndim) for d in ((destination,) if isinstance(destination, int) else destination)]
    if len(sources) != len(targets):
        raise ShapeError(f"movedim: source and destination must name the same number of dims, found {source} and {destination}")
    for name, given, dims in (("source", source, sources), ("destination", destination, targets)):
        if len(set(dims)) < len(dims):
            raise ShapeError(f"movedim: repeated dim in `{name}` ({given})")
    if not input.ndim:
        return apply(ops.Permute, input, axes=())
    order = [d for d in range(input.ndim) if d not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return apply(ops.Permute, input, axes=tuple(order))


@public("Tensor")
def expand(input: Tensor, *sizes: Any) -> Tensor:
    """Repeat dimensions of size 1, and add new ones in front, without memory; -1 keeps a size.

    Raises:
        ShapeError: a size that is not 1 would change.
    """
    wanted = sizes_of(sizes)
    lead = len(wanted) - input.ndim
    if lead < 0:
        raise ShapeError(f"expand: the number of sizes provided ({len(wanted)}) must be at least the dimensions ({input.ndim})")
    shape = tuple(input.array.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wanted))
    if min(shape, default=0) < 0:
        raise ShapeError(f"expand: the expanded size {min(shape)} is negative in {list(shape)}; -1 keeps a size that is there")
    for i, n in enumerate(input.array.shape):
        if n not in (1, shape[lead + i]):
            raise ShapeError(
                f"The expanded size of the tensor ({shape[lead + i]}) must match the existing size ({n}) at non-singleton "
                f"dimension {lead + i}.  Target sizes: {list(shape)}.  Tensor sizes: {list(input.shape)}"
            )
    if math.prod(shape, start=input.element_size()) >= 1 << 63:
        raise ShapeError(f"expand: {list(shape)} has more elements than can be counted in 64 bits")
    return apply(ops.Expand, input, shape=shape)


@public("Tensor")
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`expand` to another tensor's shape."""
    return expand(input, other.shape)


@public("torch", "Tensor")
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """:func:`expand` to ``size``."""
    return expand(input, *size)


@public("torch", "Tensor")
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """``length`` entries of ``dim`` from ``start`` on.

    Raises:
        DimensionError: they are not all within the dimension.
        ArgumentError: ``start`` is a tensor, and not one whole number.
    """
    if isinstance(start, Tensor):
        if start.ndim or start.dtype.kind not in "iu":
            raise ArgumentError(f"narrow: start must be an 0-dim integral Tensor, found {start.dtype}{list(start.shape)}")
        start = int(start.item())
    axis, start, length = normalize_dim(dim, input.ndim), operator.index(start), operator.index(length)
    size = input.size(axis)
    if not -size <= start <= size:
        raise DimensionError(f"start out of range (expected to be in range of [{-size}, {size}], but got {start})")
    start = start + size if start < 0 else start
    if length < 0 or start + length > size:
        raise DimensionError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return apply(ops.Slice, input, key=(slice(None),) * axis + (slice(start, start + length),))


@public("torch", "Tensor")
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One entry of ``dim``; the dimension is removed. Raises: DimensionError: it is out of range."""
    axis, index = normalize_dim(dim, input.ndim), operator.index(index)
    size = input.size(axis)
    if not -size <= index < size:
        raise DimensionError(f"select(): index {index} out of range for tensor of size {list(input.shape)} at dimension {axis}")
    return apply(ops.Slice, input, key=(slice(None),) * axis + (index % size,))


@public("torch", "Tensor")
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every entry of ``dim``, as views."""
    axis = normalize_dim(dim, input.ndim)
    return tuple(select(input, axis, i) for i in range(input.size(axis)))


@public("torch", "Tensor")
def split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of one size (the last may be smaller), or of given sizes, as views.

    Raises:
        ShapeError: the sizes do not add up, or the size is not positive.
    """
    axis = normalize_dim(dim, input.ndim)
    size = input.size(axis)
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise ShapeError(f"split expects split_size be non-negative, but got split_size={step}")
        sections = [min(step, size - i) for i in range(0, size, step)] if step and size else [size]
    else:
        sections = list(split_size_or_sections)
        if sum(sections) != size:
            raise ShapeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension {axis}), "
                f"but got split_sizes={sections}"
            )
    pieces, start = [], 0
    for length in sections:
        pieces.append(narrow(input, axis, start, length))
        start += length
    return tuple(pieces)


@public("torch", "Tensor")
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """:func:`split` into pieces of given sizes, as views."""
    return split(input, list(split_sizes), dim)


@public("torch", "Tensor")
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` pieces of equal size (the last may be smaller), as views; of nothing, ``chunks`` empty ones."""
    if chunks <= 0:
        raise ShapeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = input.size(dim)
    return split(input, -(-size // chunks) if size else [0] * chunks, dim)


@public("torch", "Tensor")
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as the last dimension: a view."""
    a, b = normalize_dim(dim1, input.ndim), normalize_dim(dim2, input.ndim)
    if a == b:
        raise ShapeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return apply(ops.Diagonal, input, offset=offset, axis1=a, axis2=b)


@public("Tensor")
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of ``size`` every ``step`` along a dimension, as a last dimension: a view. Of a 0-d tensor, one window.

    Raises:
        ShapeError: a window is larger than the dimension, or the step is not positive.
    """
    axis = normalize_dim(dimension, input.ndim)
    if not input.ndim:
        return select(unfold(reshape(input, 1), 0, size, step), 0, 0)
    if size > input.size(axis):
        raise ShapeError(f"maximum size for tensor at dimension {axis} is {input.size(axis)} but size is {size}")
    if step <= 0:
        raise ShapeError(f"step is {step} but must be > 0")
    return apply(ops.Windows, input, axis=axis, size=size, step=step)


@public("Tensor.T")
@property
def transposed(input: Tensor) -> Tensor:
    """All dimensions in reverse order."""
    return apply(ops.Permute, input, axes=tuple(range(input.ndim))[::-1])


@public("Tensor.mT")
@property
def matrix_transposed(input: Tensor) -> Tensor:
    """Swap the last two dimensions."""
    if input.ndim < 2:
        raise ShapeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor.")
    return transpose(input, -2, -1)


@public("Tensor.__iter__")
def iterate(input: Tensor) -> Any:
    """Iterate over the entries of the first dimension."""
    if input.ndim == 0:
        raise ArgumentTypeError("iteration over a 0-d tensor")
    return iter(unbind(input, 0))
