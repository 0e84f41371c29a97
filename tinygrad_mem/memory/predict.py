"""A training step on ``meta``: what it will need, to the byte, before anything is allocated."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .. import devices, scope
from ..errors import DataDependenceError, DeviceError
from ..interrupts import FREE_THREADED, context, covered, surely
from .sizes import bytes_text
from .source import is_engine, source_name
from .stats import where
from .track import Track


def predict(run: Callable[..., Any], *args: Any, like: str | None = None, **kwargs: Any) -> Track:
    """Run ``run(*args, **kwargs)`` without memory and without arithmetic, and say what it would have needed.

    ``run`` makes all that it uses (model, optimizer, data) and takes its steps, as a training script does. Every device that it
    names, ``cpu`` and ``cuda`` alike, is ``meta`` here, whose pool and ops ask for the same bytes in the same order as those of
    ``like``. ``loss.item()`` is a number that is not known: it may be logged and summed.

    A prediction belongs to its thread: several run at once, beside threads that train, and none is changed by another. It
    begins with random numbers and the default dtype as they stand, and moves no generator; a default dtype that it sets is
    its own. Threads that ``run`` starts, and tasks that it gives to a ``ThreadPoolExecutor`` or a ``ThreadPool``, are
    predicted with it (one by ``_thread.start_new_thread`` too, but where that name was imported before the first
    prediction): where they run beside each other, the order of events is one of many, as in a real run. Workers of a
    ``DataLoader`` have one order: each batch is made, whole, at the moment at which it is asked for, before the program
    goes on. That is a run whose workers keep up: ``num_workers * prefetch_factor`` batches are ready while a step runs.
    Where memory hangs in reference cycles a peak depends on when Python's collector runs, which cannot be predicted: a
    warning says so. So does one on free-threaded Python, where memory that goes from one thread to another may come back late.

    Args:
        like: ``"cpu"``, or ``"cuda"``, where kernels want other workspaces; the kind of the default device unless given. CuPy
            must be installed for ``"cuda"``; a GPU is not needed. On a GPU CuPy chooses among equal free blocks in a way that
            nobody can predict: what several choices would reserve is in :meth:`Track.replay`. What libraries take beside the
            pool is in ``kernels/uncounted.py``.

    Returns:
        The track of ``meta``, as ``memory.track()`` gives it for a real run: ``.peak``, ``.by_category()``, ``.pool()``, ...

    Raises:
        DataDependenceError: which way the program goes depends on values; the message says where.
        DeviceError: it uses a tensor that was made before; ``like`` is no such device, or CuPy is missing.
    """
    with dry_run(like or where().like) as meta, Track(meta) as track, _Cycles(meta.pool) as cycles:
        run(*args, **kwargs)
        meta.pool.used_bytes()  # what others look at is back
    cycles.say()
    return track


class _Cycles(scope.Listener):
    """Hears what comes back to ``pool`` because Python's collector ran by itself, and not because the program let it go.

    It begins with a collection of what is young: alone in its process, what dies young is collected at the same moments in
    each prediction of a program.

    Free-threaded Python lets each thread count references to the objects that it made. An object whose last reference another
    thread drops is freed only when the first thread looks. A program of one thread is not safe either: its lists, tuples and
    dicts may lie where another thread's have been, and a collection takes that thread for their owner. (The collection at the
    beginning empties these stores.) So this listener notes whether either could have happened.

    Attributes:
        late: whether memory may have come back late.
    """

    def __init__(self, pool: Any) -> None:
        self.only, self.bytes, self.late = pool, 0, False
        self._collecting: int | None = None  # the thread in which the collector runs by itself
        self._mine = threading.get_ident()

    def __enter__(self) -> _Cycles:
        gc.collect(1)
        try:
            scope.listen(self)
            gc.callbacks.append(self._collects)
        except BaseException:  # a signal, which is heard after the call
            surely(self._end)
            raise
        return self

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            surely(self._end)

    def _end(self) -> None:
        scope.forget(self)
        while self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, when: str, info: dict[str, int]) -> None:
        if FREE_THREADED and when == "start" and len(sys._current_frames()) > 1:
            self.late = True
        asked = not gc.isenabled() or (info["generation"] == 2 and _asks(sys._getframe().f_back))
        self._collecting = threading.get_ident() if when == "start" and not asked else None

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        if FREE_THREADED and threading.get_ident() != self._mine:
            self.late = True

    def free(self, device: str, address: int, rounded: int) -> None:
        if self._collecting == threading.get_ident():
            self.bytes += rounded

    def say(self) -> None:
        """Warn of it."""
        if self.bytes:
            warnings.warn(
                f"predict: {bytes_text(self.bytes)} hung in reference cycles, and came back when Python's collector ran. When "
                "it runs depends on all that the process does: the peak of a run may differ from this one. Break the cycles, "
                "or call gc.collect() where their memory should come back.",
                stacklevel=3,
            )
        if self.late:
            warnings.warn(
                "predict: free-threaded Python may free memory late, where it passes between threads or where the garbage "
                "collector runs beside other threads: this peak may be too high. Predict while no other thread runs, or with "
                "a Python that has the interpreter's lock.",
                stacklevel=3,
            )


@context
def dry_run(like: str = "cpu") -> Iterator[devices.Meta]:
    """:func:`devices.dry_run`, whose errors say where in the user's program they come from.

    Args, raises: as :func:`predict`.
    """
    try:
        with devices.dry_run(like) as meta:
            yield meta
    except DataDependenceError as error:
        raise DataDependenceError(f"predict: at {_where(error)}: {error}") from error
    except DeviceError as error:
        raise DeviceError(
            f"predict: at {_where(error)}: {error} In a prediction every tensor is on meta: make what the step uses inside it."
        ) from error


def _where(error: BaseException) -> str:
    """The user's line that the error came from."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    found = next((i for i in reversed(range(len(frames))) if not is_engine(frames[i].f_code)), None)
    return "an unknown line" if found is None else source_name(frames[found].f_code, lines[found])


def _asks(frame: FrameType | None) -> bool:
    """Whether ``gc.collect()`` stands in the running function."""
    return frame is not None and "collect" in frame.f_code.co_names
