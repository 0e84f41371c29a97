"""Two threads at a time, at a place of the test's choice: one stops between two bytecodes while the other runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tests.tracing import traced, watch

_PATIENCE = 0.05  # seconds; who has not come through by then waits for a lock of the one that stopped


def interleavings(*files: str) -> Iterator[Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]]:
    """For each bytecode of ``files`` that ``first`` runs: ``both(first, second)`` runs ``second`` there, in another thread.

    ``both`` gives what the two returned. The last one finds that ``first`` has fewer bytecodes, and runs it before ``second``.
    """
    point, reached = 1, [True]
    while reached[-1]:

        def both(first: Callable[[], Any], second: Callable[[], Any], point: int = point) -> tuple[Any, Any]:
            results, other = _other(second)
            seen = 0

            def trace(frame: FrameType, event: str, arg: Any) -> Any:
                nonlocal seen
                if frame.f_code.co_filename not in files:
                    return None
                watch(frame, trace)
                if event == "opcode":
                    seen += 1
                    if seen == point:
                        other.start()
                        other.join(_PATIENCE)
                return trace

            try:
                with traced(trace):
                    mine = first()
            finally:
                reached.append(seen >= point)
                if seen < point:
                    other.start()
                other.join()
            if results and isinstance(results[0], BaseException):
                raise results[0]
            return mine, results[0]

        yield both
        point += 1


def _other(second: Callable[[], Any]) -> tuple[list, threading.Thread]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(second())
        except BaseException as error:
            results.append(error)

    return results, threading.Thread(target=run)
