"""A stand-in for ``torch.library``, so that published files import: operations have one rule here, that of their Python code.

What they register is taken and not used: call the function itself, whose gradient the tape knows.
"""

from __future__ import annotations

from typing import Any


def custom_op(name: str, fn: Any = None, /, **options: Any) -> Any:
    """The function itself, as ``custom_op(name, fn)`` and as ``@custom_op(name)``."""
    return fn if fn is not None else lambda function: function


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """The function itself: shapes come from running the operation on device meta."""
    return func if func is not None else lambda function: function


def register_autograd(op: Any, backward: Any, /, **options: Any) -> None:
    """Nothing: gradients are those of the function's own operations."""


def __getattr__(name: str) -> object:
    from .absent import lacking

    raise lacking(name, f"library.{name} is not offered: write the function with tensor operations, or as an autograd.Function")
