"""``with memory.track() as t:`` writes down what the pool does, and answers questions about it."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import scope
from ..autograd.tensor import Tensor
from ..interrupts import covered, surely
from ..scope import local
from . import blocks
from .attribution import Attribution, Category
from .blocks import Block
from .compare import Comparison, compare
from .explain import sentence
from .export import native
from .export import save as export
from .listener import OUTSIDE, Recorder
from .log import Kind, Log
from .moments import Mark, PoolState, When
from .replay import Replay, replay
from .stats import where
from .timeline import Moment, Timeline
from .uncounted import Ears
from .variables import variables

_running: tuple[Track, ...] = ()


class Track:
    """A record of one device's pool between the beginning and the end of a ``with`` block. It may be asked meanwhile too.

    Tracks nest and overlap as they like: each hears everything, of all threads. On ``cuda``, begin one while other threads
    rest: what they allocate at that very moment may be counted twice. Moments are given as :data:`When`.

    Args:
        device: whose pool to listen to, the default device unless given.
        uncounted: on ``cpu``, also count what NumPy allocates for itself (:meth:`uncounted`): about 3 µs an allocation.

    Attributes:
        log: the facts; see :class:`~tinygrad_mem.memory.log.Event`.
        device: the device's name.
    """

    def __init__(self, device: Any = None, uncounted: bool = True) -> None:
        self._open(Log(str(where(device))))
        self._device, self._uncounted = where(device), uncounted

    def _open(self, log: Log) -> None:
        self.log = log
        self._device: Any = None
        self._recorder: Recorder | None = None
        self._hearing: Any = None
        self._process = os.getpid()
        self.device = log.device
        self._attribution = Attribution(log)
        self._timeline: Timeline | None = None

    @classmethod
    def of(cls, log: Log) -> Track:
        """A track that has ended, of a log that was read from somewhere."""
        self = object.__new__(cls)
        self._open(log)
        self._recorder = Recorder.ended()
        return self

    # --- listening --------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it listens now."""
        return self._recorder is not None and self._recorder.on

    def __enter__(self) -> Track:
        global _running
        if self._recorder is not None:
            state = "is running" if self.running else "has run"
            raise RuntimeError(f"track: this track {state} already; make a new one with memory.track()")
        self._process = os.getpid()
        self._hearing = self._device.listening()
        self._recorder = Recorder(self._device, self.log, self._uncounted)
        collecting = gc.isenabled()
        try:
            gc.disable()  # what it freed between the count of what is there and the first event heard would be lost
            self._hearing.__enter__()
            self._recorder.begin()
            with scope.lock:
                _running = (*_running, self)
            if collecting:
                gc.enable()
        except BaseException:
            if collecting:
                gc.enable()
            surely(self._stop, self._recorder)
            raise
        return self

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            surely(self._end)

    def _end(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child is not tracked
        if self._recorder is None or not self._recorder.on:
            raise RuntimeError("track: this track is not running: it has ended already, or was never entered")
        self._stop(self._recorder)

    def _stop(self, recorder: Recorder) -> None:
        """Listen no more; also after a beginning that failed halfway."""
        global _running
        with scope.lock:
            _running = tuple(track for track in _running if track is not self)
        scope.forget(recorder)
        try:
            recorder.end()
        finally:
            self._hearing.__exit__(None, None, None)

    def mark(self, text: str = "") -> None:
        """Name this moment of the run.

        Raises:
            RuntimeError: the track is not running.
        """
        if self._recorder is None or not self._recorder.on:
            raise RuntimeError(f"mark: the track is not running, so {text!r} has no place in it; mark inside its with block")
        self._recorder.fact(Kind.MARK, note=text)
        self._recorder.sample()

    # --- asking: over the run ---------------------------------------------------------------------------------------------

    @property
    def marks(self) -> list[Mark]:
        """The moments that were named, in order."""
        numbers = np.flatnonzero(self.log.column("kind") == Kind.MARK)
        return [Mark(int(i), e.time, e.note) for i, e in zip(numbers, self.log.select(numbers), strict=True)]

    def timeline(self) -> Timeline:
        """The pool after each event that changed a byte or its category."""
        attribution = self._attribution.update()
        if self._timeline is None or self._timeline.seen != len(attribution.block):
            self._timeline = Timeline(self.log, attribution)
        return self._timeline

    def blocks(self) -> Iterator[Block]:
        """Every block when it dies, then those that live at the end."""
        return blocks.lives(self.log, self._attribution.update())

    def uncounted(self) -> dict[str, tuple[int, int]]:
        """The bytes that libraries took outside of the pool, in none of its numbers: (bytes in all, largest piece).

        On ``cpu`` by op: what NumPy allocated inside it, in the thread of the track; ``""`` for pieces below 512 bytes. When
        it gave them back is not known (mostly at once). On ``cuda``, under ``""``: bytes of the GPU that are taken by others
        than the pool (contexts, cuBLAS, other processes), the most that was seen at both ends and at marks.
        """
        found: dict[str, tuple[int, int]] = {}
        for event in self.log.select(np.flatnonzero(self.log.column("kind") == Kind.UNCOUNTED)):
            total, largest = found.get(event.op, (0, 0))
            largest = max(largest, event.rounded)
            found[event.op] = largest if event.note == OUTSIDE else total + event.rounded, largest
        return found

    @property
    def peak(self) -> int:
        """Most bytes in use at any moment, each block rounded up to 512."""
        return self.at_peak().used

    def at_peak(self, since: When = 0) -> Moment:
        """The first moment at which most bytes were in use, of the events from ``since`` on.

        Raises:
            ValueError: nothing was allocated or freed in that time.
        """
        timeline = self.timeline()
        return timeline[timeline.peak(self._event(since))]

    # --- asking: at one moment --------------------------------------------------------------------------------------------

    def live(self, at: When = None) -> list[Block]:
        """The blocks that were alive at a moment, as they were then, largest first."""
        return blocks.living(self.log, self._attribution.update(), self._event(at))

    def pool(self, at: When = None) -> PoolState:
        """The pool's numbers at a moment, told apart."""
        event = self._event(at)
        kind, size = self.log.column("kind")[: event + 1], self.log.column("rounded")[: event + 1].astype(np.int64)
        reserved = int(size[kind == Kind.RESERVE].sum() - size[kind == Kind.RELEASE].sum())
        blocks = self.live(event)
        used = sum(self.by_category(event).values())
        return PoolState(sum(b.requested for b in blocks), sum(b.rounded for b in blocks), used, reserved)

    def by_category(self, at: When = None) -> dict[Category, int]:
        """Bytes in use at a moment, of each category."""
        timeline = self.timeline()
        position = int(np.searchsorted(timeline.event, self._event(at), "right")) - 1
        return timeline[position].by_category if position >= 0 else {}

    def by_module(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the module that asked for them, largest first; ``""`` for none.

        Parameters, buffers, gradients and optimizer state count for the module that they belong to.
        """
        return self._by(at, lambda b: b.home)

    def by_op(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the op that asked for them, largest first; ``""`` for code of the user's own."""
        return self._by(at, lambda b: b.op)

    def by_line(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the user's source line, largest first; in backward, the line that ran the op forward."""
        return self._by(at, lambda b: b.line)

    def explain(self, tensor: Tensor) -> str:
        """Say who holds the tensor's memory and why, in a sentence.

        Raises:
            ValueError: the track has ended; the tensor lives elsewhere, or its memory is not the pool's.
        """
        if self._device is None:
            raise ValueError("explain: this track was read from a file; it knows blocks, and no tensor of this process")
        if not self.running:
            raise ValueError("explain: the track has ended, its addresses may have been handed out again; ask while it runs")
        address = self._device.address(tensor.array) if tensor.device is self._device else None
        if address is None:
            raise ValueError(
                f"explain: the track listens to {self.device}, the tensor {list(tensor.shape)} is on {tensor.device} and "
                f"{'has no memory of its pool' if str(tensor.device) == self.device else 'not there'}"
            )
        found = [block for block in self.live("end") if block.address == address]
        if not found:
            raise ValueError("explain: this memory is older than the track, which knows nothing of it; begin the track earlier")
        return sentence(found[0], variables(self._device, address))

    def compare(self, other: Track) -> Comparison:
        """The differences between this run and ``other``."""
        return compare(self, other)

    def replay(self, seeds: int = 8) -> Replay:
        """The bytes that CuPy's pool would have reserved for the same events, with ``seeds`` choices among equal free chunks.

        A sample and no bound: see :class:`Replay`.
        """
        return replay(self.log, seeds)

    # --- seeing -----------------------------------------------------------------------------------------------------------

    def table(self, by: str = "category", at: When = None, rows: int = 20) -> str:
        """The bytes at a moment by ``"category"``, ``"module"``, ``"op"`` or ``"line"``, as a table to print.

        The largest come first; those beyond ``rows`` are one row, so that the rows add up to what was in use. By ``"mark"``:
        a row for each mark of the run, with the most that was in use since the mark before.

        Raises:
            ValueError: there is no such way to tell bytes apart.
            ModuleNotFoundError: rich is missing: ``pip install rich``.
        """
        if by not in ("category", "module", "op", "line", "mark"):
            raise ValueError(f"table: by is 'category', 'module', 'op', 'line' or 'mark', found {by!r}")
        from .render.terminal import bytes_table, marks_table, text

        if by == "mark":
            return text(marks_table(self, f"{self.device} at its marks"))

        sizes = {str(name): size for name, size in getattr(self, f"by_{by}")(at).items()}
        named = at.text if isinstance(at, Mark) else at if isinstance(at, str) else f"event {self._event(at)}"
        when = "at the peak" if at in (None, "peak") else f"at {named}"
        return text(bytes_table(sizes, by, f"{self.device} {when}", rows))

    def _repr_html_(self) -> str:
        """The track in a notebook."""
        from .render.notebook import summary

        return summary(self)

    def plot(self, path: Path | str, other: Track | None = None, *, title: str = "") -> None:
        """Write the timeline as a picture (png, svg or pdf by the ending of ``path``), stacked by category.

        Args:
            other: a second run, drawn beside this one on the same scale: before and after.

        Raises:
            ValueError: nothing was allocated while a track ran, or the ending is not a picture's.
            ModuleNotFoundError: matplotlib is missing: ``pip install matplotlib``.
        """
        from .render.picture import plot

        plot(self, path, title=title, other=other)

    def to_html(self, path: Path | str, other: Track | None = None, *, titles: Sequence[str] = ()) -> None:
        """Write an interactive page: the timeline, the life of each block, the peak by module, a table to sort and search.

        The page is one file of about 5 MB that loads nothing; it follows the reader's light or dark setting.

        Args:
            other: a second run, shown beside this one, with what changed from this one to it.
            titles: one a run; by default the device, or "before" and "after".

        Raises:
            ValueError: nothing was allocated while a track ran, or there is not one title for each run.
            ModuleNotFoundError: plotly is missing: ``pip install plotly``.
        """
        from .render.page import write

        write(self, path, other=other, titles=titles or ((self.device,) if other is None else ("before", "after")))

    # --- taking it elsewhere ----------------------------------------------------------------------------------------------

    def save(self, path: Path | str, format: str | None = None) -> None:
        """Write the track to a file, in the format that the ending of ``path`` names. It appears whole, or not at all.

        ========================  ============  ================================================================
        ending                    ``format``    what it is for
        ========================  ============  ================================================================
        ``.json``                 ``json``      every event; :func:`load` makes a track of it that answers as this one
        ``.csv``                  ``csv``       a row an event, with the bytes of each category after it
        ``.trace.json``           ``trace``     https://ui.perfetto.dev: counters by category, phases, modules and ops
        ``.pickle``               ``snapshot``  https://pytorch.org/memory_viz and ``torch.cuda._memory_viz``
        ========================  ============  ================================================================

        With ``.gz`` after any of the first three the file is packed. A track that runs is written as it is now.

        Raises:
            ValueError: there is no such format.
        """
        export(self.log, path, format)

    def _by(self, at: When, key: Callable[[Block], str]) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for block in self.live(at):
            totals[key(block)] += block.rounded
        return dict(totals.most_common())

    def _event(self, when: When) -> int:
        """The number of the event that a moment is given by.

        Raises:
            ValueError: no mark has this text, the moment is another track's, or nothing was allocated.
            IndexError: there is no such event.
            TypeError: it is nothing that a moment can be given by.
        """
        if when is None or when == "peak":
            return self.at_peak(0).index
        if when == "end":
            return max(len(self.log) - 1, 0)
        if isinstance(when, (Mark, Moment)):
            if when.index >= len(self.log) or self.log[when.index].time != when.time:
                raise ValueError(f"track: {when} is a moment of another track; ask that one, or give the text of a mark")
            return when.index
        if isinstance(when, str):
            found = [mark.index for mark in self.marks if mark.text == when]
            if not found:
                names = ", ".join(repr(mark.text) for mark in self.marks) or "none"
                raise ValueError(f"track: no mark {when!r}; there are {names}, and 'peak' and 'end'")
            return found[-1]
        if not hasattr(when, "__index__"):
            raise TypeError(f"track: a moment is an event's number, a mark or its text, 'peak' or 'end', found {when!r}")
        if not 0 <= when <= len(self.log):
            raise IndexError(f"track: event {when} was asked for, there are {len(self.log)}; the last moment is 'end'")
        return int(when)


def _in_child() -> None:
    """A forked child is not tracked: its blocks are not its parent's."""
    global _running
    for each in scope.listeners:
        if isinstance(each, Recorder):
            each.on = False
            scope.unlisten(each)
    _running = ()
    Ears.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def running_on(device: Any) -> Track | None:
    """The innermost track that listens to ``device`` now."""
    return next((each for each in reversed(_running) if each._device is device), None)


def track(device: Any = None, *, uncounted: bool = True) -> Track:
    """Listen to ``device``'s pool for a ``with`` block; see :class:`Track`."""
    return Track(device, uncounted)


def load(path: Path | str) -> Track:
    """The track that :meth:`Track.save` wrote as ``.json`` or ``.json.gz``: it answers all questions but :meth:`Track.explain`.

    Raises:
        FileFormatError: the file is something else, damaged, or not whole.
    """
    return Track.of(native.read(path))


def mark(text: str) -> None:
    """Name this moment in every track that runs; without one, nothing happens.

    A prediction marks its own track and no other, and no other program marks it.
    """
    for each in _running:
        if each._device is local.dry or (local.dry is None and not each._device.whose):
            each.mark(text)
