"""``python -m tests.benchmarks.exports``: ten million events, exported: seconds, and the most memory that the process had.

Each format is a process of its own, that writes the events (as a training step would: modules, ops, lines, roles), saves
them, and in the round trip's format loads them again in another one.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tinygrad_mem import memory
from tinygrad_mem.memory import Kind, Log

ENDINGS = ("json", "json.gz", "csv", "trace.json", "trace.json.gz", "pickle")
SECONDS, BYTES = 60, 1 << 30


def run(events: int) -> Log:
    """A log of so many events (a multiple of eight): blocks that become activations, in modules that come and go."""
    log, lines = Log("cpu"), [f"train.py:{i} step" for i in range(50)]
    began = time.perf_counter_ns()

    def write(kind: Kind, address: int, requested: int, rounded: int, where: tuple, role: str, note: str) -> None:
        now = time.perf_counter_ns() - began
        log.write((int(kind), now, address, requested, rounded, *where, role, note, 1))

    for i in range(events // 8):
        phase = "forward" if i % 100 < 50 else "backward"
        where = phase, f"Net.layer{i % 20}.conv", "Conv2d", lines[i % 50]
        first, second = 512 * (2 * i % 1000 + 1), 512 * (2 * i % 1000 + 2)
        write(Kind.MALLOC, first, 700, 1024, where, "TEMPORARY", "")
        write(Kind.MALLOC, second, 300, 512, where, "TEMPORARY", "")
        write(Kind.ENTER, first, 0, 0, where, "ACTIVATION", "x")
        write(Kind.ENTER, second, 0, 0, where, "GRADIENT", f"Net.layer{i % 20}.conv.weight")
        write(Kind.LEAVE, first, 0, 0, where, "ACTIVATION", "x")
        write(Kind.FREE, first, 0, 1024, where, "", "")
        write(Kind.LEAVE, second, 0, 0, where, "GRADIENT", "")
        write(Kind.FREE, second, 0, 512, where, "", "")
        if not i & 31:
            log.settle()
    return log


class Figures(NamedTuple):
    """Seconds of the export alone, its bytes, and the most bytes that the process had."""

    seconds: float
    size: int
    resident: int


def child(task: str, events: int, path: str) -> None:
    """In a process of its own: save or load, and print the figures."""
    track = memory.Track.of(run(events)) if task == "save" else None
    start = time.perf_counter()
    if track is not None:
        track.save(path)
    else:
        assert len(memory.load(path).log) == events
    seconds = time.perf_counter() - start
    print(seconds, Path(path).stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def measured(task: str, events: int, path: str) -> Figures:
    """The figures of one export."""
    command = [sys.executable, "-m", "tests.benchmarks.exports", "--child", task, "--events", str(events), path]
    seconds, size, resident = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return Figures(float(seconds), int(size), int(resident))


def main() -> None:
    """Print a line a format, or be the child."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exports", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--only", choices=ENDINGS)
    parser.add_argument("--child", choices=("save", "load"), help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.events, options.path)
        return
    print(f"{options.events:,} events; bounds: {SECONDS} s, {BYTES >> 20:,} MiB")
    with tempfile.TemporaryDirectory() as folder:
        for ending in (options.only,) if options.only else ENDINGS:
            path = Path(folder) / f"run.{ending}"
            for task in ("save", "load") if ending.startswith("json") else ("save",):
                found = measured(task, options.events, str(path))
                share = f"{found.seconds / SECONDS:.2f} and {found.resident / BYTES:.2f} of the bounds"
                sizes = f"{found.size >> 20:,} MiB written, {found.resident >> 20:,} MiB resident"
                print(f"{task} .{ending}: {found.seconds:.1f} s, {sizes} ({share})", flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
