"""Tensors out of data, constants and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..scope import local


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A copy of ``data`` (numbers, nested lists, arrays, tensors) on ``device``."""
    source = data._host() if isinstance(data, Tensor) else np.asarray(data)
    if dtype is not None:
        source = source.astype(dtypes.as_dtype(dtype))
    elif not hasattr(data, "dtype") and source.dtype.kind == "f":
        source = source.astype(dtypes.get_default_dtype())
    where = Device(device or local.default_device or "cpu")
    out = Tensor._wrap(where.empty(source.shape, source.dtype), where)
    where.upload(np.ascontiguousarray(source), out.array)
    out.requires_grad = requires_grad
    return out
