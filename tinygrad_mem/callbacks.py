"""Signal handlers, finalizers and callbacks of weak references: Python itself calls them, in the middle of other code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import functools
import inspect
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from itertools import starmap
from types import FrameType
from typing import Any

from .interrupts import _begin, signal_safe, uninterrupted

_callbacks: dict[tuple[int, int], tuple] = {}  # by the ids of two code objects, which are kept, so that ids stay unique


def callback_depth() -> int:
    """The number of signal handlers, finalizers and weak-reference callbacks that the running code is inside of.

    Python itself calls these, in the middle of other code, which they are not part of. To be fast, each pair of a function and
    its caller is examined once.
    """
    frame, count = sys._getframe(1), 0
    here = id(frame.f_code)
    while (caller := frame.f_back) is not None:
        above = id(caller.f_code)
        try:
            count += _callbacks[here, above][0]
        except KeyError:
            found = _callbacks[here, above] = _is_callback(frame), frame.f_code, caller.f_code
            count += found[0]
        frame, here = caller, above
    return count


def _is_callback(frame: FrameType) -> bool:
    """True if Python itself called the function of ``frame``: its arguments are those of a handler, callback or finalizer."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return False  # no function
    named, given = code.co_argcount, frame.f_locals
    arguments = [given.get(name) for name in code.co_varnames[:named]]
    if code.co_flags & inspect.CO_VARARGS:
        arguments += given.get(code.co_varnames[named + code.co_kwonlyargcount], ())
    if type(given) is dict and sys.gettrace() is None:
        given.clear()  # before Python 3.13 a copy that would live as long as the frame; a tracer needs it
    finalizer = getattr(type(arguments[0]), "__del__", None) if arguments else None
    if getattr(finalizer, "__code__", None) is code:
        return True
    return any(type(a) is FrameType or (isinstance(a, weakref.ref) and a() is None) for a in arguments)


def raise_after_finalizer(error: BaseException) -> None:
    """Raise Ctrl-C again in the main thread, after the finalizer or callback of a weak reference whose last act this is.

    Python prints an exception there and goes on, as if nobody had pressed the keys. Any other error is raised here. So is
    Ctrl-C if it has a handler of the user's, which should not run twice.
    """
    pressed = isinstance(error, KeyboardInterrupt) and get_ident() == threading.main_thread().ident
    if not pressed or _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        raise error
    for _ in starmap(_thread.interrupt_main, ((),)):  # after the step of an iterator no handler runs, after a call one would
        return


def finalizer(end: Callable[..., object]) -> Any:
    """Make a ``__del__`` or a callback of weak references run once and whole. Ctrl-C that comes meanwhile is raised after it.

    A ``__del__`` may find an object half made, if a signal ended its ``__init__``.
    """

    @signal_safe
    @functools.wraps(end)
    def finalize(*arguments: Any, begun: list[bool] | None = None) -> None:
        try:
            begun = []
            uninterrupted(_begin, begun, end, arguments)
        except BaseException as error:
            if not begun:
                end(*arguments)
            raise_after_finalizer(error)

    return finalize
