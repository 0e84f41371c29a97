"""Each test begins with empty pools: where its bytes lie, and which segments they need, is not for earlier tests to say."""

from __future__ import annotations

from tinygrad_mem.devices import Pool, device
from tinygrad_mem.devices.pool import Block
from tinygrad_mem.memory.alive import alive

PLACES = ("cpu", "meta")


def emptied(pool: Pool) -> None:
    """Make the pool as new, without a limit. What is alive goes on living, in a pool that no test asks."""
    if not (pool.total_bytes() or pool.get_limit() or pool._host is not None):
        pool.reset_peak()
        return
    fresh, past = (Pool(pool.device, reserve=pool.reserve) for _ in range(2))
    blocks = [block for block in alive({Block}) if getattr(block, "pool", None) is pool]
    vars(past).update(vars(pool))
    vars(pool).update(vars(fresh))
    for block in blocks:
        block.pool = past


def begin() -> None:
    """Empty the default pools."""
    for place in PLACES:
        emptied(device(place).pool)
