"""The classes of ``torch.fx``, so that published files may name them and derive from them: nothing is traced."""

from __future__ import annotations

from typing import Any

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
