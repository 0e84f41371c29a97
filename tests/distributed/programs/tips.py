"""The tips about several ranks, run on as many: each event of each rank is that of its prediction."""

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import exact
from tinygrad_mem.tips import TIPS

dist.init_process_group()
ABOUT_RANKS = [tip for tip in TIPS.values() if tip.cases[0].ranks == dist.get_world_size()]
assert ABOUT_RANKS or dist.get_world_size() != 4


def run(build, scene):
    if not dist.is_initialized():  # in the prediction
        dist.init_process_group()
    tm.manual_seed(0)
    training = build(scene)
    for _ in range(training.steps):
        training.step()


for tip in ABOUT_RANKS:
    exact(lambda tip=tip: run(tip.cases[0].after, tip.scene))
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: done\n", end="", flush=True)
