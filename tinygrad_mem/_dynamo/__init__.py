"""Stand-ins for ``torch._dynamo``, which published files switch before they compile: nothing is compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .. import absent as _absent
from ..compiler import allow_in_graph as allow_in_graph
from ..compiler import assume_constant_result as assume_constant_result
from ..compiler import disable as disable
from ..compiler import is_compiling as is_compiling
from ..compiler import reset as reset
from . import eval_frame as eval_frame
from . import utils as utils
from .eval_frame import OptimizedModule as OptimizedModule

config = SimpleNamespace()
"""Switches may be set, and change nothing."""


def graph_break(msg: str = "") -> None:
    """Nothing: there is no graph."""


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Nothing: there is no graph."""


__getattr__ = _absent.refuses("_dynamo")
