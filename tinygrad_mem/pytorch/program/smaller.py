"""Smaller calls from which an op's memory is learned, and rules that need none.

An op that takes nothing beside its results on small arguments takes nothing on larger ones. Batch norms take a number of bytes
for each element and for each channel. Calls that these rules do not cover are run in full; see :mod:`.alone`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch

from .described import AloneCall, Given, Made, Within, givens, results_only, tensors_in
from .dispatcher import operators

aten = torch.ops.aten
_SMALL, _GRAIN, _LARGE = 64, 1 << 15, 1 << 16
"""Elements. PyTorch's kernels may go another way below the first, and share work between threads above the second."""
_SIDE = 512  # of a matrix that is cut: kernels work in smaller blocks
_EACH_ELEMENT = {  # beside those that PyTorch calls pointwise
    getattr(getattr(aten, name), overload)
    for name in ("uniform_", "normal_", "zero_", "fill_", "copy_", "_to_copy", "zeros_like", "ones_like", "empty_like")
    for overload in getattr(aten, name).overloads()
    if "out" not in overload
}
_POOLINGS = {
    *operators("max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward"),
}
_BATCH_NORMS = {*operators("native_batch_norm native_batch_norm_backward")}
FACTORIES = {*operators("empty.memory_format zeros ones full")}
"""Ops that make tensors of a given size, and no more."""
_MATRICES = {
    *operators("mm addmm bmm baddbmm nll_loss_forward nll_loss_backward"),
    *operators("_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data"),
}


class Smaller(NamedTuple):
    """Calls that are run in place of a larger one.

    Attributes:
        whole: tells the memory of the large call by that of each of ``calls``; ``None``: these do not tell.
    """

    calls: tuple[AloneCall, ...]
    whole: Callable[..., Within | None]


def smaller(call: AloneCall) -> Smaller | None:
    """The smaller calls from which a call's memory is computed before its results are known; ``None``: there are none."""
    return elementwise(call) or _planes(call) or _normed_batch(call)


def elementwise(call: AloneCall) -> Smaller | None:
    """A smaller call for one that does the same to each element of tensors of one shape: on a single axis.

    They are dense; or of one dtype, and the first is written in place, where gaps change nothing: such as a part of a gradient,
    which is added to another.
    """
    if torch.Tag.pointwise not in call.func.tags and call.func not in _EACH_ELEMENT:
        return None
    given = [each for each in givens((call.args, call.kwargs)) if each.sizes]
    sizes = given[0].sizes if given else ()
    if not sizes or not prod(sizes) or any(each.sizes != sizes or each.dtype.is_complex for each in given):
        return None
    gaps = any(each.strides != _strides(sizes) for each in given)
    in_place = torch.Tag.pointwise in call.func.tags and call.func._schema.name.endswith("_")
    alike = len({each.dtype for each in given}) == 1 and not any(0 in each.strides for each in given)
    if gaps and not (in_place and alike and prod(sizes) >= _SMALL):
        return None
    count = _few(prod(sizes))

    def whole(found: Within) -> Within | None:
        """Less than a byte an element is a number that an argument is turned into, and as large for each shape."""
        small, number = results_only(found.made), found.peak - found.kept
        if found.unknown or found.kept != small.kept or number >= _SMALL or (gaps and found.made != (None,)):
            return None
        if any(each is not None and each != _dense((count,), each.dtype) for each in found.made):
            return None
        large = results_only(tuple(None if each is None else _dense(sizes, each.dtype) for each in found.made))
        return large._replace(peak=large.kept + number)

    return Smaller((_with_each(call, lambda each: _dense_given(each, (count,)) if each.sizes else each),), whole)


def _planes(call: AloneCall) -> Smaller | None:
    """A smaller call for a pooling of dense images: of two images with three channels."""
    given = givens((call.args, call.kwargs)) if call.func in _POOLINGS else []
    images = {each.sizes[:2] for each in given}
    if len(images) != 1 or not all(len(each.sizes) == 4 and _rows(each) for each in given):
        return None

    def whole(found: Within) -> Within | None:
        """Nothing beside its results."""
        made = [each for each in found.made if each is not None]
        if len(made) != len(found.made) or found != results_only(tuple(_dense(each.sizes, each.dtype) for each in made)):
            return None
        return results_only(tuple(_dense((*min(images), *each.sizes[2:]), each.dtype) for each in made))

    return Smaller((_with_each(call, lambda each: _dense_given(each, (2, 3, *each.sizes[2:]))),), whole)


