"""What the benchmarks of networks share: which networks, turns of two engines in one process, seconds in words."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from tests.networks import SEVEN, Workload

BUSY = 0.5  # programs that run or wait, for each core
GOALS = {  # the most that a step on the CPU shall take, as a part of PyTorch's
    "MLP": 0.8,
    "LeNet": 1.2,
    "ResNet-20": 1.15,
    "VGG16-BN 32x32": 0.9,
    "VGG16 224x224": 0.6,
    "LSTM of characters, 64 steps": 1.25,
    "transformer of 2 layers, 128 tokens": 1.0,
}
TURN = 0.06  # seconds of steps, at least, that do not count, and again that do


def chosen(only: str, more: Sequence[Workload] = ()) -> list[Workload]:
    """Those of the seven networks, and of ``more``, whose names hold ``only``; at least one.

    Raises:
        SystemExit: none does.
    """
    known = [*SEVEN, *more]
    found = [each for each in known if only.lower() in each.name.lower()]
    if not found:
        raise SystemExit(f"no network's name contains {only!r}; there are: {', '.join(each.name for each in known)}")
    return found


def warn_if_busy() -> None:
    """Say so if the machine has other work: two engines whose threads wait for each other differ by any factor then."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        print(f"Other work is running (load {os.getloadavg()[0]:.1f}): these ratios mean little.", file=sys.stderr, flush=True)


def turn(run: Callable[[], Any], counts: Callable[[Any], Any]) -> None:
    """Calls of ``run`` for :data:`TURN` that do not count, then as long again that do: ``counts`` gets what they return.

    In the first calls threads of the other engine's libraries may still wait in a loop, for up to 25 ms.
    """
    for counted in (False, True):
        began = time.perf_counter()
        while True:
            found = run()
            if counted:
                counts(found)
            if time.perf_counter() - began > TURN:
                break


def interleaved(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float, fewest: int = 4) -> tuple[float, float]:
    """Median seconds of one call of each, in turns for about ``seconds`` in all, and of ``fewest`` turns at least."""
    times: tuple[list[float], list[float]] = ([], [])
    began, turns = time.perf_counter(), 0
    while turns < fewest or time.perf_counter() - began < seconds:
        turns += 1
        for run, row in zip((ours, theirs), times, strict=True):
            turn(lambda run=run: seconds_of(run), row.append)
    return median(times[0]), median(times[1])


def in_about(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """As :func:`interleaved`, and no longer where two steps of each take that long: then the second one is the result."""
    first = seconds_of(ours) + seconds_of(theirs)
    second = seconds_of(ours), seconds_of(theirs)
    return second if first + sum(second) > seconds else interleaved(ours, theirs, seconds - first - sum(second), 1)


def seconds_of(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
