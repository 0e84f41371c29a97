"""A record of what one device's pool did, and the answers to questions about it."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from ..interrupts import EndsAlways, cleanup
from . import blocks
from .attribution import Category, attribution
from .blocks import Block
from .listener import Recorder
from .log import Kind, Log
from .stats import where
from .timeline import Mark, Moment, PoolState, Timeline, When


class Record(EndsAlways):
    """A record of one device's pool during a ``with`` block. It answers questions while it runs, and afterwards.

    Tracks may nest and overlap: each records the events of all threads. On ``cuda``, begin one while other threads are idle:
    blocks allocated at that very moment may be counted twice. Arrays of ``cupy.zeros`` and the like are recorded in
    threads that use this library. Moments are given as :data:`When`.

    Every answer is computed from the log and changes nothing, so any thread or signal handler may ask at any time.

    Args:
        device: the device whose pool is tracked; by default the default device.

    Attributes:
        log: the recorded events; see :class:`~tinygrad_mem.memory.log.Event`.
        device: the device's name.
    """

    _device: Any = None  # None for a log that was read from a file
    _recorder: Recorder | None = None
    _timeline: Timeline | None = None
    _process = 0

    def __init__(self, device: Any = None) -> None:
        self._device = where(device)
        self.device = "meta" if self._device.kind == "meta" else str(self._device)
        self.log = Log(self.device)

    @classmethod
    def of(cls, log: Log) -> Self:
        """A track that has ended, for a log that was read from a file."""
        self = object.__new__(cls)
        self.log, self.device = log, log.device
        return self

    # --- listening --------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True while events are recorded; never in a forked child."""
        return self._recorder is not None and self._recorder.on and os.getpid() == self._process

    def __enter__(self) -> Self:
        if self._recorder is not None or self._device is None:
            state = "is running" if self.running else "has run"
            raise RuntimeError(f"track: this track {state} already; begin a new one with memory.track()")
        self._process = os.getpid()
        self._recorder = Recorder(self._device, self.log)
        collecting = gc.isenabled()
        try:
            try:
                gc.disable()  # a collection later could free blocks between the count of present blocks and the first event
                self._recorder.begin()
            finally:
                if collecting:
                    gc.enable()
        except BaseException:
            cleanup(self._recorder.end)
            raise
        return self

    def _end(self) -> None:
        if self._recorder is not None and os.getpid() != self._process:
            return  # a forked child is not tracked
        if self._recorder is None or not self.running:
            raise RuntimeError("track: this track is not running: it has ended already, or was never entered")
        self._recorder.end()

    def mark(self, text: str = "") -> None:
        """Name this moment of the run. Raises: RuntimeError: the track is not running."""
        if self._recorder is None or not self.running:
            raise RuntimeError(f"mark: the track is not running, so it cannot record {text!r}; call mark inside its with block")
        self._recorder.mark(text)

    # --- questions about the run ------------------------------------------------------------------------------------------

    @property
    def marks(self) -> list[Mark]:
        """The marks, in order."""
        numbers = np.flatnonzero(self.log.column("kind") == Kind.MARK)
        return [Mark(int(i), e.time, e.note) for i, e in zip(numbers, self.log.select(numbers), strict=True)]

    def timeline(self) -> Timeline:
        """The pool after each event that changed a byte or its category."""
        found = self._timeline
        if found is None or len(found.attribution.block) != len(self.log):
            found = self._timeline = Timeline(self.log, attribution(self.log))
        return found

    def blocks(self) -> Iterator[Block]:
        """Every block when it is freed, then those that are alive at the end."""
        return blocks.lives(self.log, self.timeline().attribution)

    def outside(self) -> int:
        """On ``cuda``, bytes of the GPU that the pool does not own: contexts, cuBLAS, other processes.

        The most of the values measured at both ends of the track and at its marks. No other number includes these bytes.
        """
        return int(self.log.column("rounded")[self.log.column("kind") == Kind.OUTSIDE].max(initial=0))

    @property
    def peak(self) -> int:
        """Most bytes in use at any moment, each block rounded up to 512; 0 if nothing was allocated."""
        return int(self.timeline().used.max(initial=0))

    def at_peak(self, since: When = 0) -> Moment:
        """The first moment at which most bytes were in use, of the events from ``since`` on.

        Raises:
            ValueError: nothing was allocated or freed in that time.
        """
        timeline = self.timeline()
        return timeline[timeline.peak(self._event(since))]

    # --- questions about one moment ---------------------------------------------------------------------------------------

    def live(self, at: When = None) -> list[Block]:
        """The blocks that were alive at a moment, as they were then, largest first."""
        return blocks.living(self.log, self.timeline().attribution, self._event(at))

    def pool(self, at: When = None) -> PoolState:
        """The pool's numbers at a moment: requested, rounded, used and reserved bytes."""
        event = self._event(at)
        kind, asked, size = (self.log.column(name)[: event + 1].astype(np.int64) for name in ("kind", "requested", "rounded"))
        reserved = int(size[kind == Kind.RESERVE].sum() - size[kind == Kind.RELEASE].sum())
        born = blocks.births(self.timeline().attribution, event)
        return PoolState(int(asked[born].sum()), int(size[born].sum()), sum(self.by_category(event).values()), reserved)

    def by_category(self, at: When = None) -> dict[Category, int]:
        """Bytes in use at a moment, of each category."""
        timeline = self.timeline()
        position = int(np.searchsorted(timeline.event, self._event(at), "right")) - 1
        return timeline[position].by_category if position >= 0 else {}

    def by_module(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the module that asked for them, largest first; ``""`` for none.

        Parameters, buffers, gradients and optimizer state count for the module that they belong to.
        """
        return self._totals(at, lambda b: b.home)

    def by_op(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the op that asked for them, largest first; ``""`` for the user's own code."""
        return self._totals(at, lambda b: b.op)

    def by_line(self, at: When = None) -> dict[str, int]:
        """Bytes in use at a moment by the user's source line, largest first; in backward, the line that ran the op forward."""
        return self._totals(at, lambda b: b.line)

    def _totals(self, at: When, key: Callable[[Block], str]) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for block in self.live(at):
            totals[key(block)] += block.rounded
        return dict(totals.most_common())

    def _event(self, when: When) -> int:
        """The event number of a moment. Raises ValueError, IndexError or TypeError if there is none."""
        if when is None or when == "peak":
            return self.at_peak(0).index if len(self.timeline()) else self._event("end")
        if when == "end":
            return max(len(self.log) - 1, 0)
        if isinstance(when, (Mark, Moment)):
            if when.index >= len(self.log) or self.log[when.index].time != when.time:
                raise ValueError(f"track: {when} is a moment of another track; ask that track, or pass the text of a mark")
            return when.index
        if isinstance(when, str):
            found = [mark.index for mark in self.marks if mark.text == when]
            if not found:
                names = ", ".join(repr(mark.text) for mark in self.marks) or "none"
                raise ValueError(f"track: no mark {when!r}; the marks are {names}; 'peak' and 'end' are moments too")
            return found[-1]
        if not hasattr(when, "__index__"):
            raise TypeError(f"track: a moment is an event's number, a mark or its text, 'peak' or 'end', found {when!r}")
        if not 0 <= when <= len(self.log):
            raise IndexError(f"track: expected an event up to {len(self.log)}, found {when}; the last moment is 'end'")
        return int(when)
