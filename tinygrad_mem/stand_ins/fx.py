"""A stand-in for ``torch.fx``, so that published files import: nothing is traced.

Its classes may be named, asked for with ``isinstance`` and derived from; to make one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..nn.module import Module
from .refused import NeverMade, Refused, never_made


def _traced(name: str, *bases: type) -> Any:
    return never_made("fx", name, "nothing is traced here: call the module itself", *bases)


Proxy, Node, Graph, TracerBase, Interpreter = map(_traced, ("Proxy", "Node", "Graph", "TracerBase", "Interpreter"))
Tracer, Transformer = _traced("Tracer", TracerBase), _traced("Transformer", Interpreter)
GraphModule = _traced("GraphModule", NeverMade, Module)
_CodeOnlyModule = _traced("_CodeOnlyModule", GraphModule)
_copy_attr = Refused("fx", "_copy_attr", "nothing is traced here: call the module itself")
Target = Callable[..., Any] | str
"""The type of what a step calls, for annotations."""
Argument = Any
"""The type of what a step is given, for annotations."""
_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the function, or its name, itself."""
    return fn_or_name
