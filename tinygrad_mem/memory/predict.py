"""``predict``: the memory of a training step, exact to the byte, before anything is allocated."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal, overload

from .. import devices, scope
from ..autograd.unknown import followed
from ..errors import DataDependenceError, DeviceError
from ..interrupts import FREE_THREADED, EndsAlways, cleanup, context
from ..source import is_engine, source_name
from .ranks import AllRanks, check_asked, of_all
from .sizes import bytes_text
from .stats import where
from .track import Track


@overload
def predict(
    run: Callable[..., Any], *args: Any, like: str | None = None, world_size: int, ranks: Literal["all"], **kwargs: Any
) -> AllRanks: ...
@overload
def predict(
    run: Callable[..., Any], *args: Any, like: str | None = None, world_size: int | None = None, rank: int = 0, **kwargs: Any
) -> Track: ...
def predict(
    run: Callable[..., Any],
    *args: Any,
    like: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    ranks: Literal["all"] | None = None,
    **kwargs: Any,
) -> Any:
    """Run ``run(*args, **kwargs)`` without allocating or computing, and return the track of the memory that it would use.

    ``run`` makes all that it uses (model, optimizer, data) and trains, as a training script does. Each device that it uses,
    ``cpu`` or ``cuda``, is replaced by ``meta``, whose pool and ops ask for the same bytes in the same order as those of
    ``like``. Their ``type`` is that of ``like``: a program that asks for it does what it does there. ``is_meta`` is True.
    ``loss.item()`` is an unknown number: it can be logged and summed.

    A prediction belongs to its thread. Several may run at once, beside threads that train; none affects another. It begins
    with the present random states and default dtype, and changes neither outside. Threads that ``run`` starts, and tasks that
    it gives to a ``ThreadPoolExecutor`` or a ``ThreadPool``, belong to the prediction. (So do threads of
    ``_thread.start_new_thread``, unless that name was imported before the first prediction.) If such threads run at the same
    time, the order of events is one of many, as in a real run. Workers of a ``DataLoader`` have a fixed order: each batch is
    made when it is requested, before the program continues. This is a run with fast workers: ``num_workers * prefetch_factor``
    batches are ready while a step runs. If reference cycles hold memory, the peak depends on when Python's collector runs,
    which cannot be predicted: a warning says so. There is also a warning on free-threaded Python if memory that passes between
    threads may be freed late.

    Args:
        like: ``"cpu"`` or ``"cuda"``, whose kernels need other workspaces; by default the kind of the default device. CuPy must
            be installed for ``"cuda"``; a GPU is not needed. How CuPy chooses among equal free blocks on a GPU cannot be
            predicted; :meth:`Track.replay` shows what several choices would reserve. ``kernels/uncounted.py`` lists memory that
            libraries use outside of the pool.
        world_size, rank: ``run`` calls ``distributed.init_process_group()``, and is rank ``rank`` of ``world_size``. The others
            do not run, and nothing is sent.
        ranks: ``"all"``: predict every rank. Ranks are alike if all that the program reads about its rank is the same for
            them; such ranks are predicted once. A program that asks for ``distributed.get_rank()`` has no two
            ranks alike: ask a mesh for the rank along one dimension.

    Returns:
        The track of ``meta``, as ``memory.track()`` gives it for a real run: ``.peak``, ``.by_category()``, ``.pool()``, ...
        For ``ranks="all"`` a list of ranks that are alike with their ``.track``. ``print`` shows their peaks, ``.plot(file)``
        draws them.

    Raises:
        DataDependenceError: the program branches on values; the message says where.
        DeviceError: it uses a tensor that was made before; ``like`` is not such a device; or CuPy is missing.
    """
    check_asked(run, rank, world_size, ranks)
    if ranks is None or world_size is None:
        return _predict(run, args, kwargs, like, None if world_size is None else (rank, world_size))[0]
    return of_all(lambda each: _predict(run, args, kwargs, like, (each, world_size)), world_size)


def _predict(run: Any, args: tuple, kwargs: dict, like: str | None, place: tuple[int, int] | None) -> tuple[Track, Any]:
    """The track of a run as the rank ``place[0]`` of ``place[1]``, and the device of the dry run."""
    with dry_run(like or where().like) as meta, Track(meta) as track, _Cycles(meta.pool) as cycles:
        meta.place = place
        run(*args, **kwargs)
        meta.pool.used_bytes()  # restored before others scan
    cycles.say()
    return track, meta


class _Cycles(EndsAlways, scope.Listener):
    """Records bytes of ``pool`` that were freed because Python's collector ran by itself, and not by the program.

    It begins with a collection of young objects. So, in a process with one thread, the collector runs at the same moments in
    each prediction of a program.

    In free-threaded Python each thread counts the references to the objects that it made. If another thread drops the last
    reference, the object is freed only when the first thread runs. A program of one thread is affected too: its lists, tuples
    and dicts may reuse the memory of another thread's, and a collection takes that thread for their owner. (The collection at
    the beginning empties these free lists.) So this listener records whether either could have happened.

    Attributes:
        late: True if memory may have been freed late.
    """

    def __init__(self, pool: Any) -> None:
        self.only, self.bytes, self.late = pool, 0, False
        self._collecting: int | None = None  # the thread in which the collector runs, while it runs by itself
        self._mine = threading.get_ident()

    def __enter__(self) -> _Cycles:
        gc.collect(1)
        try:
            scope.listen(self)
            gc.callbacks.append(self._collects)
        except BaseException:  # an interrupt, raised after the call
            cleanup(self._end)
            raise
        return self

    def _end(self) -> None:
        scope.discard(self)
        while self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, when: str, info: dict[str, int]) -> None:
        if FREE_THREADED and when == "start" and len(sys._current_frames()) > 1:
            self.late = True
        asked = not gc.isenabled() or (info["generation"] == 2 and _calls_collect(sys._getframe().f_back))
        self._collecting = threading.get_ident() if when == "start" and not asked else None

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        if FREE_THREADED and threading.get_ident() != self._mine:
            self.late = True

    def free(self, device: str, address: int, rounded: int) -> None:
        if self._collecting == threading.get_ident():
            self.bytes += rounded

    def say(self) -> None:
        """Warn of both."""
        if self.bytes:
            warnings.warn(
                f"predict: reference cycles held {bytes_text(self.bytes)}, which Python's collector freed. When "
                "it runs depends on the whole process, so a real run may have another peak. Break the cycles, "
                "or call gc.collect() where their memory should be freed.",
                stacklevel=4,
            )
        if self.late:
            warnings.warn(
                "predict: free-threaded Python may free memory late if it passes between threads, or if the garbage "
                "collector runs beside other threads. This peak may be too high. Predict while no other thread runs, or with "
                "a Python that has the interpreter's lock.",
                stacklevel=4,
            )


@context
def dry_run(like: str = "cpu") -> Iterator[devices.Meta]:
    """:func:`devices.dry_run` with the user's source line in its errors. Args, raises: as :func:`predict`."""
    with followed(), devices.dry_run(like) as meta:
        try:
            yield meta
        except DataDependenceError as error:
            raise DataDependenceError(f"predict: at {_where(error)}: {error}") from error
        except DeviceError as error:
            raise DeviceError(
                f"predict: at {_where(error)}: {error} A prediction has no tensors from outside: make what the step uses "
                "inside it, and convert PyTorch's network inside it: model = tinygrad_mem.from_torch(network)."
            ) from error


def _where(error: BaseException) -> str:
    """The user's line that the error came from."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if not is_engine(frame.f_code):
            return source_name(frame.f_code, line)
    return "an unknown line"


def _calls_collect(frame: FrameType | None) -> bool:
    """True if the running function calls ``gc.collect()``."""
    return frame is not None and "collect" in frame.f_code.co_names
