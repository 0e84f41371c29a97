"""Sizes given as one number or as one per dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def ntuple(value: Any, n: int) -> tuple:
    """``value`` as a tuple of n numbers: a single number is repeated."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,) * n
