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
    """Nothing is traced, so that there is no graph.

    Raises:
        NotOfferedError: always.
    """
    kind = type(self).__name__
    raise NotOfferedError(
        f"fx: {kind} traces a module, or holds what was traced; nothing is traced here: call the module itself"
    )


class Proxy:
    """What stands for a value while a function is traced: never made, so that no value is one."""

    __init__ = _refused


class Node:
    """A step of a traced function: never made."""

    __init__ = _refused


class Graph:
    """A traced function: never made."""

    __init__ = _refused


class TracerBase:
    """What traces: never made."""

    __init__ = _refused


class Tracer(TracerBase):
    """What traces modules: never made."""


class Interpreter:
    """What runs a graph step by step: never made."""

    __init__ = _refused


class Transformer(Interpreter):
    """What makes another graph of a graph: never made."""


class GraphModule(Module):
    """A module made of a graph: never made, so that no module is one."""

    __init__ = _refused


class _CodeOnlyModule(GraphModule):
    """A graph without its parameters: never made."""


Target = Callable[..., Any] | str
"""What a step calls, for annotations."""
Argument = Any
"""What a step is given, for annotations."""
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    _refused(from_module)


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """The function, or its name, itself."""
    return fn_or_name


__getattr__ = _absent.refuses("fx")
