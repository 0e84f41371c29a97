"""Which of our locks are asked for while others are held: of two that are taken in two orders, two threads wait for ever.

Every lock of the package is replaced, those of modules and those that objects make meanwhile. What is noted does not depend on
how threads happen to meet: an order that nobody has waited in yet is noted too.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tinygrad_mem.interrupts import ReentrantLock

_RLOCK = type(threading.RLock())
Edges = dict[tuple[str, str], str]


class Book:
    """What is held and asked for.

    Attributes:
        edges: (held, asked for) -> where, for the first time.
        visit: called, with the lock's name, when a thread has just taken a lock that it had not: as a finalizer might be.
    """

    def __init__(self, visit: Callable[[str], None] | None = None) -> None:
        self.edges: Edges = {}
        self.visit = visit
        self._mine = threading.local()

    def held(self) -> list[Noted]:
        """The locks of the running thread."""
        if not hasattr(self._mine, "held"):
            self._mine.held = []
        return self._mine.held

    def asks(self, lock: Noted) -> None:
        """The thread may wait for ``lock`` now."""
        for other in self.held():
            if other is not lock:
                self.edges.setdefault((other.name, lock.name), _where())

    def takes(self, lock: Noted) -> None:
        """The thread has ``lock`` now."""
        held = self.held()
        had = lock in held
        held.append(lock)
        if self.visit is not None and not had and not getattr(self._mine, "visiting", False):
            self._mine.visiting = True
            try:
                self.visit(lock.name)
            finally:
                self._mine.visiting = False


class Noted:
    """A lock that notes who asks for it."""

    def __init__(self, book: Book, name: str, lock: Any) -> None:
        self.book, self.name, self.lock = book, name, lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and not (hasattr(self.lock, "_is_owned") and self.lock._is_owned()):
            self.book.asks(self)
        got = self.lock.acquire(blocking, timeout)
        if got:
            self.book.takes(self)
        return got

    def release(self) -> None:
        held = self.book.held()
        if self in held:
            del held[len(held) - 1 - held[::-1].index(self)]
        self.lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self.lock.locked()

    def _is_owned(self) -> bool:
        return self.lock._is_owned()

    def _release_save(self) -> Any:
        held = self.book.held()
        count = held.count(self)
        held[:] = [each for each in held if each is not self]
        return count, self.lock._release_save()

    def _acquire_restore(self, saved: Any) -> None:
        count, state = saved
        self.book.asks(self)
        self.lock._acquire_restore(state)
        self.book.held().extend([self] * count)


class _Threading:
    """The module ``threading`` as one of ours sees it: what it makes is noted."""

    def __init__(self, book: Book, module: str) -> None:
        self.book, self.module = book, module

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def _made(self, lock: Any) -> Noted:
        frame = sys._getframe(2)
        return Noted(self.book, f"{self.module}.{frame.f_code.co_qualname}", lock)

    def Lock(self) -> Noted:
        return self._made(threading.Lock())

    def ReentrantLock(self) -> Noted:
        return self._made(ReentrantLock())


@contextmanager
def noted(book: Book) -> Iterator[None]:
    """Inside, ``book`` has what the package's locks are asked for."""
    before: list[tuple[Any, str, Any]] = []
    twins: dict[int, Noted] = {}
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "tinygrad_mem" and m is not None]
    for module in modules:
        own = {id(value): value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__}
        places = [module, *own.values()]
        for place in [p for p in places if hasattr(p, "__dict__")]:
            for name, value in list(vars(place).items()):
                if isinstance(value, _RLOCK):
                    new: Any = twins.setdefault(id(value), Noted(book, name, value))
                elif value is threading and place is module:
                    new = _Threading(book, module.__name__)
                elif value is ReentrantLock and place is module:
                    new = _Threading(book, module.__name__).ReentrantLock
                else:
                    continue
                before.append((place, name, value))
                setattr(place, name, new)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def circle(edges: Edges) -> list[str]:
    """Locks that are asked for in a circle, with the places; empty where there is an order of all."""
    after: dict[str, list[str]] = {}
    for held, asked in edges:
        after.setdefault(held, []).append(asked)

    def walk(path: list[str]) -> list[str]:
        for asked in after.get(path[-1], []):
            found = [*path[path.index(asked) :], asked] if asked in path else walk([*path, asked])
            if found:
                return found
        return []

    for start in after:
        found = walk([start])
        if found:
            return [f"{a} -> {b} at {edges[a, b]}" for a, b in itertools.pairwise(found)]
    return []


def _where() -> str:
    frame: Any = sys._getframe(3)
    lines = []
    while frame is not None and len(lines) < 6:
        lines.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)
