"""What every program on several ranks must hold: the numbers of one process, the same bits again, the predicted bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.predicted import facts
from tests.sums import check_sums, counted
from tinygrad_mem import memory
from tinygrad_mem.devices import Pool

THOROUGH = bool(os.environ.get("THOROUGH_PROGRAMS", "1"))  # ranks.py says whether the run is
STEPS = 10 if THOROUGH else 2
"""How many steps are compared with those of one process. In the second one, all that the first one left takes part."""


def exact(run: Callable[[], Any]) -> memory.Track:
    """Each event of this rank is that of its prediction, used and reserved, and categories add up at every event.

    Returns:
        The prediction.
    """
    cpu: Any = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.Track(cpu) as found, counted(cpu.pool) as used:
            run()
    finally:
        cpu.pool = before
    check_sums(found, used)
    said = memory.predict(run, world_size=dist.get_world_size(), rank=dist.get_rank())
    ours, theirs = facts(found), facts(said)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        assert a == b, f"event {number}: the run has {a}, its prediction {b}"
    assert len(ours) == len(theirs)
    assert found.peak == said.peak
    assert found.pool().reserved == said.pool().reserved
    return said


def equal(found: Sequence[Any], wanted: Sequence[Any], what: str = "") -> None:
    """Arrays in float64, equal to 1e-10."""
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=f"{what} {i}")


def same(found: Sequence[Any], again: Sequence[Any]) -> None:
    """Arrays, bit for bit."""
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)


def part(array: np.ndarray, group: Any, axis: int) -> np.ndarray:
    """A rank's part of an array of one process."""
    return np.split(array, group.size(), axis)[group.rank()]
