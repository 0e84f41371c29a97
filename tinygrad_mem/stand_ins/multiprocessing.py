"""Python's ``multiprocessing`` under the name that PyTorch gives it; tensors that are sent to a process are copied."""

from __future__ import annotations

from multiprocessing import *  # noqa: F403  # pyright: ignore
from typing import Any

from ..errors import NotOfferedError


def spawn(fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False, **kwargs: Any) -> None:
    """Not offered: one process computes here. Raises: NotOfferedError: always."""
    raise NotOfferedError("multiprocessing.spawn: one process computes here: call the function itself, with rank 0")
