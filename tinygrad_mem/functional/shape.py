"""Views and rearrangements. A view shares memory: writing to it writes the original. Views save nothing for backward."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.shape import normalize_dim
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DimensionError, ShapeError
from ..ops import convert, join
from ..ops import shape as ops


def sizes_of(sizes: tuple) -> tuple[int, ...]:
    """Sizes given as several numbers or as one sequence."""
    if len(sizes) == 1 and not isinstance(sizes[0], int) and hasattr(sizes[0], "__iter__"):
        sizes = tuple(sizes[0])
    try:
        return tuple(map(operator.index, sizes))
    except TypeError:
        found = ", ".join(type(n).__name__ for n in sizes)
        raise ArgumentTypeError(f"argument 'size' must be tuple of ints, but found elements of type {found}") from None


def _filled(input: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with a -1 replaced by what is left."""
    count = input.numel()
    if shape.count(-1) > 1:
        raise ShapeError("only one dimension can be inferred")
    if any(n < -1 for n in shape):
        raise ShapeError(f"invalid shape dimension {min(shape)} in {list(shape)}")
    if -1 in shape:
        known = 1
        for n in shape:
            known *= n if n != -1 else 1
        if known == 0:
            raise ShapeError(f"cannot reshape tensor of {count} elements into shape {list(shape)}: the -1 can be any value")
        if count % known == 0:
            return tuple(count // known if n == -1 else n for n in shape)
    else:
        known = 1
        for n in shape:
            known *= n
        if known == count:
            return shape
    raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {count}")


def view(input: Tensor, *shape: Any) -> Tensor:
    """The same memory in another shape; one -1 is inferred.

    Raises:
        ShapeError: the sizes do not fit, or the strides do not allow a view.
    """
    return apply(ops.View, input, shape=_filled(input, sizes_of(shape)))


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """Another shape: a view where strides allow it, else a copy."""
    sizes = _filled(input, sizes_of(shape))
    if input.array.flags.c_contiguous:
        return apply(ops.View, input, shape=sizes)
    if ops._reshaped(input.array, sizes) is not None:
        return apply(ops.View, input, shape=sizes)
    return apply(ops.View, apply(convert.Clone, input), shape=sizes)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`view` with another tensor's shape."""
    return view(input, other.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`reshape` to another tensor's shape."""
    return reshape(input, other.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions ``start_dim`` to ``end_dim`` as one."""
    start, end = normalize_dim(start_dim, input.ndim), normalize_dim(end_dim, input.ndim)
    if start > end:
        raise ShapeError(f"flatten() has invalid args: start_dim cannot come after end_dim, found {start_dim} and {end_dim}")
    if input.ndim == 0:
        return reshape(input, 1)
    if start == end:
        return input
    merged = 1
    for n in input.shape[start : end + 1]:
        merged *= n
    return reshape(input, (*input.shape[:start], merged, *input.shape[end + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """One dimension."""
    return reshape(input, -1)


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dimension as several."""
    axis = normalize_dim(dim, input.ndim)
    sizes = list(sizes)
    if -1 in sizes:
        known = 1
        for n in sizes:
            known *= n if n != -1 else 1
        sizes[sizes.index(-1)] = input.size(axis) // max(known, 1)
    return reshape(input, (*input.shape[:axis], *sizes, *input.shape[axis + 1 :]))


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of size 1: all, or those named."""
    if dim is None:
        chosen = set(range(input.ndim))
    else:
        chosen = {normalize_dim(d, input.ndim) for d in ((dim,) if isinstance(dim, int) else dim)}
    kept = tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in chosen)
    return apply(ops.View, input, shape=kept)


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a new dimension of size 1 at ``dim``."""
    axis = normalize_dim(dim, input.ndim + 1)
    return apply(ops.Slice, input, key=(slice(None),) * axis + (None,)) if input.ndim else apply(ops.View, input, shape=(1,))


def permute(input: Tensor, *dims: Any) -> Tensor:
    """Dimensions in another order.

    Raises:
        ShapeError: the order does not name every dimension once.
    """
    axes = tuple(normalize_dim(d, input.ndim) for d in sizes_of(dims))
    if sorted(axes) != list(range(input.ndim)):
        raise ShapeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering "
            f"of dimensions: found {list(dims)} for {input.ndim} dimensions"
        )
    return apply(ops.Permute, input, axes=axes)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions swapped."""
    a, b = normalize_dim(dim0, input.ndim), normalize_dim(dim1, input.ndim)
    axes = list(range(input.ndim))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return apply(ops.Permute, input, axes=tuple(axes))


def t(input: Tensor) -> Tensor:
    """A matrix transposed; fewer dimensions as they are."""
    if input.ndim > 2:
        raise ShapeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return transpose(input, 0, 1) if input.ndim == 2 else apply(ops.Permute, input, axes=tuple(range(input.ndim)))


def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dimensions moved, the others in their order."""
    if isinstance(source, int) != isinstance(destination, int):
        found = f"{source} and {destination}"
        raise ArgumentTypeError(f"movedim(): source and destination must both be int or both tuple of ints, found {found}")
    sources = [normalize_dim(d, input.ndim) for d in ((source,) if isinstance(source, int) else source)]
    targets = [normalize_dim(d, input.ndim) for d in ((destination,) if isinstance(destination, int) else destination)]
    if len(sources) != len(targets):
        raise ShapeError(f"movedim: source and destination must name as many dims, found {source} and {destination}")
    for name, given, dims in (("source", source, sources), ("destination", destination, targets)):
        if len(set(dims)) < len(dims):
            raise ShapeError(f"movedim: repeated dim in `{name}` ({given})")
    if not input.ndim:
        return apply(ops.Permute, input, axes=())
    order = [d for d in range(input.ndim) if d not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return apply(ops.Permute, input, axes=tuple(order))


def expand(input: Tensor, *sizes: Any) -> Tensor:
    """Dimensions of size 1 repeated, and new ones in front, without memory; -1 keeps a size.

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
    return apply(ops.Expand, input, shape=shape)


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """:func:`expand` to another tensor's shape."""
    return expand(input, other.shape)


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """:func:`expand` to ``size``."""
    return expand(input, *size)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """``length`` entries of ``dim`` from ``start`` on.

    Raises:
        DimensionError: they are not all there.
    """
    axis = normalize_dim(dim, input.ndim)
    size = input.size(axis)
    if not -size <= start <= size:
        raise DimensionError(f"start out of range (expected to be in range of [{-size}, {size}], but got {start})")
    start = start + size if start < 0 else start
    if length < 0 or start + length > size:
        raise DimensionError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return apply(ops.Slice, input, key=(slice(None),) * axis + (slice(start, start + length),))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One entry of ``dim``, which goes.

    Raises:
        DimensionError: it is not there.
    """
    axis = normalize_dim(dim, input.ndim)
    size = input.size(axis)
    if not -size <= index < size:
        raise DimensionError(f"select(): index {index} out of range for tensor of size {list(input.shape)} at dimension {axis}")
    return apply(ops.Slice, input, key=(slice(None),) * axis + (index % size,))


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every entry of ``dim``, as views."""
    axis = normalize_dim(dim, input.ndim)
    return tuple(select(input, axis, i) for i in range(input.size(axis)))


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
        if builtin_sum(sections) != size:
            raise ShapeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension {axis}), "
                f"but got split_sizes={sections}"
            )
    pieces, start = [], 0
    for length in sections:
        pieces.append(narrow(input, axis, start, length))
        start += length
    return tuple(pieces)


builtin_sum = sum


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` pieces of equal size (the last may be smaller), as views."""
    if chunks <= 0:
        raise ShapeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = input.size(dim)
    return split(input, max(-(-size // chunks), 1), dim)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as the last dimension: a view."""
    a, b = normalize_dim(dim1, input.ndim), normalize_dim(dim2, input.ndim)
    if a == b:
        raise ShapeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return apply(ops.Diagonal, input, offset=offset, axis1=a, axis2=b)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of ``size`` every ``step`` along a dimension, as a last dimension: a view.

    Raises:
        ShapeError: a window is larger than the dimension.
    """
    axis = normalize_dim(dimension, input.ndim)
    if size > input.size(axis):
        raise ShapeError(f"maximum size for tensor at dimension {axis} is {input.size(axis)} but size is {size}")
    return apply(ops.Windows, input, axis=axis, size=size, step=step)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one behind the other along ``dim``. Saves nothing; gradients are views of one.

    Raises:
        ShapeError: no tensors, or other dimensions differ.
    """
    parts = [x for x in tensors if x.array.shape != (0,)]
    if not tensors:
        raise ShapeError("torch.cat(): expected a non-empty list of Tensors")
    if not parts:
        return tensors[0]
    return apply(join.Cat, *parts, axis=normalize_dim(dim, parts[0].ndim))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new dimension. Saves nothing.

    Raises:
        ShapeError: no tensors, or shapes differ.
    """
    if not tensors:
        raise ShapeError("stack expects a non-empty TensorList")
    for i, x in enumerate(tensors):
        if x.array.shape != tensors[0].array.shape:
            raise ShapeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    axis = normalize_dim(dim, tensors[0].ndim + 1)
    return cat([unsqueeze(x, axis) for x in tensors], axis)


def atleast_1d(input: Tensor) -> Tensor:
    """With one dimension at least."""
    return input if input.ndim else reshape(input, 1)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Columns side by side."""
    rows = [atleast_1d(x) for x in tensors]
    return cat(rows, 0 if rows[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Rows one below the other."""
    return cat([x if x.ndim > 1 else reshape(x, (1, -1)) for x in tensors], 0)


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """The tensor repeated along each dimension: a copy. Saves nothing."""
    times = sizes_of(repeats)
    if len(times) < input.ndim:
        raise ShapeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    shape = (1,) * (len(times) - input.ndim) + tuple(input.shape)
    x = reshape(input, [m for n in shape for m in (1, n)])
    x = expand(x, [m for k, n in zip(times, shape, strict=True) for m in (k, n)])
    return reshape(apply(convert.Clone, x), [k * n for k, n in zip(times, shape, strict=True)])


def tile(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """:func:`repeat`, with missing leading counts taken as 1."""
    dims = sizes_of((dims, *more))
    return repeat(input, (1,) * (input.ndim - len(dims)) + tuple(dims))


def repeat_interleave(input: Tensor, repeats: int | Tensor, dim: int | None = None) -> Tensor:
    """Every entry repeated, one behind the other."""
    if dim is None:
        return repeat_interleave(reshape(input, -1), repeats, 0)
    axis = normalize_dim(dim, input.ndim)
    if isinstance(repeats, int):
        x = unsqueeze(input, axis + 1)
        x = apply(convert.Clone, expand(x, *x.shape[: axis + 1], repeats, *x.shape[axis + 2 :]))
        return flatten(x, axis, axis + 1)
    from .creation import tensor
    from .index import index_select

    counts = repeats.tolist()
    return index_select(input, axis, tensor([i for i, k in enumerate(counts) for _ in range(k)], dtype="int64"))


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Entries moved round: what leaves at one end comes back at the other."""
    if dims is None:
        return reshape(roll(reshape(input, -1), shifts, 0), input.shape)
    moves = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(moves) != len(axes):
        raise ShapeError(f"shifts and dimensions must align. shifts: {len(moves)}, dims: {len(axes)}")
    pairs = list(zip(moves, axes, strict=True))
    for shift, dim in pairs:
        size = input.size(dim)
        k = shift % size if size else 0
        if k:
            input = cat([narrow(input, dim, size - k, k), narrow(input, dim, 0, size - k)], dim)
    return input.clone() if all(s % max(input.size(d), 1) == 0 for s, d in pairs) else input


def flip(input: Tensor, *dims: Any) -> Tensor:
    """Dimensions in reverse order: a copy. Saves nothing."""
    axes = tuple(normalize_dim(d, input.ndim) for d in sizes_of(dims))
    return apply(join.Flip, input, axes=axes)


def fliplr(input: Tensor) -> Tensor:
    """Columns in reverse order."""
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Rows in reverse order."""
    return flip(input, 0)


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences of neighbours, ``n`` times, of ``prepend``, input and ``append`` in a row; of bools, whether they differ.

    Saves nothing.

    Raises:
        ArgumentError: ``n`` is negative.
    """
    if n < 0:
        raise ArgumentError(f"diff: order must be non-negative but got {n}")
    row = [t for t in (prepend, input, append) if t is not None]
    input = cat(row, dim) if len(row) > 1 else input
    for _ in range(min(n, input.size(dim))):
        rest = max(input.size(dim) - 1, 0)
        late, early = narrow(input, dim, input.size(dim) - rest, rest), narrow(input, dim, 0, rest)
        input = late.ne(early) if input.dtype == np.bool_ else late - early
    return input


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and below a diagonal, 0 elsewhere. Saves nothing."""
    return apply(join.Triangle, input, diagonal=diagonal, lower=True)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and above a diagonal, 0 elsewhere. Saves nothing."""
    return apply(join.Triangle, input, diagonal=diagonal, lower=False)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with this diagonal, or the diagonal of a matrix."""
    if input.ndim == 2:
        return apply(convert.Clone, diagonal_of(input, diagonal))
    from .creation import zeros

    size = input.numel() + abs(diagonal)
    out = zeros(size, size, dtype=input.dtype, device=input.device)
    diagonal_of(out, diagonal).copy_(input)
    return out


diagonal_of = diagonal


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Entries put around the last dimensions: ``pad`` has (before, after) from the last dimension backwards; negative crops.

    Modes: constant, reflect, replicate, circular. Saves nothing.

    Raises:
        ValueError: an unknown mode.
        ShapeError: ``pad`` has an odd length, is too long, or reaches further than the data.
    """
    amounts = tuple(pad)
    if len(amounts) % 2 or len(amounts) // 2 > input.ndim:
        raise ShapeError(f"Padding length must be divisible by 2 and at most {2 * input.ndim}, found {list(amounts)}")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: unrecognised padding mode {mode!r}; use constant, reflect, replicate or circular")
    pairs = [(0, 0)] * (input.ndim - len(amounts) // 2) + [
        (amounts[i], amounts[i + 1]) for i in range(len(amounts) - 2, -2, -2)
    ]
    if mode == "constant":
        return apply(join.Pad, input, pairs=tuple(pairs), value=0 if value is None else value)
    if value is not None:
        raise ArgumentError(f"Padding mode {mode!r} doesn't take in value argument")
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            input = _pad_with_data(input, axis, before, after, mode)
    return input


def _pad_with_data(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis padded with entries of the tensor itself."""
    size = x.size(axis)
    most = size - 1 if mode == "reflect" else size
    if mode != "replicate" and max(before, after) > most:
        raise ShapeError(
            f"Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at "
            f"dimension {axis} of input {list(x.shape)}"
        )
    crop = narrow(x, axis, max(-before, 0), size + min(before, 0) + min(after, 0))
    parts = [crop]
    if before > 0:
        if mode == "reflect":
            parts.insert(0, flip(narrow(x, axis, 1, before), axis))
        elif mode == "circular":
            parts.insert(0, narrow(x, axis, size - before, before))
        else:
            parts.insert(0, expand(narrow(x, axis, 0, 1), *[before if i == axis else -1 for i in range(x.ndim)]))
    if after > 0:
        if mode == "reflect":
            parts.append(flip(narrow(x, axis, size - 1 - after, after), axis))
        elif mode == "circular":
            parts.append(narrow(x, axis, 0, after))
        else:
            parts.append(expand(narrow(x, axis, size - 1, 1), *[after if i == axis else -1 for i in range(x.ndim)]))
    return cat(parts, axis)


@property
def transposed(input: Tensor) -> Tensor:
    """All dimensions in reverse order."""
    return apply(ops.Permute, input, axes=tuple(range(input.ndim))[::-1])


@property
def matrix_transposed(input: Tensor) -> Tensor:
    """The last two dimensions swapped."""
    if input.ndim < 2:
        raise ShapeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor.")
    return transpose(input, -2, -1)


def iterate(input: Tensor) -> Any:
    """The entries of the first dimension, one by one."""
    if input.ndim == 0:
        raise ArgumentTypeError("iteration over a 0-d tensor")
    return iter(unbind(input, 0))


swapaxes = swapdims = transpose
concat = concatenate = cat
moveaxis = movedim
