"""A node that passes tensors through unchanged, so that a function is called when backward reaches it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..ops.base import Op
from .core import apply
from .tensor import Tensor


class Border(Op):
    """Passes tensors through unchanged. Saves nothing.

    Backward calls ``reached(node, gradients)``. If that returns something, it is returned in place of the gradients.
    """

    @staticmethod
    def forward(ctx: Any, *arrays: Any, reached: Callable[[Any, tuple], Any]) -> tuple:
        ctx.reached = reached
        return tuple([a.view() for a in arrays])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        answer = ctx.reached(ctx, grads)
        return grads if answer is None else answer


def behind_border(tensors: Sequence[Tensor], reached: Callable[[Any, tuple], Any]) -> list[Tensor]:
    """The same tensors, made by one :class:`Border`: new tensors over the same memory."""
    passed = apply(Border, *tensors, reached=reached)
    for before, after in zip(tensors, passed, strict=True):
        after._storage = before.storage
    return passed


def share_values(before: Tensor, after: Tensor) -> None:
    """Note that a node passed ``before`` on as ``after``: while both are in use, neither is written."""
    before = before if before._view is None else before._view.base
    twins = after._twins = before._twins = [weakref.ref(before)] if before._twins is None else before._twins
    twins[:] = [*[twin for twin in twins if twin() is not None], weakref.ref(after)]
