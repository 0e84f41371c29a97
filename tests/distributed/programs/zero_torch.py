"""``fully_shard`` and ``ZeroRedundancyOptimizer`` beside PyTorch's: the same losses, norms and parameters on every rank."""

import warnings
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed.fsdp

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.blocks import classes
from tests.distributed.checks import THOROUGH, equal
from tests.distributed.programs.gloo import RANK, SIZE
from tinygrad_mem.distributed import fsdp
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed.optim import ZeroRedundancyOptimizer as Theirs

STEPS, BATCH = 10 if THOROUGH else 3, 4
OURS = SimpleNamespace(
    lib=tm,
    mesh=dist.init_device_mesh("cpu", (SIZE,)),
    fully_shard=fsdp.fully_shard,
    offload=fsdp.CPUOffloadPolicy(),
    zero=ZeroRedundancyOptimizer,
    whole=lambda norm: norm,
    mine=lambda p: p,
)
THEIRS = SimpleNamespace(
    lib=torch,
    mesh=torch.distributed.init_device_mesh("cpu", (SIZE,)),
    fully_shard=torch.distributed.fsdp.fully_shard,
    offload=torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=False),  # nothing can be pinned without a GPU
    zero=Theirs,
    whole=lambda norm: norm.full_tensor() if hasattr(norm, "full_tensor") else norm,
    mine=lambda p: p.to_local() if hasattr(p, "to_local") else p,
)


def network(lib):
    """The same values in each library."""
    _, network_class = classes(lib)
    model = network_class().double()
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for p in model.parameters():
            p.copy_(lib.tensor(rng.standard_normal(tuple(p.shape)) / 3))
    return model


def trained(way, model, called, optimizer):
    """The losses and norms, and this rank's part of the parameters."""
    lib, losses = way.lib, []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        x, y = rng.standard_normal((BATCH * SIZE, 6)), rng.standard_normal((BATCH * SIZE, 3))
        part = slice(RANK * BATCH, RANK * BATCH + BATCH)
        optimizer.zero_grad()
        loss = lib.nn.functional.mse_loss(called(lib.tensor(x[part])), lib.tensor(y[part]))
        loss.backward()
        norm = way.whole(lib.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return [np.array(losses), *(way.mine(p).detach().numpy() for p in model.parameters())]


def sharded(way, **options):
    model = network(way.lib)
    for block in model.blocks:
        way.fully_shard(block, mesh=way.mesh, **options)
    way.fully_shard(model, mesh=way.mesh, **options)
    return trained(way, model, model, way.lib.optim.Adam(model.parameters(), lr=0.01))


def zero_1(way):
    model = network(way.lib)
    optimizer = way.zero(model.parameters(), way.lib.optim.Adam, lr=0.01)
    return trained(way, model, way.lib.nn.parallel.DistributedDataParallel(model), optimizer)


def same_stages():
    for name, run in {
        "ZeRO 1": zero_1,
        "ZeRO 2": lambda way: sharded(way, reshard_after_forward=False),
        "ZeRO 3": sharded,
        "offloaded": lambda way: sharded(way, offload_policy=way.offload),
    }.items():
        found, wanted = run(OURS), run(THEIRS)
        assert [each.shape for each in found] == [each.shape for each in wanted], name
        equal(found, wanted, name)
