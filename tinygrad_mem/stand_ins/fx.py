"""A stand-in for ``torch.fx``, so that published files import: nothing is traced.

Its classes may be named, asked for with ``isinstance`` and derived from; to make one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import absent as _absent
from ..errors import NotOfferedError
from ..nn.module import Module


def _refused(self: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse: nothing is traced, so there is no graph.

    Raises:
        NotOfferedError: always.
    """
    kind = type(self).__name__
    raise NotOfferedError(
        f"fx: {kind} traces a module, or holds what was traced; nothing is traced here: call the module itself"
    )


class Proxy:
    """A value while a function is traced. It is never made, so no value is one."""

    __init__ = _refused


class Node:
    """A step of a traced function. It is never made."""

    __init__ = _refused


class Graph:
    """A traced function. It is never made."""

    __init__ = _refused


class TracerBase:
    """A tracer. It is never made."""

    __init__ = _refused


class Tracer(TracerBase):
    """A tracer of modules. It is never made."""


class Interpreter:
    """A runner of graphs, step by step. It is never made."""

    __init__ = _refused


class Transformer(Interpreter):
    """A change of one graph into another. It is never made."""


class GraphModule(Module):
    """A module made of a graph. It is never made, so no module is one."""

    __init__ = _refused


class _CodeOnlyModule(GraphModule):
    """A graph without its parameters. It is never made."""


Target = Callable[..., Any] | str
"""The type of what a step calls, for annotations."""
Argument = Any
"""The type of what a step is given, for annotations."""
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    _refused(from_module)


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the function, or its name, itself."""
    return fn_or_name


__getattr__ = _absent.refuses("fx")
