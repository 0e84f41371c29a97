"""Threads and signals: changes that must happen once, and changes that must not stop halfway.

Python runs a signal handler (Ctrl-C) in the main thread: at the beginning of a function, after a call of a C function, and
where a loop goes back. The handler may raise there. Threads may switch at the same points; on free-threaded Python they run at
once. A single call of a C function on one object is safe in both cases: ``deque.popleft`` gives each item to one thread. An
iterator is not safe between two threads.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions wrap numbers in enums, slowly
import functools
import itertools
import os
import signal
import sys
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


class _EnteredLock(RLock):  # type: ignore[misc]  # final only for type checkers
    """A lock that is released even if a signal comes just as a ``with`` block has taken it.

    CPython 3.14 runs signal handlers between an ``__enter__`` that is written in C and the block. If one raises there, nothing
    releases the lock (https://github.com/python/cpython/issues/148874). After an ``__enter__`` that is written in Python, and
    after the step of an iterator, it runs none.
    """

    def __enter__(self) -> bool:
        for taken in starmap(self.acquire, ((),)):
            return taken
        raise AssertionError("the loop returns")


ReentrantLock = _EnteredLock if sys.version_info[:2] == (3, 14) else RLock
"""A lock for ``with`` blocks that signals may end. A thread that has it may take it again."""


def taken_by_forks() -> RLock:
    """A new lock that a fork takes: a child finds it free, and no change under it half done."""
    made = ReentrantLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made


lock = taken_by_forks()
"""The one lock for short changes of shared state: pools, listeners, logs, random numbers.

A signal handler or a finalizer may run between any two bytecodes and take the lock again. Changes under the lock must allow
that. A thread that has the lock must not wait for anything else: another thread may hold that and wait for the lock. So take
any of the few other locks only if :func:`may_wait`.
"""


def reentrant() -> RLock:
    """A new lock for a module. In a forked child it is free, unless the thread that forked has it."""
    made = ReentrantLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: made._is_owned() or made._at_fork_reinit())  # type: ignore[attr-defined]
    return made


def may_wait() -> bool:
    """False if the running thread has :data:`lock`: then it must not wait for other threads."""
    return not lock._is_owned()  # type: ignore[attr-defined]


def lock_was_mine() -> bool:
    """True if this thread has taken the lock more than once: then it runs inside a change."""
    try:
        lock.release()
        return not may_wait()
    finally:  # also if an interrupt came after the release
        lock.acquire()


class _LockedCounter:
    """Gives each number to one caller only; a signal handler may be one."""

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first)

    def __call__(self) -> int:
        with lock:
            number = next(self._numbers)  # not returned here: the tests send a signal at the bytecode after the call
        return number


def counter(first: int) -> Callable[[], int]:
    """A function that returns ``first``, then the numbers after it, each once. Any thread may call it."""
    # with the interpreter's lock ``__next__`` is one call of C
    return _LockedCounter(first) if FREE_THREADED else itertools.count(first).__next__


def copy_queue(queue: deque[T]) -> deque[T]:
    """A copy of ``queue``. Other threads may append and pop at the same time."""
    while True:
        try:
            return deque(queue)  # not queue.copy(): on free-threaded Python 3.13 it waits for a lock that it holds itself
        except RuntimeError:  # free-threaded Python raises if another thread changed it during the copy
            continue


def drain(left: deque[T]) -> Iterator[T]:
    """Pop the items of ``left`` from its beginning. If several threads do so at once, one of them gets each item."""
    while True:
        try:
            item = left.popleft()
        except IndexError:
            return
        yield item
        del item


class LiveObjects:
    """Weak references to objects, in the order in which they were added. Any thread, handler or finalizer may use it."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: Any) -> None:
        here, key = self._references, id(thing)
        here[key] = weakref.ref(thing, functools.partial(here.pop, key))  # called with the reference: pop's default

    def all(self) -> list[Any]:
        """The objects that are alive now."""
        return [thing for reference in self._references.copy().values() if (thing := reference()) is not None]


class _Context:
    """A context manager made of a generator with one ``yield``."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Any) -> None:
        self._steps = steps

    def __enter__(self) -> Any:
        try:
            return next(self._steps)
        except BaseException:  # an interrupt after the call, or an error of the generator
            self._steps.close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            del kind
        finally:
            if error is None:
                if next(self._steps, self) is not self:
                    raise RuntimeError("context: the function has a second yield: expected one")
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
    """As ``contextlib.contextmanager``, but the generator also finishes if a signal comes as the block ends.

    An exception of the block is raised again, unless the generator raises another one.
    """

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Context(function(*args, **kwargs))

    return make


@context
def changed(owner: Any, **attribute: Any) -> Iterator[None]:
    """Inside, one attribute of ``owner`` has another value: ``changed(watch, alarms=False)``."""
    ((name, value),) = attribute.items()
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, before)


@context
def all_or_nothing(*things: Any) -> Iterator[None]:
    """If the block raises, restore the attributes of ``things`` and the items of their dicts, lists and sets.

    For user code, which may raise halfway. Objects inside these containers are not restored.
    """
    before: list[tuple[Any, Any]] = [(vars(thing), vars(thing).copy()) for thing in things]
    inside = [(c, c.copy()) for _, kept in before for c in kept.values() if isinstance(c, (dict, list, set))]
    try:
        yield
    except BaseException:
        cleanup(_refill, before + inside)
        raise


def _refill(containers: list) -> None:
    for container, kept in containers:
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(kept)


def _number(table: bytes) -> tuple[int, bytes]:
    """The first number of an exception table, and what follows. Each byte has 6 bits, and 0x40 if another byte follows."""
    value = table[0] & 63
    while table[0] & 0x40:
        table = table[1:]
        value = value << 6 | table[0] & 63
    return value, table[1:]


def signal_safe(function: F) -> F:
    """Extend the ``try`` at the beginning of ``function`` to its first instruction, where a signal handler may already raise.

    For ``__exit__``: a signal that comes as a ``with`` block ends is raised before the first line, outside of
    ``try: ... finally:``, and the end would not restore anything. The range of a ``try`` is in CPython's exception table. If
    that table has an unknown format, the function stays as it is.
    """
    code = function.__code__
    table = getattr(code, "co_exceptiontable", b"")
    if table and table[0] & 0x80:  # the first entry: where its range begins, and its length
        begin, rest = _number(table)
        length, rest = _number(rest)
        digits = [begin + length >> shift & 63 for shift in (12, 6, 0) if begin + length >> shift or not shift]
        longer = bytes([0x80, *[digit | 0x40 for digit in digits[:-1]], digits[-1]]) + rest
        function.__code__ = code.replace(co_exceptiontable=longer)  # type: ignore[attr-defined]
    return function


_Context.__exit__ = signal_safe(_Context.__exit__)  # type: ignore[method-assign]

_held = False  # True while uninterrupted() runs in the main thread
_seen: tuple[list, list] = ([], [])  # the handlers found last, and those of them that are written in Python


def uninterrupted(change: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call ``change`` and delay signals: the handler of a signal that comes meanwhile runs afterwards, and may raise then.

    This holds for Python handlers of the signals that stop or time programs (Ctrl-C, ``SIGTERM``, ``SIGALRM``, ``SIGUSR1``,
    ...). Handlers of other signals and handlers written in C run at once. An exception from another thread
    (``PyThreadState_SetAsyncExc``) or from a tracer is raised at once too. Outside of the main thread no handler runs, so this
    is a plain call.
    """
    global _held
    if _held or get_ident() != threading.main_thread().ident:
        return change(*arguments, **options)
    handlers = [*map(_signal.getsignal, _SIGNALS)]
    seen, python = _seen
    if handlers != seen:
        python = _python(handlers)
    late: dict[int, Any] = {}
    note = late.setdefault  # a C function: no other signal interrupts it
    try:
        for number, _ in python:
            _signal.signal(number, note)
        _held = True
        return change(*arguments, **options)
    finally:
        _held = False
        try:
            deque(starmap(_signal.signal, python), 0)
        except BaseException:  # a signal whose handler was restored already
            deque(starmap(_signal.signal, python), 0)
            raise
        finally:
            if late:
                _run_handlers(late, dict(python))


@signal_safe
def cleanup(change: Callable[..., object], *arguments: Any, begun: list[bool] | None = None) -> None:
    """As :func:`uninterrupted`, for cleaning up. If a signal comes before the change, the change runs first.

    Args:
        begun: filled when the change begins; callers do not pass it.
    """
    try:
        begun = []
        uninterrupted(_begin, begun, change, arguments)
    finally:
        if not begun:
            change(*arguments)


def _begin(begun: list[bool], change: Callable[..., object], arguments: tuple) -> None:
    begun.append(True)
    change(*arguments)


class EndsAlways:
    """The base of ``with`` blocks: :meth:`_end` runs once when the block is left, also if a signal comes just then."""

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            cleanup(self._end)

    def _end(self) -> None:
        raise NotImplementedError


def uninterruptible(change: F) -> F:
    """Decorator: the function runs as in :func:`uninterrupted`."""

    @functools.wraps(change)
    def run(*arguments: Any, **options: Any) -> Any:
        return uninterrupted(change, *arguments, **options)

    return run  # type: ignore[return-value]


def _python(handlers: list) -> list[tuple[int, Any]]:
    """(signal, handler) for each handler that is written in Python; Ctrl-C last."""
    global _seen
    python = [(n, h) for n, h in zip(_SIGNALS, handlers, strict=True) if callable(h)]
    python.sort(key=lambda pair: pair[0] == signal.SIGINT)
    _seen = handlers, python
    return python


def _run_handlers(late: dict[int, Any], handlers: dict[int, Any]) -> None:
    """Call the handler of each signal in ``late``, all of them even if one raises."""
    number, frame = late.popitem()
    try:
        handlers[number](number, frame)
    finally:
        if late:
            _run_handlers(late, handlers)
