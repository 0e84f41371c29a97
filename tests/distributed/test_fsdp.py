"""``fully_shard``: which ranks are alike, and bytes by formulas; ``test_on_real_ranks.py`` has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed import groups
from tinygrad_mem.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from tinygrad_mem.distributed.group import ProcessGroup, Work
from tinygrad_mem.memory import Category


def run(rows: int) -> None:
    dist.init_process_group()
    model = fully_shard(nn.Linear(128, rows, bias=False))
    model(tm.zeros(1, 128)).sum().backward()
    memory.mark("backward ends")


def test_ranks_with_as_many_rows_are_alike():
    (found,) = memory.predict(run, 64, world_size=32, ranks="all")
    assert found.ranks == tuple(range(32))
    found = memory.predict(run, 7, world_size=4, ranks="all")  # chunks of 2, 2, 2, 1
    assert [each.ranks for each in found] == [(0, 1, 2), (3,)]
    sizes = [each.track.by_category("backward ends") for each in found]
    assert sizes == [{Category.PARAMETER: n * 512, Category.GRADIENT: n * 512} for n in (2, 1)]
    found = memory.predict(run, 2, world_size=4, ranks="all")
    assert [each.ranks for each in found] == [(0, 1), (2, 3)]
    assert found[1].track.by_category("backward ends") == {}


def test_the_rows_of_a_rank_are_those_of_chunk():
    for rows in range(1, 12):
        for size in range(1, 6):
            whole = np.arange(rows)
            chunk = -(-rows // size)
            parts = [part.numpy() for part in tm.tensor(whole).chunk(size)]
            for rank in range(size):
                mine = whole[rank * chunk : (rank + 1) * chunk]
                np.testing.assert_array_equal(mine, parts[rank] if rank < len(parts) else [])


def test_a_deleted_model_leaves_no_memory():
    """No reference cycle holds it: neither its shards nor what is gathered."""

    def made_and_deleted():
        dist.init_process_group()
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        for layer in model:
            fully_shard(layer)
        fully_shard(model, reshard_after_forward=False)
        model(tm.zeros(1, 64)).sum().backward()
        model(tm.zeros(1, 64)).sum()
        del model, layer
        memory.mark("deleted")

    found = memory.predict(made_and_deleted, world_size=2)
    assert found.by_category("deleted") == {}


def test_casts_of_autocast_stay_whole_and_those_of_a_policy_do_not():
    def run(policy: bool) -> None:
        dist.init_process_group()
        layers = [nn.Linear(64, 64, bias=False) for _ in range(4)]
        options = {"mp_policy": MixedPrecisionPolicy(param_dtype=tm.bfloat16)} if policy else {}
        model = nn.Sequential(*[fully_shard(layer, **options) for layer in layers])
        fully_shard(model, **options)
        with tm.autocast("cpu", dtype=tm.bfloat16, enabled=not policy):
            loss = model(tm.zeros(1, 64)).sum()
        memory.mark("forward ends")
        loss.backward()

    cast = 2 * 64 * 64  # of each weight but the first, whose input needs no gradient
    for policy, casts in ((False, 3 * cast), (True, 0)):
        at = memory.predict(run, policy, world_size=4).by_category("forward ends")
        assert at[Category.PARAMETER] == 4 * 4 * 64 * 64 // 4
        assert at.get(Category.WEIGHT_CAST, 0) == casts
        assert Category.COMMUNICATION not in at


class Alone(ProcessGroup):
    """The collectives of one rank on a GPU: what it sends is what it gets."""

    backend, device_type = "nccl", "cuda"

    def all_gather(self, out: Any, array: Any, of: str = "") -> Work:
        assert out.data.ptr == array.data.ptr
        return Work()

    def reduce_scatter(self, out: Any, array: Any, op: Any, of: str = "") -> Work:
        tm.device("cuda").kernels.copy(array, out=out)
        return Work()


@pytest.mark.cuda
@pytest.mark.parametrize("pinned", [True, False])
def test_offload_from_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu_pool: Any, pinned: bool):
    """The steps run on the cpu, and the GPU has nothing between them."""

    def trained(device: str, **options: Any) -> tuple[nn.Module, list[float]]:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double().to(device)
        for layer in (model[0], model[2], model) if options else ():
            fully_shard(layer, **options)
        optimizer = tm.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for step in range(3):
            x = tm.tensor(np.random.default_rng(step).standard_normal((4, 6))).to(device)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            del x, loss
        return model, losses

    monkeypatch.setattr(groups._process, "process_group", Alone(0, [0], 60.0))
    alone, wanted = trained("cpu")
    model, found = trained("cuda", offload_policy=CPUOffloadPolicy(pin_memory=pinned))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    host = tm.device("cuda").host(pinned=pinned)
    assert gpu_pool.used_bytes() == 0
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert p.device is host
        assert p.device.type == "cpu"
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-10)
    sizes = sum(-(-q.nbytes // 512) * 512 for q in alone.parameters())
    assert host.pool.used_bytes() == 2 * sizes, "parameters and gradients: the optimizer is gone"
    half = fully_shard(nn.Linear(2, 3).cuda(), mp_policy=MixedPrecisionPolicy(tm.float16), offload_policy=CPUOffloadPolicy())
    half(tm.ones(1, 2, device="cuda")).sum().backward()
    np.testing.assert_array_equal(half.weight.grad.numpy(), np.ones((3, 2)))


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_offloaded_bytes_of_a_rank_by_a_formula(ranks: int):
    """The device has two gathered units, two gradients and this rank's part of one, the layers' inputs, the loss, its gradient.

    The host has this rank's part of all parameters, gradients and optimizer states.
    """
    width, layers = 512, 5
    whole, part, line = 4 * width * width, 4 * width * width // ranks, 4 * width
    found = []

    def run() -> None:
        dist.init_process_group()
        policy = {"offload_policy": CPUOffloadPolicy()}
        with memory.Track(tm.device("cpu").host()) as track:
            model = nn.Sequential(*[fully_shard(nn.Linear(width, width, bias=False), **policy) for _ in range(layers)])
            fully_shard(model, **policy)
            optimizer = tm.optim.Adam(model.parameters())
            x = tm.zeros(1, width)
            memory.mark("training")
            for _ in range(2):
                model(x).sum().backward()
                memory.mark("backward ends")
                optimizer.step()
                optimizer.zero_grad()
        found.append(track)

    said = memory.predict(run, world_size=ranks)
    time, begins = said.timeline(), said.marks[0].index
    assert time.used[np.searchsorted(time.event, begins) :].max() == 4 * whole + part + layers * line + 2 * 512
    assert said.by_category("backward ends") == {Category.INPUT: line}
    assert found[0].by_category("backward ends") == {
        Category.PARAMETER: layers * part,
        Category.GRADIENT: layers * part,
        Category.OPTIMIZER_STATE: 2 * layers * part,
    }
    assert found[0].peak == 4 * layers * part
