"""What the programs of this folder share: this rank, its batches, parameters that are the same on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist

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
