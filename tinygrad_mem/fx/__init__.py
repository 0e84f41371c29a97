"""A stand-in for ``torch.fx``, so that published files import: nothing is traced.

Its classes may be named, asked for with ``isinstance`` and derived from; to make one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import absent as _absent
from . import graph as graph  # pyright: ignore
from . import graph_module as graph_module
from . import node as node
from . import proxy as proxy
from .graphs import Graph as Graph
from .graphs import GraphModule as GraphModule
from .graphs import Interpreter as Interpreter
from .graphs import Node as Node
from .graphs import Proxy as Proxy
from .graphs import Tracer as Tracer
from .graphs import Transformer as Transformer


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """The function, or its name, itself."""
    return fn_or_name


__getattr__ = _absent.refuses("fx")
