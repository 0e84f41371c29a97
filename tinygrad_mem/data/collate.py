"""From a list of samples to a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.tensor import Tensor
from ..errors import ArgumentTypeError, ShapeError, pins_nothing
from ..functional.creation import tensor as make_tensor
from ..functional.join import stack

__all__ = ("default_collate", "default_convert")

_WANTED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists"


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "fiub" or dtype == dtypes.bfloat16


def default_convert(data: Any) -> Any:
    """Convert NumPy arrays and scalars inside ``data`` to tensors; other objects stay."""
    if isinstance(data, (Tensor, str, bytes)):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        return make_tensor(np.asarray(data)) if _is_number(data.dtype) else data
    return _rebuilt(data, default_convert)


def _rebuilt(data: Any, convert: Callable[[Any], Any]) -> Any:
    """A container like ``data`` with converted items; an object that is not a container is returned as it is."""
    if isinstance(data, Mapping):
        items = {key: convert(value) for key, value in data.items()}
        return _like(data, items)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(convert(x) for x in data))
    if isinstance(data, tuple):
        return [convert(x) for x in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like(data, [convert(x) for x in data])
    return data


def _like(container: Any, items: Any) -> Any:
    try:
        if isinstance(container, MutableMapping):  # a defaultdict keeps its factory
            clone = copy.copy(container)
            clone.update(items)
            return clone
        return type(container)(items)
    except TypeError:  # a container that cannot be made from its items
        return items


def _stack(batch: Sequence[Tensor]) -> Tensor:
    first = batch[0]
    for i, other in enumerate(batch):
        if not isinstance(other, Tensor):
            raise ArgumentTypeError(
                f"default_collate: expected Tensor as element {i} in argument 0, but got {type(other).__name__}: give samples "
                "of one type"
            )
    _same_shapes(batch)
    if any(t.requires_grad for t in batch):
        return stack(list(batch))
    where, dtype = first.device, first.dtype
    for other in batch:
        dtype = dtypes.promote_types(dtype, other.dtype)
    out = where.empty((len(batch), *first.shape), dtype)
    for row, sample in enumerate(batch):
        where.kernels.copy(sample.to(where).array, out=out[row : row + 1])
    return Tensor._wrap(out, where)


@pins_nothing
def default_collate(batch: Sequence[Any]) -> Any:
    """A batch of samples: tensors, arrays and numbers are stacked, strings are listed, containers are collated by item.

    Python floats become float64, integers int64, as in PyTorch.

    Raises:
        TypeError: a sample of another type, or an array that holds no numbers.
        ShapeError: tensors of different shapes.
        RuntimeError: sequences of different lengths.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack(batch)
    if isinstance(first, (np.ndarray, np.generic)):
        if not _is_number(first.dtype):
            raise TypeError(f"{_WANTED}; found {first.dtype}")
        _same_shapes(batch)
        return make_tensor(np.stack([np.asarray(x) for x in batch]))
    if isinstance(first, (bool, int, float)):
        return make_tensor(list(batch), dtype=dtypes.float64 if isinstance(first, float) else None)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size; pad them in a collate_fn")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*columns)
        return columns if isinstance(first, tuple) else _like(first, columns)
    raise TypeError(f"{_WANTED}; found {type(first)}")


def _same_shapes(batch: Sequence[Any]) -> None:
    shapes = [np.shape(x) for x in batch]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ShapeError(
                f"default_collate: stack expects each tensor to be equal size, but got {list(shapes[0])} at entry 0 and "
                f"{list(shape)} at entry {i}; pad them in a collate_fn"
            )
