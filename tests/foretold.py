"""A run on the cpu and its prediction, compared event by event: what was asked for and let go, in which order, as what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import tinygrad_mem as tm
from tests.sums import check_sums, counted
from tests.witness import cupy_allocations
from tinygrad_mem import memory
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory.log import Kind


def measured(run: Callable[[], Any]) -> memory.Track:
    """A run on the cpu, in a pool of its own: what other tests have left alive is no part of it."""
    cpu: Any = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.Track(cpu, uncounted=False) as track:
            run()
    finally:
        cpu.pool = before
    return track


def facts(track: memory.Track) -> list[tuple]:
    """What the track's log says, less its times: all that must be the same in a prediction."""
    return [(e.kind.name, e.address, e.requested, e.rounded, *e[5:11]) for e in track.log]


def difference(run: Callable[[], Any], like: str = "cpu") -> str:
    """Where a run and its prediction part, in words; ``""`` where each event is the same, and what the pool holds in the end.

    Raises:
        whatever the run raises; what only the prediction raises too.
    """
    found = measured(run)
    said = memory.predict(run, like=like)
    for number, (ours, theirs) in enumerate(zip_longest(facts(found), facts(said))):
        if ours != theirs:
            return f"event {number}: the run has {ours}, its prediction {theirs}"
    held = found.pool("end").reserved, said.pool("end").reserved
    return "" if held[0] == held[1] else f"reserved in the end: {held[0]} by the run, {held[1]} in its prediction"


def difference_on_gpu(run: Callable[[], Any]) -> str:
    """As :func:`difference`, of a run on ``cuda``: see :func:`compared_on_gpu`."""
    return compared_on_gpu(run)[0]


def compared_on_gpu(run: Callable[[], Any]) -> tuple[str, memory.Track, memory.Track]:
    """Where a run on ``cuda`` and its prediction part, or what CuPy took that no op asked for; and the two.

    The run's categories add up to what CuPy's pool counts, at every event. CuPy chooses among equal free blocks in a way of its
    own, so a block is known by its number and not by its address, and reserved bytes are not compared: see ``tests/chosen.py``.
    Nor is what was asked for before it was rounded up: of some blocks CuPy does not know it.
    """
    pool = tm.device("cuda").pool
    with tm.device("cuda"), cupy_allocations() as hidden, memory.Track("cuda") as found, counted(pool) as used:
        run()
    check_sums(found, used)
    with tm.device("cuda"):
        said = memory.predict(run, like="cuda")
    for number, (ours, theirs) in enumerate(zip_longest(_numbered(found), _numbered(said))):
        if ours != theirs:
            return f"event {number}: the run has {ours}, its prediction {theirs}", found, said
    return f"CuPy took memory that nobody asked for: {hidden[:3]}" if hidden else "", found, said


_OF_BLOCKS = (Kind.MALLOC, Kind.FREE, Kind.ENTER, Kind.LEAVE, Kind.NAME)


def _numbered(track: memory.Track) -> list[tuple]:
    """:func:`facts` of blocks, with the number of a block in place of its address.

    What happens between two mallocs is put in one order: Python lets go of deeply nested objects later where there are more
    of them, and CuPy's arrays have one inside.
    """
    numbers: dict[int, int] = {}
    found: list[tuple] = []
    between: list[tuple] = []
    count = 0
    for event in track.log:
        if event.kind == Kind.MALLOC:
            count += 1
            numbers[event.address] = count
            found += sorted(between)
            between.clear()
        if event.kind in _OF_BLOCKS and event.address in numbers:
            where = *event[5:8], *event[9:11]  # without the line: a pool that is watched is called from another
            fact = event.kind.name, numbers[event.address], event.rounded, *where
            (found if event.kind == Kind.MALLOC else between).append(fact)
    return found + sorted(between)
