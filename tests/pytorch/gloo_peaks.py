"""The bytes that ``DistributedDataParallel`` takes in a real process of gloo; a program that prints them."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.pytorch_memory import pytorch_peak

OPTIONS: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 1},
    {"bucket_cap_mb": 2, "gradient_as_bucket_view": True},
    {"broadcast_buffers": False},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
]
SEARCHING: list[dict[str, Any]] = [{"find_unused_parameters": True}, {"static_graph": True}]
STEPS = (1, 3)
RUNS = 3  # gloo's threads may hold a tensor for a moment longer


def train(device: str, options: dict, steps: int, waits: bool = False, **group):
    """Train a network of four layers of 1 MiB. ``group``: arguments of a real process group; without them it is predicted."""
    dist.init_process_group("gloo" if group else "nccl", **group)
    layers = [nn.Linear(512, 512, bias=False) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.BatchNorm1d(512)).to(device), **options)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        with model.no_sync():
            model(torch.randn(8, 512, device=device)).sum().backward()
        loss = model(torch.randn(8, 512, device=device)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if waits:
            dist.all_reduce(loss)
            dist.barrier()
    dist.destroy_process_group()


class Branches(nn.Module):
    """One layer has no gradient; with ``twice`` the first is called in two checkpoints."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.first, self.left, self.right = (nn.Linear(512, 512) for _ in range(3))
        self.twice, self.calls = twice, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = checkpoint(self.first, x, use_reentrant=True) if self.twice else x
        x = checkpoint(self.first, x, use_reentrant=True) if self.twice else self.first(x)
        return self.left(x) if self.calls % 2 or self.twice else self.right(x)


def train_branches(device: str, options: dict, steps: int, **group):
    """As :func:`train`, with a part of the network in each step."""
    dist.init_process_group("gloo" if group else "nccl", **group)
    model = DistributedDataParallel(Branches("static_graph" in options).to(device), **options)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 512, device=device, requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nobody is asked for the name of this machine
    found = [
        min(
            pytorch_peak(lambda f=run, o=options, s=steps: f("cpu", o, s, store=dist.HashStore(), rank=0, world_size=1))
            for _ in range(RUNS)
        )
        for run, each in ((train, OPTIONS), (train_branches, SEARCHING))
        for options in each
        for steps in STEPS
    ]
    print(json.dumps(found))
