"""Each rank has its plan's peak, in use and reserved. The argument is a file of the network's size and of what plans say."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem.devices import Pool
from tinygrad_mem.models.parallel import MeshTraining

dist.init_process_group()
RANK = dist.get_rank()


def trained(size, setting):
    """The peak in use and the reserved bytes of this rank."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        training = MeshTraining(replace(size, recompute=setting.recompute), setting.mesh, dtype=tm.float32)
        for _ in range(4):
            training.step()
        return cpu.pool.peak_used, cpu.pool.peak_total
    finally:
        cpu.pool = before


size, plans = pickle.loads(Path(sys.argv[1]).read_bytes())
for setting, said in plans.items():
    assert trained(size, setting) == said[RANK], (setting, said)
print(f"rank {RANK}: done\n", end="", flush=True)
