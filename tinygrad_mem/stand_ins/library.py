"""A stand-in for ``torch.library``: an operation is its Python code, found again under ``ops`` by its name.

Its gradient is the rule that the file registered, and the tape's where there is none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .. import ops
from ..autograd import Function
from ..autograd.tensor import Tensor
from ..errors import NotOfferedError

_rules: dict[str, type[Function]] = {}  # name of an operation -> its registered gradient


def custom_op(name: str, fn: Any = None, /, **options: Any) -> Any:
    """The function, as ``custom_op("namespace::name", fn)`` and as ``@custom_op(...)``; ``ops.namespace.name`` is it too.

    Raises (when it is called):
        NotOfferedError: a gradient was registered for it, and it has lists of tensors or arguments by keyword only.
    """
    if fn is None:
        return functools.partial(custom_op, name, **options)
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name not in _rules:
            return fn(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs or any(isinstance(x, (list, tuple)) and any(isinstance(t, Tensor) for t in x) for x in bound.args):
            raise NotOfferedError(
                f"library: {name} has a gradient of its own: give it its tensors one by one, and nothing by keyword only"
            )
        return _rules[name].apply(fn, *bound.args)

    call.register_fake = functools.partial(register_fake, name)  # type: ignore[attr-defined]
    call.register_autograd = functools.partial(register_autograd, name)  # type: ignore[attr-defined]
    call.name, call.default = name, call  # type: ignore[attr-defined]
    _show(name, call)
    return call


def _show(name: str, call: Callable[..., Any]) -> None:
    """Put the operation where ``ops.namespace.name`` finds it; a namespace that is a module of ``ops`` keeps its own names."""
    space, _, short = name.partition("::")
    if space not in vars(ops):
        setattr(ops, space, SimpleNamespace())
    if isinstance(getattr(ops, space), SimpleNamespace):
        setattr(getattr(ops, space), short, call)


def register_fake(op: Any, func: Any = None, /, **options: Any) -> Any:
    """Return the function itself: shapes come from running the operation on device meta."""
    return func if func is not None else lambda function: function


def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None, lib: Any = None) -> None:
    """Make ``backward(ctx, *gradients)`` the gradient of an operation, or of the one of this name.

    Args:
        setup_context: ``setup_context(ctx, inputs, output)`` saves what backward needs.
        lib: taken for compatibility.
    """

    class Registered(Function):
        @staticmethod
        def forward(ctx: Any, fn: Any, *inputs: Any) -> Any:
            output = fn(*inputs)
            ctx.needs_input_grad = ctx.needs_input_grad[1:]
            if setup_context is not None:
                setup_context(ctx=ctx, inputs=inputs, output=output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            found = backward(ctx, *gradients)
            return (None, *(found if isinstance(found, (tuple, list)) else (found,)))

    name = getattr(op, "name", op)
    Registered.__name__ = Registered.__qualname__ = name
    _rules[name] = Registered
