"""Data of any kind as an array in host memory, in the dtype that PyTorch would choose; and other libraries' arrays on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.capsule import on_host
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import is_floating
from ..errors import ArgumentError, ArgumentTypeError
from ..scope import local, run_by


def shared_on_gpu(data: Any) -> Any:
    """A tensor over the memory of ``data`` if it is another library's array on a GPU, such as CuPy's; else ``data``.

    Raises:
        DTypeError: its dtype is not offered.
        ArgumentError: a negative stride.
    """
    if local.dry is not None or isinstance(data, Tensor) or not hasattr(data, "__cuda_array_interface__"):
        return data
    first: Any = Device("cuda")
    where: Any = Device("cuda", first.gpu_of(data))
    with where.current():  # CuPy would copy an array of another GPU than the current one
        return Tensor._wrap(where.sharing(where.xp.asarray(data)), where)


def host_array(data: Any, dtype: Any) -> np.ndarray:
    """``data`` in host memory, in the dtype that PyTorch would choose. Numbers beyond its range silently become inf."""
    if isinstance(data, bytearray):  # PyTorch reads it as a sequence of numbers
        data = list(data)
    nested = data if isinstance(data, (list, tuple)) else None
    if isinstance(data, Tensor):
        data = data._known_values()
    elif nested is not None and _has_tensor(nested):
        data = _to_lists(nested)
    try:
        source = on_host(data)
    except ValueError as error:
        raise ArgumentError(
            f"tensor: expected numbers in a rectangular nesting, found {type(data).__name__}: {error}"
        ) from None
    if source.dtype.kind not in "biuf" and source.dtype != dtypes.bfloat16:
        raise ArgumentTypeError(f"tensor: expected numbers, Could not infer dtype of {type(data).__name__}: found {data!r:.60}")
    if dtype is None:
        found = _dtype_found(data, source) if nested is None else _dtype_within(nested)
        if source.dtype != found:  # NumPy turns integers beyond int64 into floats
            _hold(source, found)
        return run_by(local.run_uncounted, source.astype, found, copy=False)
    dtype = dtypes.as_dtype(dtype)
    if not hasattr(data, "dtype"):  # for Python's numbers, as in PyTorch
        _hold(source, dtype)
    return run_by(local.run_uncounted, source.astype, dtype) if dtype is not dtypes.LACKING else np.empty(source.shape, dtype)


def _hold(source: np.ndarray, dtype: np.dtype) -> None:
    """Check the numbers of ``source``. Raises ArgumentError if an integer dtype cannot hold them."""
    if dtype.kind in "iu" and source.size:
        for end in (source.min(), source.max()):
            dtypes.fitting(end.item(), dtype)


def _dtype_within(data: Any) -> np.dtype:
    """PyTorch's dtype for nested lists: all arrays, tensors and numbers in them are promoted to it."""
    if not isinstance(data, (list, tuple)):
        return _dtype_found(data, data if isinstance(data, Tensor) else on_host(data))
    kinds = set(map(type, data)) or {float}
    of = [kind() for kind in kinds] if kinds <= {bool, int, float} else data
    return functools.reduce(dtypes.promote_types, {_dtype_within(x) for x in of})


def _dtype_found(data: Any, source: Any) -> np.dtype:
    """The dtype of ``data``, or the default dtype for Python's floats; ``source`` is ``data`` as an array."""
    if not hasattr(data, "dtype") and (is_floating(source.dtype) or (source.ndim and source.size == 0)):
        return dtypes.get_default_dtype()
    return dtypes.as_dtype(source.dtype)


def _has_tensor(data: Any) -> bool:
    return any(isinstance(x, Tensor) or (isinstance(x, (list, tuple)) and _has_tensor(x)) for x in data)


def _to_lists(data: Any) -> Any:
    return (
        data.tolist() if isinstance(data, Tensor) else [_to_lists(x) for x in data] if isinstance(data, (list, tuple)) else data
    )
