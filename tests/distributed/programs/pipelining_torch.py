"""The same pipeline in PyTorch under gloo: the same losses, outputs and gradients."""

import numpy as np
import torch
import torch.distributed.pipelining as theirs

import tinygrad_mem as tm
from tests.distributed.checks import equal
from tests.distributed.programs.gloo import RANK, SIZE
from tinygrad_mem.distributed import pipelining as ours

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


def same_pipelines():
    for name, each in (("ScheduleGPipe", 1), ("Schedule1F1B", 1), ("ScheduleInterleaved1F1B", 2)):
        mine = trained(tm, ours, name, each, tm.tensor, lambda t: t.detach().numpy())
        other = trained(torch, theirs, name, each, torch.tensor, lambda t: t.detach().numpy())
        equal(mine, other, name)
