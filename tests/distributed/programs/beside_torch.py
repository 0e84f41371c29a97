"""The training of ``with_torch.py``, here. Arguments: the file of the network's values, the folder for the answers."""

import sys
from pathlib import Path

import numpy as np

import tinygrad_mem as tm
from tests.distributed.programs.fsdp import Network, sharded
from tests.distributed.programs.shared import RANK, batch, mine
from tinygrad_mem import nn
from tinygrad_mem.distributed.fsdp import CPUOffloadPolicy
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer
from tinygrad_mem.nn import functional as F


def network(values):
    model = Network().double()
    model.load_state_dict(values)
    return model


def trained(model, called, optimizer):
    losses = []
    for step in range(10):
        x, y = batch(step, mine())
        optimizer.zero_grad()
        loss = F.mse_loss(called(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return losses


if __name__ == "__main__":
    values, found = dict(np.load(sys.argv[1])), {}
    offloaded = {"offload_policy": CPUOffloadPolicy()}
    for name, options in (("ZeRO 3", {}), ("ZeRO 2", {"reshard_after_forward": False}), ("offloaded", offloaded)):
        model = sharded(network(values), **options)
        found[f"{name}/losses"] = trained(model, model, tm.optim.Adam(model.parameters(), lr=0.01))
        found |= {f"{name}/{key}": p.detach().numpy() for key, p in model.named_parameters()}
    model = network(values)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, lr=0.01)
    found["ZeRO 1/losses"] = trained(model, nn.parallel.DistributedDataParallel(model), optimizer)
    found |= {f"ZeRO 1/{key}": p.detach().numpy() for key, p in model.named_parameters()}
    np.savez(Path(sys.argv[2]) / f"ours{RANK}.npz", **found)
    print(f"rank {RANK}: done", flush=True)
