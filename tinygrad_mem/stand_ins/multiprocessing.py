"""Python's ``multiprocessing`` under the name that PyTorch gives it; tensors that are sent to a process are copied."""

from __future__ import annotations

from multiprocessing import *  # noqa: F403  # pyright: ignore

from .refused import Refused

spawn = Refused("multiprocessing", "spawn", "one process computes here: call the function itself, with rank 0")
