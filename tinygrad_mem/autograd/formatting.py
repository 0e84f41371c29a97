"""How a tensor prints: PyTorch's layout, through NumPy's printer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .tensor import Tensor

_PLAIN = ("float32", "int64", "bool")  # dtypes that print without their name


def format_tensor(tensor: Tensor) -> str:
    """``tensor([[1., 2.]], device='cuda:0', requires_grad=True)``; on meta, the size instead of values."""
    prefix = "Parameter containing:\ntensor(" if type(tensor).__name__ == "Parameter" else "tensor("
    tail = []
    if tensor.is_meta:
        body = "..."
        tail.append(f"size={tuple(tensor.array.shape)}")
    else:
        values = tensor._host()
        body = np.array2string(values, separator=", ", prefix="tensor(", precision=4, threshold=1000, edgeitems=3)
        if tensor.array.size == 0 and tensor.ndim != 1:
            tail.append(f"size={tuple(tensor.array.shape)}")
    if tensor.device.type != "cpu":
        tail.append(f"device='{tensor.device}'")
    if tensor.dtype.name not in _PLAIN:
        tail.append(f"dtype={tensor.dtype.name}")
    if tensor.grad_fn is not None:
        tail.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        tail.append("requires_grad=True")
    return prefix + ", ".join([body, *tail]) + ")"
