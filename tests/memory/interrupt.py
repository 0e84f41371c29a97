"""What may come at a bad moment, at a moment of the test's choice: Ctrl-C at any point at which Python hears it, or a visit
(code that a signal handler, a finalizer or another thread runs) between any two bytecodes.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

_HEARS = {"RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"}
_HEARS |= {"POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"}
_HEARS_AFTER = {"CALL", "CALL_FUNCTION_EX"}
_FINALISERS = {
    "tinygrad_mem.devices.pool.__del__",
    "tinygrad_mem.autograd.tape.__del__",
    "tinygrad_mem.memory.listener.<lambda>",
}


@contextmanager
def interrupted(point: int, *modules: ModuleType) -> Iterator[list[str]]:
    """``KeyboardInterrupt`` at the ``point``-th point of the modules' code that runs; the list says where it was.

    Signals are heard at the beginning of functions, at the end of calls of C and where loops go back: between a
    ``with`` that took a lock and its body there is no such point. Left out are finalisers: Python itself drops what is raised
    there.
    """
    files, where, count = {module.__file__ for module in modules}, [], 0
    called: dict[FrameType, bool] = {}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if event == "call" and frame.f_back is not None:
            called.pop(frame.f_back, None)  # a call of Python's: what it does is seen, and its end is no such point
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            hears, called[frame] = called.get(frame, False) or name in _HEARS, name in _HEARS_AFTER
            hears = hears and not _finalising(frame)
            count += hears
            if hears and count == point:
                where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                called.clear()
                sys.settrace(None)
                raise KeyboardInterrupt
        elif event == "return":
            called.pop(frame, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
        called.clear()


def _finalising(frame: FrameType | None) -> bool:
    while frame is not None and f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}" not in _FINALISERS:
        frame = frame.f_back
    return frame is not None


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
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
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

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
        if raised:
            raise raised[0]
