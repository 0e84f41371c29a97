"""``torch.fx.node``, so that published files import: there are no graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .graphs import Node as Node

Target = Callable[..., Any] | str
"""What a step calls, for annotations."""
Argument = Any
"""What a step is given, for annotations."""
