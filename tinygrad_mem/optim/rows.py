"""Optimizer steps with sparse gradients: only the rows that were looked up are updated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.gradients import SparseTensor
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError, DeviceError
from .state import has_master


class RowWise:
    """The base of optimizers that take sparse gradients."""

    def update_rows(self, device: Device, group: dict[str, Any], p: Any, first: Any, g: Any, state: dict[str, Any]) -> None:
        """Update ``p[first[i]]`` by ``g[i]``, except where ``first[i]`` is -1. ``g`` may be overwritten."""
        raise NotImplementedError

    def refuse_rows(self, group: dict[str, Any]) -> str:
        """The reason why a sparse gradient is refused under the group's options; ``""`` if it is accepted."""
        return ""


def check(optimizer: object, due: list[tuple[dict[str, Any], Tensor]]) -> None:
    """Refuse gradients on another device, and sparse ones that the optimizer cannot handle, before anything is written."""
    kind = type(optimizer).__name__
    for group, p in due:
        grad = p._grad
        if grad is not None and grad.device is not p.device:  # .data was set after backward
            raise DeviceError(f"{kind}.step: parameter on {p.device}, its .grad on {grad.device}: call backward again")
        if not isinstance(grad, SparseTensor):
            continue
        if isinstance(optimizer, RowWise):
            why = optimizer.refuse_rows(group)
        else:
            instead = ", please consider SparseAdam instead" if kind in ("Adam", "AdamW") else ""
            why = f"{kind} does not support sparse gradients{instead}"
        if has_master(group, p):
            why = "master_weights=True does not support sparse gradients: give the table a group without"
        if why:
            raise ArgumentError(why)


def workspace(grad: Any) -> int:
    """Bytes of workspace for the rows of a sparse gradient, after equal rows are added up; 0 for a dense one."""
    if not isinstance(grad, SparseTensor):
        return 0
    return grad.rows.index.nbytes + grad.rows.values.size * arithmetic(grad.dtype).itemsize


def step(optimizer: Any, group: dict[str, Any], p: Tensor, grad: SparseTensor, state: dict[str, Any]) -> None:
    """Update ``p`` by the rows of its gradient."""
    device, rows, size, work = p.device, grad.rows, grad.rows.index.nbytes, optimizer.work
    if not size:
        return
    first = work[:size].view(np.int64)
    g = work[size : workspace(grad)].view(arithmetic(rows.dtype)).reshape(rows.values.shape)
    with p.device.current():
        device.kernels.sum_rows(rows.index, rows.values, first, g)
        optimizer.update_rows(device, group, p.array, first, g, state)
    optimizer.state[p] = state
