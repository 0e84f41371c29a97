"""A stand-in for ``torch.fx``, so that published files import: nothing is traced.

Its classes may be named, asked for with ``isinstance`` and derived from; to make one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import NotOfferedError
from ..nn.module import Module


class _Traced:
    """A class of ``torch.fx``. Nothing is traced, so no object of it is ever made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


def _refuse(name: str) -> None:
    raise NotOfferedError(
        f"fx: {name} traces a module, or holds what was traced; nothing is traced here: call the module itself"
    )


class Proxy(_Traced):
    """A value while a function is traced."""


class Node(_Traced):
    """A step of a traced function."""


class Graph(_Traced):
    """A traced function."""


class TracerBase(_Traced):
    """A tracer."""


class Tracer(TracerBase):
    """A tracer of modules."""


class Interpreter(_Traced):
    """A runner of graphs, step by step."""


class Transformer(Interpreter):
    """A change of one graph into another."""


class GraphModule(_Traced, Module):
    """A module made of a graph."""


class _CodeOnlyModule(GraphModule):
    """A graph without its parameters."""


Target = Callable[..., Any] | str
"""The type of what a step calls, for annotations."""
Argument = Any
"""The type of what a step is given, for annotations."""
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    _refuse("_copy_attr")


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the function, or its name, itself."""
    return fn_or_name
