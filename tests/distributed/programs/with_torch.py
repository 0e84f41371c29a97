"""PyTorch's own ``fully_shard`` and ``ZeroRedundancyOptimizer`` on one rank under gloo, on the same network and batches.

Arguments: the rank, the number of ranks, a file for the store, the file of the network's values, a file for the answers.
"""

import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

STEPS, BATCH = 10, 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3), nn.Linear(3, width)
        self.scale = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x):
        return x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width=16, blocks=3):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def network(values):
    model = Network().double()
    model.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    return model


def trained(model, called, optimizer, rank, size):
    losses = []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        x, y = rng.standard_normal((BATCH * size, 6)), rng.standard_normal((BATCH * size, 3))
        part = slice(rank * BATCH, rank * BATCH + BATCH)
        optimizer.zero_grad()
        loss = F.mse_loss(called(torch.tensor(x[part])), torch.tensor(y[part]))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return losses


def main(rank, size, store, given, answers):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    values = dict(np.load(given))
    found = {}
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    offloaded = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}  # nothing can be pinned without a GPU
    for name, options in (("ZeRO 3", {}), ("ZeRO 2", {"reshard_after_forward": False}), ("offloaded", offloaded)):
        model = network(values)
        mesh = dist.init_device_mesh("cpu", (size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        found[f"{name}/losses"] = trained(model, model, torch.optim.Adam(model.parameters(), lr=0.01), rank, size)
        found |= {f"{name}/{key}": p.to_local().detach().numpy() for key, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = network(values)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    found["ZeRO 1/losses"] = trained(model, nn.parallel.DistributedDataParallel(model), optimizer, rank, size)
    found |= {f"ZeRO 1/{key}": p.detach().numpy() for key, p in model.named_parameters()}
    np.savez(answers, **found)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
