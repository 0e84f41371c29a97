"""``torch._check`` and its kin: conditions that a published file holds its arguments to.

In a dry run values of tensors are not known: a condition on them counts as true.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import DataDependenceError

__all__ = (
    "_assert_async", "_check", "_check_index", "_check_tensor_all", "_check_tensor_all_with", "_check_type", "_check_value",
    "_check_with",
)  # fmt: skip

Message = Callable[[], object] | None


def _check_with(error_type: type[Exception], cond: Any, message: Message = None) -> None:
    """Raise ``error_type`` with what ``message`` returns, unless the condition holds.

    Raises:
        TypeError: the condition is a tensor.
    """
    if isinstance(cond, Tensor):
        raise TypeError("cond must be a bool, but got a Tensor: use _check_tensor_all")
    if not cond:
        raise error_type("Expected cond to be True, but got False" if message is None else str(message()))


def _check_tensor_all_with(error_type: type[Exception], cond: Tensor, message: Message = None) -> None:
    """Raise ``error_type``, unless all elements of a bool tensor are true."""
    try:
        holds = bool(cond.all())
    except DataDependenceError:
        return
    _check_with(error_type, holds, message)


_check, _check_tensor_all = partial(_check_with, RuntimeError), partial(_check_tensor_all_with, RuntimeError)
_check_index, _check_type, _check_value = (partial(_check_with, error) for error in (IndexError, TypeError, ValueError))


def _assert_async(input: Tensor, assert_msg: str = "") -> None:
    """Raise ``RuntimeError``, unless an element is not 0: at once, and not when a GPU comes to it."""
    _check_tensor_all(input != 0, lambda: assert_msg or "Expected Tensor with single nonzero value, but got zero")
