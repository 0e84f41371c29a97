"""A dry run: in one thread, and in those that it starts, every device is replaced by a ``meta`` device that computes nothing.

A dry run changes only the state of its own threads. So several can run at once, beside threads that compute.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .. import scope
from ..errors import DeviceError
from ..interrupts import context, lock
from ..scope import local
from .meta import Meta
from .random import Apart, Draws, Noted


@context
def dry_run(like: str = "cpu") -> Iterator[Any]:
    """Inside, every device name means one new ``meta`` device with an empty pool.

    Generators start from their current states and are not changed. Threads that are started inside, and tasks that are given to
    a ``ThreadPoolExecutor`` or a ``ThreadPool``, belong to the run. Tensors that outlive it can be inspected, but not computed
    with.

    Args:
        like: the device whose workspaces are counted, ``"cpu"`` or ``"cuda"``.

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
    """The thread belongs to the dry run on ``meta``, if there is one, and shares the random states of its program."""
    with scope.switched(scope.switches()):  # restores the switches that the program leaves changed
        local.draws = draws
        if meta is not None:
            local.dry, local.default_device = meta, None
        yield


def refuse_outside(device: Any, what: str) -> None:
    """Raise DeviceError in a dry run if ``device`` is real: there ``what`` would compute, and its memory would not count."""
    dry = local.dry
    if dry is not None and dry is not device and dry is not device.host_of and (device.kind != "meta" or device.whose):
        raise DeviceError(f"{what}: a tensor was made on {device}{device.whose}, before the dry run.")


# --- threads


def _call(meta: Meta | None, draws: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _inside(meta, draws):
        return function(*args, **kwargs)


def _ours(function: Any) -> Any:
    """``function``, wrapped so that it belongs to the program of this thread; outside of any program, ``function`` itself."""
    if local.draws is None or not callable(function):
        return function
    return functools.partial(_call, local.dry, local.draws, function)


def _run(thread: threading.Thread, meta: Meta | None, draws: Any) -> None:
    del thread.run  # the class's again: what is set in its place refers to the thread
    with _inside(meta, draws):
        thread.run()


def noted() -> Draws:
    """Record the random draws of this thread, and of threads that it starts. :meth:`~Draws.again` repeats them."""
    _follow_threads()
    return Noted()


def apart() -> Draws:
    """Inside, this thread and those that it starts may seed and draw without changing any generator outside."""
    _follow_threads()
    return Apart()


@functools.cache
def _follow_threads() -> None:
    """From now on, threads that are started, and tasks given to them, belong to the program that starts them."""
    from concurrent.futures import Future, ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    with lock:
        if not hasattr(threading.Thread.start, "__wrapped__"):
            threading.Thread.start = _starting(threading.Thread.start)
            ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)
            ThreadPoolExecutor.__init__ = _handing_on(ThreadPoolExecutor.__init__, 3, "initializer")
            Future.add_done_callback = _handing_on(Future.add_done_callback, 1, "fn")
            for name in ("start_new_thread", "start_new", "start_joinable_thread"):  # the last since Python 3.13
                if hasattr(_thread, name):
                    setattr(_thread, name, _handing_on(getattr(_thread, name), 0, "function"))
            for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
                setattr(ThreadPool, name, _handing_on(getattr(ThreadPool, name), 1, "func"))


def _starting(start: Any) -> Any:
    @functools.wraps(start)
    def follow(self: threading.Thread) -> None:
        if local.draws is not None and not self._started.is_set():  # type: ignore[attr-defined]
            self.run = functools.partial(_run, self, local.dry, local.draws)
        return start(self)

    return follow


def _submitting(submit: Any) -> Any:
    """The task belongs to the program. The thread that runs it may run tasks of other programs later."""

    @functools.wraps(submit)
    def follow(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        fn = _ours(fn)
        with scope.switched(scope.FRESH):
            return submit(self, fn, *args, **kwargs)

    return follow


def _handing_on(call: Any, place: int, name: str) -> Any:
    """``call``, whose argument ``name``, the one at ``place``, is a function for another thread."""

    @functools.wraps(call)
    def follow(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], _ours(args[place]), *args[place + 1 :])
        elif name in kwargs:
            kwargs[name] = _ours(kwargs[name])
        return call(*args, **kwargs)

    return follow
