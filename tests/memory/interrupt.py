"""Ctrl-C at any line: what a signal that comes at a bad moment would do, at a moment of the test's choice."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def interrupted(line: int, *modules: ModuleType) -> Iterator[list[str]]:
    """``KeyboardInterrupt`` before the ``line``-th line that runs of the modules' code; the list says where it was.

    The line of a ``with`` is left out: Python shows it again on the way out, where no signal is ever heard.
    """
    files, where, count = {module.__file__ for module in modules}, [], 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            count += 1
            if count == line:
                where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
