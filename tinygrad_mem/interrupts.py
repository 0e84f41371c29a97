"""Threads and signals: what must not be taken twice, and what must not be cut in two.

Python hears a signal (Ctrl-C) in its main thread, at the beginning of a function, at the end of a call of C and where a loop
goes back, and the handler may raise there. Threads may change places at the same points; without the interpreter's lock (a
free-threaded build) they run at once. What holds in both cases is a single call of C on one object: ``deque.popleft`` gives
each item to one taker. An iterator promises nothing to two threads.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions wrap numbers in enums, slowly
import functools
import itertools
import os
import signal
import sysconfig
import threading
import weakref
from _thread import RLock, get_ident
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import starmap
from typing import Any, ParamSpec, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
_NAMES = "SIGINT SIGTERM SIGHUP SIGQUIT SIGBREAK SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGXCPU SIGCHLD"
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES.split() if hasattr(signal, name)]


lock = RLock()
"""The one lock of what threads share and change in a few statements: pools, who listens, what a track knows, random numbers.

A signal's handler or a finalizer runs between any two bytecodes, so what is changed under it is written to stand such a visit
too: the thread that has the lock may take it again. Whoever has it waits for nothing else, not even such a visit: another
thread may have what it waits for, and want the lock. The few locks beside this one are asked for with :func:`may_wait`.
"""
if hasattr(os, "register_at_fork"):  # a forked child finds it open, and what it guards whole
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def may_wait() -> bool:
    """Whether the running thread may wait for others: not with :data:`lock`, which a handler has that comes inside a change."""
    return not lock._is_owned()  # type: ignore[attr-defined]


def lock_was_mine() -> bool:
    """Whether this thread, which has the lock, had it already before it took it now: it comes from inside a change."""
    try:
        lock.release()
        return not may_wait()
    finally:  # also where a signal was heard after the first call
        lock.acquire()


class _Guarded:
    """The next number, to one caller at a time; a signal's handler may ask too."""

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first)

    def __call__(self) -> int:
        with lock:
            return next(self._numbers)


def counter(first: int) -> Callable[[], int]:
    """A function that gives ``first`` and the numbers after it, in order and each once, whichever threads call it."""
    return _Guarded(first) if FREE_THREADED else itertools.count(first).__next__  # with the interpreter's lock one call of C


def copied(queue: deque[T]) -> deque[T]:
    """A copy of ``queue``, though other threads append and take meanwhile."""
    while True:
        try:
            return queue.copy()
        except RuntimeError:  # free-threaded Python 3.13 copies while others change it, and notices
            continue


def each(left: deque[T]) -> Iterator[T]:
    """The items of ``left``, taken from its beginning: threads that walk it at once take each item once."""
    while True:
        try:
            item = left.popleft()
        except IndexError:
            return
        yield item
        del item


class Living:
    """The objects that were added and are still alive, in that order. Any thread, handler or finalizer may add and look."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: Any) -> None:
        here, key = self._references, id(thing)
        here[key] = weakref.ref(thing, functools.partial(here.pop, key))  # whose default is what it is called with

    def all(self) -> list[Any]:
        """Those that are alive now."""
        return [thing for reference in self._references.copy().values() if (thing := reference()) is not None]


class _Context:
    """A context manager made of a generator with one ``yield``."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Any) -> None:
        self._steps = steps

    def __enter__(self) -> Any:
        try:
            return next(self._steps)
        except BaseException:  # a signal, which is heard after the call, or an error of the generator's
            self._steps.close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            del kind
        finally:
            if error is None:
                if next(self._steps, self) is not self:
                    raise RuntimeError("a context yields once")
            else:
                try:
                    self._steps.throw(error)
                except BaseException as found:
                    if found is not error and not (isinstance(error, StopIteration) and found.__cause__ is error):
                        raise
                    error.__traceback__ = trace
                finally:
                    del error, trace


