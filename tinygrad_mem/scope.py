"""State of the running thread, and the seam through which a tracker listens.

Kept at the bottom so that every room may read it; the switches that users turn (``no_grad``, ``autocast``,
``memory.track``) live in the rooms that give them their meaning.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class _Local(threading.local):
    """One copy a thread: a worker starts with gradients on and no hooks, as in PyTorch.

    Attributes:
        run: ``run(f, *args)`` calls ``f`` where NumPy does not warn: inf and nan are values here, as in PyTorch. It is a
            context of the thread's own, 20 times cheaper to enter than ``np.errstate``; the user's settings are not touched.
    """

    run: Callable[..., Any]

    def __init__(self) -> None:
        quiet = contextvars.copy_context()
        quiet.run(np.seterr, all="ignore")
        self.run = quiet.run

    grad_enabled: bool = True
    inference: bool = False
    saved_hooks: tuple = ()  # stack of (pack, unpack), the innermost last
    default_device: Any = None  # None: the cpu
    phase: str = "forward"
    op: str = ""
    module: str = ""


local = _Local()


class Listener(Protocol):
    """What a tracker hears. Nobody below the tracker knows more of it than this."""

    def malloc(self, device: Any, address: int, requested: int, rounded: int) -> None: ...
    def free(self, device: Any, address: int, rounded: int) -> None: ...
    def saved(self, node: Any, name: str, array: Any) -> None: ...
    def role(self, array: Any, role: str) -> None: ...


listeners: tuple[Listener, ...] = ()  # empty means that nothing is tracked, and nothing is paid for it


def listen(listener: Listener) -> None:
    """Add ``listener`` to those who hear of every allocation, on every thread."""
    global listeners
    listeners = (*listeners, listener)


def unlisten(listener: Listener) -> None:
    """Remove ``listener``; a listener that is not there is an error of the caller."""
    global listeners
    if not any(each is listener for each in listeners):
        raise ValueError("this listener is not listening; listen() and unlisten() come in pairs")
    listeners = tuple(each for each in listeners if each is not listener)


class phase:
    """``with scope.phase("backward"):`` marks what the thread is doing; phases nest and restore what stood before."""

    __slots__ = ("before", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before, local.phase = local.phase, self.name

    def __exit__(self, *exc: object) -> None:
        local.phase = self.before
