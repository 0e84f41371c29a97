"""What may come at a bad moment, at a moment of the test's choice: Ctrl-C at any point at which Python hears it, or a visit
(code that a signal handler, a finalizer or another thread runs) between any two bytecodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from tests.tracing import signal_points, traced, watch


@contextmanager
def interrupted(point: int, *modules: ModuleType) -> Iterator[list[str]]:
    """``KeyboardInterrupt`` at the ``point``-th place of the modules' code that runs; the list says where it was."""
    files, where, count = {module.__file__ for module in modules}, [], 0

    def at(frame: FrameType, position: int) -> None:
        nonlocal count
        count += position >= 0
        if position >= 0 and count == point:
            where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            sys.settrace(None)
            raise KeyboardInterrupt

    with signal_points(lambda code: code.co_filename in files, at):
        yield where


@contextmanager
def visited(visit: Callable[[], object], *modules: ModuleType, every: int = 1, only: int = 0) -> Iterator[list[str]]:
    """``visit()`` before each ``every``-th bytecode of the modules' code that runs, or before the ``only``-th; the list says
    where it was.

    What a visit raises is raised when all is done: in a finalizer it would be lost.
    """
    files, where, count, raised = {module.__file__ for module in modules}, [], 0, []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        watch(frame, trace)
        if event == "opcode" and not raised:
            count += 1
            if count == only or (not only and count % every == 0):
                where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                try:
                    visit()
                except BaseException as error:
                    error.add_note(f"visited at {where[-1]}")
                    raised.append(error)
                if only:
                    sys.settrace(None)
        return trace

    try:
        with traced(trace):
            yield where
    finally:
        if raised:
            raise raised[0]
