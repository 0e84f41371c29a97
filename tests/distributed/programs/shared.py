"""What the programs of this folder share: this rank, batches, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.predicted import facts, measured
from tests.sums import check_sums, counted
from tinygrad_mem import memory
from tinygrad_mem.devices import Pool

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
BATCH = 4


def batch(step: int, part: slice, dtype: Any = tm.float64) -> tuple[tm.Tensor, tm.Tensor]:
    """Rows ``part`` of the batch of a step: 6 numbers in, 3 out."""
    rng = np.random.default_rng(step)
    x, y = rng.standard_normal((BATCH * SIZE, 6)), rng.standard_normal((BATCH * SIZE, 3))
    return tm.tensor(x[part]).to(dtype), tm.tensor(y[part]).to(dtype)


def mine() -> slice:
    """The rows of this rank."""
    return slice(RANK * BATCH, RANK * BATCH + BATCH)


def parameters(model: tm.nn.Module) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in model.parameters()]


def same(model: tm.nn.Module) -> None:
    """All ranks have the same parameters, bit for bit."""
    for p in model.parameters():
        first = p.detach().clone()
        dist.broadcast(first, 0)
        np.testing.assert_array_equal(first.numpy(), p.detach().numpy())


def exact(run: Callable[[], Any]) -> memory.Track:
    """Check that each event of this rank is that of its prediction, and that categories add up at each; the prediction."""
    found, said = measured(run), memory.predict(run, world_size=SIZE, rank=RANK)
    for number, (ours, theirs) in enumerate(zip(facts(found), facts(said), strict=False)):
        assert ours == theirs, f"event {number} of rank {RANK}: {ours}, predicted {theirs}"
    assert len(found.log) == len(said.log)
    assert found.peak == said.peak
    assert found.pool().reserved == said.pool().reserved
    cpu: Any = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.Track(cpu) as track, counted(cpu.pool) as used:
            run()
        check_sums(track, used)
    finally:
        cpu.pool = before
    return said
