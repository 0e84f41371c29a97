"""A dry run: for one thread, and for those that it starts, every device is one where nothing is computed.

All that a dry run changes is the state of its own threads, so several run at once, beside threads that compute.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .. import scope
from ..interrupts import context, lock
from ..scope import local
from .meta import Meta
from .random import Apart, Draws, Noted


@context
def dry_run(like: str = "cpu") -> Iterator[Any]:
    """Inside, every device that the thread names is one ``meta`` of the run's own, whose pool begins empty.

    Generators begin as they stand and are not moved. Threads that are started inside, and tasks that are given to a
    ``ThreadPoolExecutor`` or a ``ThreadPool``, belong to the run. What outlives it can be looked at; it gets no memory.

    Args:
        like: whose workspaces kernels want, ``"cpu"`` or ``"cuda"``.

    Raises:
        DeviceError: ``like`` is no such device, or CuPy is missing.
    """
    _follow_threads()
    meta = Meta.apart(like)
    try:
        with _inside(meta, meta.draws):
            yield meta
    finally:
        meta.pool.close()


@context
def _inside(meta: Meta | None, draws: Any) -> Iterator[None]:
    """The thread belongs to the dry run on ``meta``, if there is one, and draws as its program does."""
    with scope.switched(scope.switches()):  # what the program leaves turned is turned back
        local.draws = draws
        if meta is not None:
            local.dry, local.default_device = meta, None
        yield


# --- threads


def _call(meta: Meta | None, draws: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _inside(meta, draws):
        return function(*args, **kwargs)


def _ours(function: Any) -> Any:
    """A caller of ``function`` that is part of the running thread's program; outside of any, ``function`` itself."""
    return function if local.draws is None or function is None else functools.partial(_call, local.dry, local.draws, function)


def _run(thread: threading.Thread, meta: Meta | None, draws: Any) -> None:
    del thread.run  # the class's again: what is set in its place refers to the thread
    with _inside(meta, draws):
        thread.run()


def noted() -> Draws:
    """Inside, what the thread and those that it starts draw is noted, for what shall draw the same :meth:`~Draws.again`."""
    _follow_threads()
    return Noted()


def apart() -> Draws:
    """Inside, the thread and those that it starts may seed and draw as they like: nobody else's generator is moved."""
    _follow_threads()
    return Apart()


@functools.cache
def _follow_threads() -> None:
    """From now on, who starts a thread, or hands work to one, is looked at; nothing else changes for others."""
    from concurrent.futures import Future, ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    with lock:
        if not hasattr(threading.Thread.start, "__wrapped__"):
            threading.Thread.start = _starting(threading.Thread.start)
            ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)
            ThreadPoolExecutor.__init__ = _with_initializer(ThreadPoolExecutor.__init__)
            Future.add_done_callback = _handing_on(Future.add_done_callback)
            for name in ("start_new_thread", "start_new", "start_joinable_thread"):  # the last since Python 3.13
                if hasattr(_thread, name):
                    setattr(_thread, name, _following_function(getattr(_thread, name)))
            for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
                setattr(ThreadPool, name, _handing_on(getattr(ThreadPool, name)))


def _starting(start: Any) -> Any:
    @functools.wraps(start)
    def follow(self: threading.Thread) -> None:
        if local.draws is not None and not self._started.is_set():  # type: ignore[attr-defined]
            self.run = functools.partial(_run, self, local.dry, local.draws)
        return start(self)

    return follow


def _submitting(submit: Any) -> Any:
    """The task belongs to the program; the thread that takes it may take others' afterwards."""

    @functools.wraps(submit)
    def follow(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        fn = _ours(fn)
        with scope.switched(scope.FRESH):
            return submit(self, fn, *args, **kwargs)

    return follow


def _with_initializer(init: Any) -> Any:
    @functools.wraps(init)
    def follow(
        self: Any, max_workers: Any = None, thread_name_prefix: str = "", initializer: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        init(self, max_workers, thread_name_prefix, _ours(initializer), *args, **kwargs)

    return follow


def _following_function(start: Any) -> Any:
    @functools.wraps(start)
    def follow(function: Any, *args: Any, **kwargs: Any) -> Any:
        return start(_ours(function) if callable(function) else function, *args, **kwargs)

    return follow


def _handing_on(method: Any) -> Any:
    @functools.wraps(method)
    def follow(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, _ours(function), *args, **kwargs)

    return follow
