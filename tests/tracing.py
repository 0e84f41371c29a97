"""Places of running code: every bytecode, and those at which Python hears signals."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_HEARS = {"RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"}
_HEARS |= {"POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"}
_HEARS_AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
_FINALISERS = {
    "tinygrad_mem.devices.pool.__del__",
    "tinygrad_mem.autograd.saved.__del__",
    "tinygrad_mem.memory.listener.<lambda>",
}


def watch(frame: FrameType, trace: Any) -> None:
    """Let ``trace`` hear of each bytecode of ``frame``, and of no lines."""
    frame.f_trace = trace  # else Python 3.13 does not begin with this call
    frame.f_trace_opcodes, frame.f_trace_lines = True, False


@contextmanager
def traced(trace: Any) -> Iterator[None]:
    """Inside, ``trace`` is the thread's tracer."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def hearing(ours: Callable[[CodeType], bool], at: Callable[[FrameType, int], None]) -> Iterator[None]:
    """``at(frame, position)`` where Python hears signals in code that is ``ours``; position -1 is the beginning of a call.

    Signals are heard at the beginning of functions, at the end of calls of C and where loops go back: between a ``with`` that
    took a lock and its body there is no such point. Left out are finalisers: Python itself drops what is raised there.
    """
    called: dict[FrameType, bool] = {}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call" and frame.f_back is not None:
            called.pop(frame.f_back, None)  # a call of Python's: what it does is seen, and its end is no such point
        if not ours(frame.f_code):
            return None
        watch(frame, trace)
        hears = event == "call"
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            hears, called[frame] = called.get(frame, False) or name in _HEARS, name in _HEARS_AFTER
        elif event == "return":
            called.pop(frame, None)
        if hears and not finalising(frame):
            try:
                at(frame, -1 if event == "call" else frame.f_lasti)
            except BaseException:
                called.clear()  # frames would be held until the end
                raise
        return trace

    with traced(trace):
        yield
    called.clear()


def finalising(frame: FrameType | None) -> bool:
    """Whether ``frame`` was called by a finaliser of the package."""
    while frame is not None and f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}" not in _FINALISERS:
        frame = frame.f_back
    return frame is not None
