"""Two threads at a time, at a place of the test's choice: one stops between two bytecodes while the other runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from tests.profiles import every
from tests.tracing import traced, watch

Place = tuple[CodeType, int]

_PATIENCE = 0.005  # seconds; who stands at one bytecode for so long waits for a lock of the one that stopped


def interleavings(*files: str) -> Iterator[Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]]:
    """For bytecodes of ``files`` that ``first`` runs: ``both(first, second)`` runs ``second`` there, in another thread.

    ``both`` gives what the two returned. The first one runs ``second`` after ``first``, and finds which bytecodes there are.
    Then comes each, where it runs for the first time or for the last; in a thorough run, each time.
    """
    trail: list[Place] = []
    yield _Both(files, 0, trail)
    for point in ends(trail):
        yield _Both(files, point, [])


def ends(trail: Sequence[Hashable]) -> list[int]:
    """Where each place of a trail is first or last, by turns, counted from 1; in a thorough run, all of it."""
    if every(2) == 1:
        return list(range(1, len(trail) + 1))
    last = {place: number for number, place in enumerate(trail, 1)}
    first = {place: len(trail) - number for number, place in enumerate(reversed(trail))}
    return sorted(last[place] if number % 2 else first[place] for number, place in enumerate(first))


class _Both:
    """Runs two functions, the second one at a bytecode of the first; ``trail`` gets the bytecodes until then."""

    def __init__(self, files: tuple[str, ...], point: int, trail: list[Place]) -> None:
        self.files, self.point, self.trail = files, point, trail

    def __call__(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        results, self.other = _other(second)
        try:
            with traced(self._trace):
                mine = first()
        finally:
            if self.other.ident is None:
                self.other.start()
            self.other.join()
        if results and isinstance(results[0], BaseException):
            raise results[0]
        return mine, results[0]

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        watch(frame, self._trace)
        if event == "opcode":
            self.trail.append((frame.f_code, frame.f_lasti))
            if len(self.trail) == self.point:
                sys.settrace(None)
                self.other.start()
                _wait(self.other)
        return self._trace


def _wait(other: threading.Thread) -> None:
    """Until the thread has ended, or stands still."""
    seen, here = object(), None
    while other.is_alive() and here != seen:
        other.join(_PATIENCE)
        frame = sys._current_frames().get(other.ident or 0)
        seen, here = here, frame and (frame.f_code, frame.f_lasti)


def _other(second: Callable[[], Any]) -> tuple[list, threading.Thread]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(second())
        except BaseException as error:
            results.append(error)

    return results, threading.Thread(target=run)
