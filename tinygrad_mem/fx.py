"""A stand-in for ``torch.fx``, so that published files import: nothing is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def wrap(fn_or_name: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """The function, or its name, itself."""
    return fn_or_name


def __getattr__(name: str) -> object:
    from .absent import lacking

    raise lacking(name, f"fx.{name} is not offered: leave it out: operations run as they are written")
