"""A run and its prediction, compared event by event: each malloc and free, their order and their roles."""

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
    """The track of a run on the cpu, in a new pool, without tensors of other tests."""
    cpu: Any = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.Track(cpu) as track:
            run()
    finally:
        cpu.pool = before
    return track


def facts(track: memory.Track) -> list[tuple]:
    """The events of the track's log without times: everything that must be the same in a prediction."""
    return [(e.kind.name, e.address, e.requested, e.rounded, *e[5:11]) for e in track.log]


def difference(run: Callable[[], Any], like: str = "cpu") -> str:
    """The first difference between a run and its prediction, as a sentence; ``""`` if all events are the same.

    Raises:
        Errors of the run, and errors that only the prediction raises.
    """
    found = facts(measured(run))
    said = facts(memory.predict(run, like=like))
    for number, (ours, theirs) in enumerate(zip_longest(found, said)):
        if ours != theirs:
            return f"event {number}: the run has {ours}, its prediction {theirs}"
    return ""


def difference_on_gpu(run: Callable[[], Any]) -> str:
    """As :func:`difference`, of a run on ``cuda``: see :func:`compared_on_gpu`."""
    return compared_on_gpu(run)[0]


def compared_on_gpu(run: Callable[[], Any]) -> tuple[str, memory.Track, memory.Track]:
    """The first difference between a run on ``cuda`` and its prediction, or memory that no op asked for; and both tracks.

    The run's categories add up to the bytes that CuPy's pool counts, at every event. CuPy has its own choice among equal free
    blocks, so blocks are compared by number, not by address, and reserved bytes are not compared: see ``tests/chosen.py``.
    Requested bytes are not compared either: CuPy does not know them for some blocks.
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
