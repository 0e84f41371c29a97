"""The same pipeline in PyTorch under gloo: the same losses, outputs and gradients. The argument is a file to meet at."""

import sys

import numpy as np
import torch
import torch.distributed.pipelining as theirs

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import equal
from tinygrad_mem.distributed import pipelining as ours

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=SIZE)
COUNT, ROWS, WIDTH = 4, 8, 6


def trained(lib, pipelining, name, each, tensor, array):
    """The losses and the output on the last rank, and the gradients."""
    stages = []
    for place in range(RANK, SIZE * each, SIZE):
        layer = lib.nn.Sequential(lib.nn.Linear(WIDTH, WIDTH), lib.nn.Tanh()).double()
        rng = np.random.default_rng(place)
        with lib.no_grad():
            for p in layer.parameters():
                p.copy_(tensor(rng.standard_normal(tuple(p.shape)) / 2))
        if lib is torch:  # it sends shapes around
            stages.append(pipelining.PipelineStage(layer, place, SIZE * each, torch.device("cpu")))
        else:
            like = tm.zeros(ROWS // COUNT, WIDTH, dtype=tm.float64)
            stages.append(pipelining.PipelineStage(layer, place, SIZE * each, "cpu", input_args=like))
    schedule = getattr(pipelining, name)(stages if each > 1 else stages[0], COUNT, lib.nn.MSELoss())
    x, y = np.random.default_rng(99).standard_normal((2, ROWS, WIDTH))
    losses: list = []
    output = schedule.step(*([tensor(x)] if RANK == 0 else []), target=tensor(y) if RANK == SIZE - 1 else None, losses=losses)
    found = [array(p.grad) for stage in stages for p in stage.submod.parameters()]
    return found + ([array(output), *map(array, losses)] if RANK == SIZE - 1 else [])


if __name__ == "__main__":
    for name, each in (("ScheduleGPipe", 1), ("Schedule1F1B", 1), ("ScheduleInterleaved1F1B", 2)):
        mine = trained(tm, ours, name, each, tm.tensor, lambda t: t.detach().numpy())
        other = trained(torch, theirs, name, each, torch.tensor, lambda t: t.detach().numpy())
        equal(mine, other, name)
    print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
    torch.distributed.destroy_process_group()
