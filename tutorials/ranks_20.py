"""The program of lesson 20: one rank of a training that ZeRO divides.

``python -m tinygrad_mem launch -n 2 ranks_20.py FILE`` measures each stage on two ranks, and writes the numbers into FILE.
"""

import json
import sys
from pathlib import Path

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer

STAGES = ("data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3")
LAYERS, WIDTH, BATCH = 8, 512, 32


def train(stage: str, units: bool = True, seed: int = 0) -> float:
    """Three steps under Adam; the second has the optimizer's state from the beginning. Returns the last loss.

    Args:
        stage: one of ``STAGES``.
        units: True: each layer is a unit; False: the whole network is one.
        seed: the seed of this rank's samples.
    """
    if not dist.is_initialized():
        dist.init_process_group()
    tm.manual_seed(0)
    layers = []
    for _ in range(LAYERS):
        layers.append(nn.Linear(WIDTH, WIDTH, bias=False))
        if units and stage in ("ZeRO 2", "ZeRO 3"):  # at once, so that no rank ever has all layers
            fully_shard(layers[-1], reshard_after_forward=stage == "ZeRO 3")
    model = called = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())])
    if stage in ("ZeRO 2", "ZeRO 3"):
        fully_shard(model, reshard_after_forward=stage == "ZeRO 3")
    else:
        called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if stage == "ZeRO 1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, lr=1e-3)
    else:
        optimizer = tm.optim.Adam(model.parameters(), lr=1e-3)
    tm.manual_seed(seed)
    x, loss = tm.randn(BATCH, WIDTH), tm.zeros(())
    memory.mark("training begins")
    for _ in range(3):
        optimizer.zero_grad()
        loss = called(x).pow(2).mean()
        memory.mark("forward ends")
        loss.backward()
        loss = loss.detach()
        memory.mark("backward ends")
        optimizer.step()
    memory.mark("training ends")
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group()
    found = {}
    for stage in STAGES:
        tm.device("cpu").pool.free_all_blocks()
        with memory.track() as track:
            last = train(stage, seed=dist.get_rank())
        mine = tm.tensor([float(track.peak), float(track.pool().reserved), last], dtype=tm.float64)
        every = tm.zeros(dist.get_world_size(), 3, dtype=tm.float64)
        dist.all_gather_into_tensor(every, mine)
        found[stage] = every.tolist()
        del mine, every
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