def context(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As ``contextlib.contextmanager``, for what must be put back: a signal that comes as the block ends does not prevent it.

    An exception of the block's goes on, or another one of the generator's.
    """

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Context(function(*args, **kwargs))

    return make


@context
def all_or_nothing(*things: Any) -> Iterator[None]:
    """Restore the attributes of ``things``, and what was in their dicts, lists and sets, where the block raises.

    For code of the user's, which may raise halfway. What lies deeper than that is left as it is.
    """
    before: list[tuple[Any, Any]] = [(vars(thing), vars(thing).copy()) for thing in things]
    inside = [(c, c.copy()) for _, kept in before for c in kept.values() if isinstance(c, (dict, list, set))]
    try:
        yield
    except BaseException:
        surely(_refill, before + inside)
        raise


def _refill(containers: list) -> None:
    for container, kept in containers:
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(kept)


def covered(function: F) -> F:
    """Let the ``try`` that ``function`` begins with cover its first instruction, at which Python hears signals.

    For ``__exit__``: a signal that comes when a ``with`` block ends is raised before the first line, so that
    ``try: ... finally:`` would not put back what the block had changed. The range is in CPython's table of exceptions; where
    that looks otherwise than we know it, the function stays as it is.
    """
    code = function.__code__
    table = getattr(code, "co_exceptiontable", b"")
    known = len(table) > 3 and [byte >> 6 for byte in table[:2]] == [2, 0] and (table[0] & 63) + table[1] < 64
    if known:  # numbers of 6 bits: where the first range begins, and its length
        longer = bytes([0x80, (table[0] & 63) + table[1]]) + table[2:]
        function.__code__ = code.replace(co_exceptiontable=longer)  # type: ignore[attr-defined]
    return function


_Context.__exit__ = covered(_Context.__exit__)  # type: ignore[method-assign]

_held = False  # inside of a whole change, of the main thread
_seen: tuple[list, list] = ([], [])  # handlers as they were found last, and those of them that are Python's


def whole(change: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """``change(*arguments, **options)``, which no signal cuts in two: its handler is called right after it, and may raise then.

    Held back are Python's handlers of the signals by which programs are stopped and timed (Ctrl-C, ``SIGTERM``, ``SIGALRM``,
    ``SIGUSR1``, ...). Those of others run at once, as does what C does with a signal. Not held back is what comes from
    elsewhere: an exception that another thread sets with ``PyThreadState_SetAsyncExc``, or one of a tracer's. In other threads
    than the main one no handler runs, and this is a plain call.
    """
    global _held
    if _held or get_ident() != threading.main_thread().ident:
        return change(*arguments, **options)
    handlers = [*map(_signal.getsignal, _SIGNALS)]
    seen, python = _seen
    if handlers != seen:
        python = _python(handlers)
    late: dict[int, Any] = {}
    note = late.setdefault  # of C: no place where another signal is heard
    try:
        for number, _ in python:
            _signal.signal(number, note)
        _held = True
        return change(*arguments, **options)
    finally:
        _held = False
        try:
            deque(starmap(_signal.signal, python), 0)
        except BaseException:  # a signal whose own handler is back already
            deque(starmap(_signal.signal, python), 0)
            raise
        finally:
            if late:
                _answer(late, dict(python))


@covered
def surely(change: Callable[..., object], *arguments: Any, begun: list[bool] | None = None) -> None:
    """As :func:`whole`, for what puts back: a signal that comes before it begins is raised after it, too.

    Args:
        begun: filled when the change begins; nobody gives it.
    """
    try:
        begun = []
        whole(_begin, begun, change, arguments)
    finally:
        if not begun:
            change(*arguments)


def _begin(begun: list[bool], change: Callable[..., object], arguments: tuple) -> None:
    begun.append(True)
    change(*arguments)


def undivided(change: F) -> F:
    """Decorate a function that runs as :func:`whole`."""

    @functools.wraps(change)
    def run(*arguments: Any, **options: Any) -> Any:
        return whole(change, *arguments, **options)

    return run  # type: ignore[return-value]


def _python(handlers: list) -> list[tuple[int, Any]]:
    """The signals that have a handler of Python's, with it; Ctrl-C last."""
    global _seen
    python = [(n, h) for n, h in zip(_SIGNALS, handlers, strict=True) if callable(h)]
    python.sort(key=lambda pair: pair[0] == signal.SIGINT)
    _seen = handlers, python
    return python


def _answer(late: dict[int, Any], handlers: dict[int, Any]) -> None:
    """Call the handlers of the signals that came, each of them though one before it raises."""
    number, frame = late.popitem()
    try:
        handlers[number](number, frame)
    finally:
        if late:
            _answer(late, handlers)
