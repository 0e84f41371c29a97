"""A stand-in for ``torch.library``, so that published files import: an operation is its Python code, its gradient the tape's.

A gradient rule that a file registers is not used. Where it would be asked for, the call is refused.
"""

from __future__ import annotations

import functools
from typing import Any

from .. import absent as _absent
from ..autograd import is_grad_enabled
from ..errors import NotOfferedError

_ruled: set[str] = set()  # the names of operations for which somebody registered a gradient


def custom_op(name: str, fn: Any = None, /, **options: Any) -> Any:
    """The function, as ``custom_op(name, fn)`` and as ``@custom_op(name)``.

    Raises (when it is called):
        NotOfferedError: a gradient was registered for it, and an argument requires one.
    """
    if fn is None:
        return functools.partial(custom_op, name, **options)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = name in _ruled and is_grad_enabled()
        if wanted and any(getattr(x, "requires_grad", False) for x in (*args, *kwargs.values())):
            raise NotOfferedError(
                f"library: {name} has a gradient of its own, which is not offered: write it as an autograd.Function"
            )
        return fn(*args, **kwargs)

    call.register_fake = functools.partial(register_fake, name)  # type: ignore[attr-defined]
    call.register_autograd = functools.partial(register_autograd, name)  # type: ignore[attr-defined]
    call.name = name  # type: ignore[attr-defined]
    return call


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """Return the function itself: shapes come from running the operation on device meta."""
    return func if func is not None else lambda function: function


def register_autograd(op: Any, backward: Any, /, **options: Any) -> None:
    """Note that the operation, or the one of this name, has a gradient of its own: it is refused where that is asked for."""
    _ruled.add(getattr(op, "name", op))


__getattr__ = _absent.refuses("library")
