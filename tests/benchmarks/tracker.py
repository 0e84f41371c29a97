"""``python -m tests.benchmarks.tracker``: what the tracker costs, off and on, and how large a long log grows.

Off, the cost is what the seams cost when nobody listens: measured as the time of each seam's check, times how often a step
passes one, over the time of a step. On, steps with and without a track are interleaved in one process. What is counted is
the time of the process on its cores, not the clock's: others may load the machine.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import tinygrad_mem as tm
from tests.benchmarks.turns import duration
from tests.networks import WORKLOADS
from tinygrad_mem import memory, scope


class _Count(scope.Listener):
    """How often a step passes each seam."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("malloc", "free", "segment", "running", "saved", "released", "role", "moved", "called"):
            self.calls += 1
        return object.__getattribute__(self, name)


def off(step: Any, seconds: float) -> tuple[float, int]:
    """The share of a step that the seams cost when nobody listens, and how many a step passes."""
    count = _Count()
    scope.listen(count)
    step()
    scope.unlisten(count)
    start = time.process_time()
    for _ in range(1_000_000):
        for _listener in scope.listeners:
            pass
    check = (time.process_time() - start) / 1_000_000  # the loop's own turn is in it: an upper bound
    return count.calls * check / seconds, count.calls


def on(step: Any, runs: int) -> tuple[float, float, float]:
    """Median seconds of a step without a track, and with one, in turn; and of beginning and ending a track."""
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(2):
        step()
    gc.collect()
    for _ in range(runs):
        for kind, tracked in enumerate((False, True)):
            with memory.track() if tracked else nullcontext():
                start = time.process_time()
                step()
                times[kind].append(time.process_time() - start)
        start = time.process_time()
        with memory.track():
            pass
        times[2].append(time.process_time() - start)
    return median(times[0]), median(times[1]), median(times[2])


_LONG = """
import os, resource, sys, time
from tinygrad_mem.memory import Kind, Log, Track
log, lines = Log("cpu"), [f"train.py:{i} step" for i in range(50)]
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10
before, start = resident(), time.perf_counter()
count = int(sys.argv[1])
for i in range(count // 2):
    where = ("forward", f"Net.layer{i % 20}", "Conv2d", lines[i % 50])
    log.write((int(Kind.MALLOC), 2 * i, 512 * (i % 1000 + 1), 700, 1024, *where, "TEMPORARY", "", 1))
    log.write((int(Kind.FREE), 2 * i + 1, 512 * (i % 1000 + 1), 0, 1024, *where, "", "", 1))
    if not i & 127:
        log.settle()
seconds, written = time.perf_counter() - start, resident() - before
track = Track.of(log)
track.peak, track.live("end")
asked = time.perf_counter() - start - seconds
print(len(log), written, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, asked)
"""


def long(events: int) -> list[float]:
    """Write so many events in a process of its own, then ask for the peak and for what lives.

    Returns:
        How many there are; by how many KiB the process grew, in how many seconds; the same at most while it was asked.
    """
    done = subprocess.run([sys.executable, "-c", _LONG, str(events)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tracker", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--events", type=int, default=10_000_000)
    options = parser.parse_args()
    for workload in WORKLOADS[:3]:
        step = workload.build(tm)
        without, with_track, ends = on(step, options.runs)
        share, calls = off(step, without)
        bounds = (" (bound: 1%)", " (bound: 15%)") if workload.name == "ResNet-20" else ("", "")
        print(f"{workload.name}: a step takes {duration(without)} of the cores' time")
        print(f"  off: {calls} seams a step, {share:.3%} of it{bounds[0]}")
        print(
            f"  on: {duration(with_track)}, {with_track / without - 1:+.1%}{bounds[1]}; to begin and to end it {duration(ends)}"
        )
    if options.events:
        count, kib, seconds, most, asked = long(options.events)
        print(f"log: {count:,.0f} events in {kib / 1024:,.0f} MiB (bound: 1,024), {seconds / count * 1e6:.2f} µs each")
        print(f"  asked for its peak and for what lives: {most / 1024:,.0f} MiB in all, {asked:.1f} s")


if __name__ == "__main__":
    main()
