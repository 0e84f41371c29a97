"""Stand-ins for ``torch._dynamo``, which published files switch before they compile: nothing is compiled."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from ..nn.module import Module
from .compiler import allow_in_graph as allow_in_graph
from .compiler import assume_constant_result as assume_constant_result
from .compiler import disable as disable
from .compiler import is_compiling as is_compiling
from .compiler import reset as reset
from .refused import NeverMade, never_made

config = SimpleNamespace()
"""Switches may be set, and change nothing."""


def graph_break(*args: Any, **kwargs: Any) -> None:
    """Do nothing: there is no graph."""


mark_static_address = graph_break


def is_compile_supported(device_type: Any) -> bool:
    """Return True: what ``compile`` is given runs as it is written."""
    return True


def TransformGetItemToIndex() -> AbstractContextManager[None]:
    """Return a block that changes nothing: nothing is traced."""
    return nullcontext()


OptimizedModule = never_made(
    "_dynamo", "OptimizedModule", "nothing is compiled here: call the module itself", NeverMade, Module
)
