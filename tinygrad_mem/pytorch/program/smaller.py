"""Smaller calls from which an op's memory is learned: one that takes nothing beside its results there, takes nothing on larger
arguments. One that takes something there is run in full; see :mod:`.alone`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from .described import AloneCall, Given, Made, Within, givens, results_only, tensors_in

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
_MATRICES = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._log_softmax.default,
    aten._log_softmax_backward_data.default,
    aten._softmax.default,
    aten._softmax_backward_data.default,
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
}


class Elementwise:
    """A call that does the same to each element of dense tensors of one shape. One on a single axis stands for all shapes.

    Attributes:
        small: that call.
    """

    def __init__(self, call: AloneCall, sizes: tuple[int, ...]) -> None:
        self._sizes, count = sizes, prod(sizes)
        self._count = count if count < _SMALL else _SMALL * _SMALL if count <= _GRAIN else _LARGE
        self.small = _changed(call, lambda given: given._replace(sizes=(self._count,), strides=(1,)) if given.sizes else given)

    @classmethod
    def of(cls, call: AloneCall) -> Elementwise | None:
        """Such a call; ``None``: it is another."""
        if torch.Tag.pointwise not in call.func.tags and call.func not in _EACH_ELEMENT:
            return None
        given = [each for each in givens((call.args, call.kwargs)) if each.sizes]
        sizes = given[0].sizes if given else ()
        if not sizes or not prod(sizes) or any(each.dtype.is_complex or each[:2] != (sizes, _strides(sizes)) for each in given):
            return None
        return cls(call, sizes)

    def whole(self, found: Within) -> Within | None:
        """The memory of the whole call, by that of the small one; ``None``: the latter does not tell.

        Less than a byte an element is a number that an argument is turned into, and as large for each shape.
        """
        small, number = results_only(found.made), found.peak - found.kept
        if found.unknown or found.kept != small.kept or number >= _SMALL:
            return None
        if any(each is not None and each != _dense((self._count,), each.dtype) for each in found.made):
            return None
        whole = results_only(tuple(None if each is None else _dense(self._sizes, each.dtype) for each in found.made))
        return whole._replace(peak=whole.kept + number)


def cut_call(call: AloneCall) -> AloneCall | None:
    """The call on smaller matrices; ``None``: it is no larger, or there is none."""
    given = givens((call.args, call.kwargs)) if call.func in _MATRICES else []
    if all(each.sizes == _cut(each.sizes) for each in given) or any(_order(each) is None for each in given):
        return None
    return _changed(call, lambda each: each._replace(sizes=_cut(each.sizes), strides=_order(each)))


def as_cut(found: Within, results: Any) -> Within | None:
    """The memory of a call with these results, by that of the cut one; ``None``: the latter does not tell."""
    made = [Made.of(tensor) for tensor in tensors_in(results)]
    small = tuple(_dense(_cut(each.sizes), each.dtype) for each in made)
    dense = all(each == _dense(each.sizes, each.dtype) for each in made)
    return results_only(tuple(made)) if dense and found == results_only(small) else None


def _changed(call: AloneCall, change: Callable[[Given], Given]) -> AloneCall:
    def walk(value: Any) -> Any:
        if isinstance(value, Given):
            return change(value)
        return tuple(map(walk, value)) if type(value) is tuple else value

    return call._replace(args=walk(call.args), kwargs=walk(call.kwargs))


def _cut(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if size < 2 * _SIDE else _SIDE + size % _SIDE for size in sizes)


def _order(given: Given) -> tuple[int, ...] | None:
    """The strides of the cut tensor, whose axes lie in memory in the same order; ``None``: it has gaps, or overlaps."""
    strides, whole, part = [0] * len(given.sizes), 1, 1
    for axis in sorted(range(len(given.sizes)), key=lambda axis: (given.strides[axis], given.sizes[axis])):
        if given.strides[axis] != whole:
            return None
        strides[axis] = part
        whole, part = whole * given.sizes[axis], part * _cut(given.sizes[axis : axis + 1])[0]
    return tuple(strides)


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _dense(sizes: tuple[int, ...], dtype: torch.dtype) -> Made:
    return Made(sizes, _strides(sizes), dtype, prod(sizes) * dtype.itemsize)
