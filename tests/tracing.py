"""Points of running code: every bytecode, and the points at which Python runs signal handlers."""

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
    "tinygrad_mem.callbacks.finalize",
}


def watch(frame: FrameType, trace: Any) -> None:
    """Let ``trace`` get an event for each bytecode of ``frame``, and none for lines."""
    frame.f_trace = trace  # else Python 3.13 does not begin with this call
    frame.f_trace_opcodes, frame.f_trace_lines = True, False


@contextmanager
def traced(trace: Any) -> Iterator[None]:
    """Inside, ``trace`` is the thread's tracer."""
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # else Python 3.12 sends no event of a bytecode, whatever frames ask for later
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def signal_points(
    ours: Callable[[CodeType], bool], at: Callable[[FrameType, int], None], in_finalisers: bool = False
) -> Iterator[None]:
    """Call ``at(frame, position)`` at each point of ``ours`` at which Python may run a signal handler; -1: the start of a call.

    These points are the beginning of functions, the end of calls of C functions, and jumps back in loops. There is none between
    a ``with`` that took a lock and its body. Finalisers are left out by default: what a tracer raises there is lost.
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
        if hears and (in_finalisers or not finalising(frame)):
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
    """True if a finaliser of the package called ``frame``."""
    while frame is not None and f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}" not in _FINALISERS:
        frame = frame.f_back
    return frame is not None
