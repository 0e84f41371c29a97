"""A run on the cpu and its prediction, compared event by event: what was asked for and let go, in which order, as what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.devices import Pool


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
