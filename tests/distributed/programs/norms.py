"""The norm of gradients of which each rank has a part: tensor parallel, and that beside ``fully_shard`` on a mesh."""

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.programs.shared import RANK, SIZE
from tinygrad_mem import nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer
from tinygrad_mem.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def network():
    tm.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def compare(model, norms=((2.0, 0.1), (1.0, 0.3), (float("inf"), 0.05))):
    x = tm.tensor(np.random.default_rng(0).standard_normal((3, 4)))
    alone = network()
    for kind, most in norms:
        found = []
        for each in (alone, model):
            each.zero_grad()
            each(x).sum().backward()
            found.append(nn.utils.clip_grad_norm_(each.parameters(), most, kind).item())
            found.append(nn.utils.get_total_norm([p.grad for p in each.parameters()], kind).item())
        np.testing.assert_allclose(found[2:], found[:2], rtol=1e-12)
        assert abs(found[1] - most) < 1e-5


if __name__ == "__main__":
    mesh = dist.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(network(), mesh["tp"], PLAN)
    compare(model)
    with pytest.raises(ValueError, match="another part of the parameters"):
        nn.parallel.DistributedDataParallel(model, process_group=mesh["tp"].get_group())
    if SIZE > 2:
        nn.parallel.DistributedDataParallel(model, process_group=mesh["dp"].get_group())
        ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, mesh["dp"].get_group())
        sharded = fully_shard(parallelize_module(network(), mesh["tp"], PLAN), mesh=mesh["dp"])
        compare(sharded)
    scaler, optimizer = tm.amp.GradScaler("cpu", init_scale=2.0), tm.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(tm.ones(1, 4, dtype=tm.float64)).sum()).backward()
    if RANK == 0:
        next(model.parameters()).grad.fill_(float("inf"))
    scaler.step(optimizer)
    assert scaler.stepped(optimizer) == (SIZE > 2 and RANK >= 2)  # of the ranks that have the other parts, none steps
    print(f"rank {RANK} of {SIZE}: done", flush=True)
