"""``torch.fx.graph_module``, so that published files import: there are no graphs."""

from __future__ import annotations

from typing import Any

from .graphs import GraphModule as GraphModule
from .graphs import _refused

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"


class _CodeOnlyModule(GraphModule):
    """A graph without its parameters: never made."""


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    _refused(from_module)
