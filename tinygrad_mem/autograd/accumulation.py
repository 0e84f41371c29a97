"""Gradients that arrive at leaves: added up, by one thread at a time."""

from __future__ import annotations

from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Any

from ..interrupts import may_wait
from ..ops.base import Rows
from . import sparse

if TYPE_CHECKING:
    from .tensor import Tensor

_accumulating = RLock()
_late: deque[tuple] = deque()  # gradients of walks that must not wait; who has the lock above adds them when it is done


def copy(device: Any, array: Any) -> Any:
    """A contiguous copy of ``array``."""
    out = device.empty(array.shape, array.dtype)
    device.kernels.copy(array, out=out)
    return out


def accumulate(leaf: Tensor, grad: Any, owned: bool) -> None:
    """Add to ``leaf.grad``; an owned buffer becomes the gradient, any other is copied, so that no two tensors share one."""
    if may_wait():
        with _accumulating:  # walks of two threads may come to one leaf
            _add(leaf, grad, owned)
        _tell(leaf)
    else:
        _late.append((leaf, grad if owned or type(grad) is Rows else copy(leaf.device, grad), owned or type(grad) is not Rows))
        del grad
    while _late and _accumulating.acquire(blocking=False):
        late = None
        try:
            if _late:
                late = _late.popleft()
                _add(*late)
        finally:
            _accumulating.release()
        if late is not None:
            _tell(late[0])


def _add(leaf: Tensor, grad: Any, owned: bool) -> None:
    device, present = leaf.device, leaf.grad
    if type(grad) is Rows or isinstance(present, sparse.SparseTensor):
        sparse.accumulate(leaf, grad, owned)
    elif present is not None:
        device.kernels.add(present.array, grad, out=present.array)
        present.storage.written("backward")
    else:
        if not owned or not grad.flags.c_contiguous:
            grad = copy(device, grad)
        leaf._take_grad(grad)


def _tell(leaf: Tensor) -> None:
    if leaf._post_accumulate:
        for hook in list(leaf._post_accumulate.values()):
            hook(leaf)