def _normed_batch(call: AloneCall) -> Smaller | None:
    """Of a batch norm of a dense tensor, temporaries are as large as it, or have an element a channel. Two small calls tell how
    many there are of each, and a third one must agree.

    Source: ``aten/src/ATen/native/Normalization.cpp``.
    """
    given = givens((call.args, call.kwargs)) if call.func in _BATCH_NORMS else []
    sizes = given[0].sizes if given else ()
    if len(sizes) < 3 or not all(each.sizes in (sizes, sizes[1:2]) and _rows(each) for each in given):
        return None
    probes = [(rows, channels, *(rows for _ in sizes[2:])) for rows, channels in ((2, 5), (3, 5), (2, 8))]
    counts = [prod(probe) for probe in probes]

    def small(probe: tuple[int, ...]) -> AloneCall:
        return _with_each(call, lambda each: _dense_given(each, probe if len(each.sizes) > 1 else probe[1:2]))

    def large(made: Made) -> Made:
        shape = sizes if len(made.sizes) > 1 else sizes[1:2] if made.sizes == probes[0][1:2] else made.sizes
        return _dense(shape, made.dtype)

    def whole(*found: Within) -> Within | None:
        taken = [each.peak - each.kept for each in found]
        element, rest = divmod(taken[1] - taken[0], counts[1] - counts[0])
        channel, left = divmod(taken[0] - element * counts[0], probes[0][1])
        agreed = taken[2] == element * counts[2] + channel * probes[2][1]
        if rest or left or not agreed or any(each.unknown or each.kept != results_only(each.made).kept for each in found):
            return None
        results = results_only(tuple(each and large(each) for each in found[0].made))
        return results._replace(peak=results.kept + element * prod(sizes) + channel * sizes[1])

    return Smaller(tuple(map(small, probes)), whole)


def by_rule(call: AloneCall) -> Within | None:
    """The memory of a call by a rule, without running another: concatenation of dense tensors of one dtype.

    Source: ``aten/src/ATen/native/TensorShape.cpp``: each is copied to its place in the result.
    """
    if call.func is not aten.cat.default or not call.args[0]:
        return None
    given, axis = call.args[0], call.args[1][1] if len(call.args) > 1 else 0
    first = given[0]
    dims = len(first.sizes)
    if type(axis) is not int or not -dims <= axis < dims:
        return None
    if any(each.dtype != first.dtype or not _rows(each) or len(each.sizes) != dims for each in given):
        return None
    axis %= dims
    if len({(*each.sizes[:axis], *each.sizes[axis + 1 :]) for each in given}) > 1:
        return None  # PyTorch refuses them
    sizes = list(first.sizes)
    sizes[axis] = sum(each.sizes[axis] for each in given)
    return results_only((_dense(tuple(sizes), first.dtype),))


def cut_call(call: AloneCall) -> AloneCall | None:
    """The call on smaller matrices; ``None``: it is no larger, or there is none."""
    given = givens((call.args, call.kwargs)) if call.func in _MATRICES else []
    if all(each.sizes == _cut_sizes(each.sizes) for each in given) or any(_order(each) is None for each in given):
        return None
    return _with_each(call, lambda each: each._replace(sizes=_cut_sizes(each.sizes), strides=_order(each)))


def as_cut(found: Within, results: Any) -> Within | None:
    """The memory of a call with these results, computed from that of the cut call; ``None``: that is not enough."""
    made = [Made.of(tensor) for tensor in tensors_in(results)]
    small = tuple(_dense(_cut_sizes(each.sizes), each.dtype) for each in made)
    dense = all(each == _dense(each.sizes, each.dtype) for each in made)
    return results_only(tuple(made)) if dense and found == results_only(small) else None


def _with_each(call: AloneCall, change: Callable[[Given], Given]) -> AloneCall:
    def walk(value: Any) -> Any:
        if isinstance(value, Given):
            return change(value)
        return tuple(map(walk, value)) if type(value) is tuple else value

    return call._replace(args=walk(call.args), kwargs=walk(call.kwargs))


def _cut_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if size < 2 * _SIDE else _SIDE + size % _SIDE for size in sizes)


def _order(given: Given) -> tuple[int, ...] | None:
    """The strides of the cut tensor, whose axes have the same memory order; ``None``: the tensor has gaps, or overlaps."""
    strides, whole, part = [0] * len(given.sizes), 1, 1
    for axis in sorted(range(len(given.sizes)), key=lambda axis: (given.strides[axis], given.sizes[axis])):
        if given.strides[axis] != whole:
            return None
        strides[axis] = part
        whole, part = whole * given.sizes[axis], part * _cut_sizes(given.sizes[axis : axis + 1])[0]
    return tuple(strides)


def _few(count: int) -> int:
    """A smaller number of elements for which kernels run the same code."""
    return count if count < _SMALL else _SMALL * _SMALL if count <= _GRAIN else _LARGE


def _rows(given: Given) -> bool:
    """True for a contiguous tensor that is in no other memory format too: no axis of images has one element."""
    plain = given.strides == _strides(given.sizes) and bool(given.sizes) and 0 not in given.sizes
    return plain and (len(given.sizes) < 3 or 1 not in given.sizes[1:])


def _dense_given(given: Given, sizes: tuple[int, ...]) -> Given:
    return given._replace(sizes=sizes, strides=_strides(sizes))


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _dense(sizes: tuple[int, ...], dtype: torch.dtype) -> Made:
    return Made(sizes, _strides(sizes), dtype, prod(sizes) * dtype.itemsize)
