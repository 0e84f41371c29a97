"""Sizes given as one number or as one a dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def ntuple(value: Any, n: int) -> tuple:
    """``value`` n times, or the values that it already holds."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,) * n
