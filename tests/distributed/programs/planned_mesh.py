"""Plans over a mesh of the ranks that run: each rank has the plan's peak, used and reserved."""

from dataclasses import replace

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem.devices import Pool
from tinygrad_mem.models.mesh_plan import plan_mesh
from tinygrad_mem.models.parallel import MeshTraining, TransformerSize

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GPT = TransformerSize(2, 32, 4, 4, 64, 64, 16)
SAMPLES = 2


def trained(setting):
    """The peak in use and the reserved bytes of this rank."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        training = MeshTraining(replace(GPT, recompute=setting.recompute), setting.mesh, dtype=tm.float32)
        for _ in range(4):
            training.step()
        return cpu.pool.peak_used, cpu.pool.peak_total
    finally:
        cpu.pool = before


fastest = plan_mesh(GPT, SAMPLES, SIZE, dtype=tm.float32)
least = min(each.peak for each in fastest.sketches)
plans = [fastest, *(fastest.within(int(times * least)) for times in (1.2, 1.5))]
for found in {each.setting: each for each in plans}.values():
    (said,) = [each for each in found.point.by_rank if RANK in each.ranks]
    assert trained(found.setting) == (said.peak, said.reserved), (found.setting, said)
print(f"rank {RANK}: done\n", end="", flush=True)
