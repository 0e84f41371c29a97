"""``with memory.track() as t:`` writes down what the pool does, and answers questions about it afterwards."""

from __future__ import annotations

from typing import Any

from .. import scope
from ..devices import device as Device
from .attribution import Moment, moments
from .log import Log


class Track:
    """What the pool of one device did between the beginning and the end of a ``with`` block.

    Args:
        device: whose pool to listen to.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = Device(device)
        self.log = Log(self.device)
        self._older = 0
        self.running = False
        self.marks: list[int] = []
        self._hearing: Any = None

    def __enter__(self) -> Track:
        if self.running or self.log.events:
            raise RuntimeError("track: this track has run already; make a new one with memory.track()")
        self._older = self.device.pool.used_bytes()
        self._hearing = self.device.listening()
        self._hearing.__enter__()
        scope.listen(self.log)
        self.running = True
        return self

    def __exit__(self, *exc: object) -> None:
        scope.unlisten(self.log)
        self._hearing.__exit__(*exc)
        self.running = False

    def mark(self) -> None:
        """Remember this point of the run: ``marks`` holds the number of the next event."""
        self.marks.append(len(self.log.events))

    def timeline(self) -> list[Moment]:
        """The pool after each malloc and free: bytes by category."""
        return list(moments(self.log.events, self._older))

    def at_peak(self, since: int = 0) -> Moment:
        """The first moment at which most bytes were in use, of the events from number ``since`` on.

        Raises:
            ValueError: nothing was allocated or freed in that time.
        """
        best: Moment | None = None
        for moment in moments(self.log.events, self._older):
            if moment.index >= since and (best is None or moment.used > best.used):
                best = moment
        if best is None:
            raise ValueError("at_peak: nothing was allocated or freed while the track was running")
        return best

    @property
    def peak(self) -> int:
        """Most bytes in use at any moment, each block rounded up to 512."""
        return self.at_peak().used


def track(device: Any = "cpu") -> Track:
    """Listen to ``device``'s pool for a ``with`` block; begun before the model is made, it knows the parameters."""
    return Track(device)
