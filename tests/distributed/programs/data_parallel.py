"""Data parallel: the numbers of one process with the whole batch, and the bytes of the prediction."""

import sys

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, exact
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.parallel import DistributedDataParallel

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
BATCH = 4


def network(dtype=tm.float64):
    tm.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 3)).to(dtype)


def batch(step, part):
    rng = np.random.default_rng(step)
    x, y = rng.standard_normal((BATCH * SIZE, 6)), rng.standard_normal((BATCH * SIZE, 3))
    return tm.tensor(x[part]), tm.tensor(y[part])


MINE = slice(RANK * BATCH, RANK * BATCH + BATCH)


def parameters(model):
    return [p.detach().numpy().copy() for p in model.parameters()]


def trained(model, wrapped, part, steps=STEPS, rule=tm.optim.Adam):
    optimizer = rule(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = batch(step, part)
        optimizer.zero_grad()
        F.mse_loss(wrapped(x), y).backward()
        optimizer.step()
    return parameters(model)


def alike(model):
    for p in model.parameters():
        mine = p.detach().clone()
        dist.broadcast(mine, 0)
        np.testing.assert_array_equal(mine.numpy(), p.detach().numpy())


def same_as_one_process():
    model = network()
    alone = trained(model, model, slice(None))
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.01}, {"find_unused_parameters": True}):
        tm.manual_seed(RANK)
        model = network()
        if RANK:
            for p in model.parameters():
                p.data.zero_()  # it is given the values of rank 0
        wrapped = DistributedDataParallel(model, **options)
        found = trained(model, wrapped, MINE)
        for a, b in zip(alone, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=str(options))
        again = network()
        for a, b in zip(found, trained(again, DistributedDataParallel(again, **options), MINE), strict=True):
            np.testing.assert_array_equal(a, b)  # bit for bit, and the same on all ranks:
        alike(model)
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in model.state_dict()]


def random_projections():
    """The projections of APOLLO come from a generator, and those of ranks usually differ."""
    for first in (False, True):  # the optimizer may be made before or after the wrapper
        model = network()
        tm.manual_seed(RANK)
        optimizer = tm.optim.APOLLO(model.parameters(), lr=0.1, rank=2) if first else None
        wrapped = DistributedDataParallel(model)
        optimizer = optimizer or tm.optim.APOLLO(model.parameters(), lr=0.1, rank=2)
        for step in range(STEPS):
            x, y = batch(step, MINE)
            optimizer.zero_grad()
            F.mse_loss(wrapped(x), y).backward()
            optimizer.step()
        alike(model)
        seeds = [state["seed"] for state in optimizer.state.values() if "seed" in state]
        assert len(set(seeds)) == len(seeds) == 3


def accumulated():
    """Two micro-batches under no_sync and after it: the gradient of both."""
    for as_view in (False, True):
        model, whole = network(), network()
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
        with wrapped.no_sync():
            x, y = batch(0, MINE)
            F.mse_loss(wrapped(x), y).backward()
        x, y = batch(1, MINE)
        F.mse_loss(wrapped(x), y).backward()
        for step in range(2):
            x, y = batch(step, slice(None))
            F.mse_loss(whole(x), y).backward()
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-10, atol=1e-14)
        for p in model.parameters():  # a third backward adds to what is there
            before = p.grad.numpy().copy()
            break
        x, y = batch(2, MINE)
        F.mse_loss(wrapped(x), y).backward()
        assert not np.array_equal(before, next(model.parameters()).grad.numpy())


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("seen", tm.zeros(1))

    def forward(self, x, which):
        self.seen += RANK + 1
        return sum(getattr(self, each)(x) for each in which)


def unused():
    model = Branches()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped(tm.ones(2, 3), "a" if RANK == 0 else "b").sum().backward()
    dist.all_reduce(total := tm.tensor([float(RANK > 0)]))
    np.testing.assert_allclose(model.a.weight.grad.numpy(), np.full((3, 3), 2 / SIZE))
    np.testing.assert_allclose(model.b.weight.grad.numpy(), np.full((3, 3), 2 * total.item() / SIZE))
    assert model.c.weight.grad is None
    wrapped(tm.ones(2, 3), "a")
    assert model.seen.item() == 1 + RANK + 1  # the buffer of rank 0 came before the second forward
    strict = DistributedDataParallel(Branches())
    with pytest.raises(RuntimeError, match=r"got no gradient: b\.weight, b\.bias, c\.weight, c\.bias"):
        strict(tm.ones(2, 3), "a").sum().backward()
    with pytest.raises(tm.errors.RankError, match=rf"float32 \[{SIZE + 1}, 2\]"):
        DistributedDataParallel(nn.Linear(2, SIZE + 1 if RANK else SIZE))


def unused_on_some_ranks():
    """Ranks that used all parameters of a bucket send it in backward, others at its end."""
    model = Branches()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=1e-6)
    wrapped(tm.ones(2, 3), "ab" if RANK % 2 else "abc").sum().backward()
    for name, count in (("a", SIZE), ("b", SIZE), ("c", SIZE - SIZE // 2)):
        np.testing.assert_allclose(getattr(model, name).weight.grad.numpy(), np.full((3, 3), 2 * count / SIZE))


def used_under_no_sync_alone():
    """The average is of the whole window, also of parameters that its last backward left out on all ranks."""
    model = Branches()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    with wrapped.no_sync():
        (wrapped(tm.ones(2, 3), "a") * (RANK + 1)).sum().backward()
    wrapped(tm.ones(2, 3), "b").sum().backward()
    np.testing.assert_allclose(model.a.weight.grad.numpy(), np.full((3, 3), SIZE + 1))
    assert model.c.weight.grad is None
    wrapped(tm.ones(2, 3), "b").sum().backward()  # a window of its own: no rank used a
    np.testing.assert_allclose(model.a.weight.grad.numpy(), np.full((3, 3), SIZE + 1))


def predicted(options):
    """The prediction, of which each event is one of this rank's run."""

    def run():
        if not dist.is_initialized():
            dist.init_process_group()
        model = network(tm.float32)
        wrapped = DistributedDataParallel(model, **options)
        optimizer = tm.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(2):
            x, y = tm.zeros(BATCH, 6), tm.zeros(BATCH, 3)
            with wrapped.no_sync():
                F.mse_loss(wrapped(x), y).backward()
            F.mse_loss(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    said = exact(run)
    assert said.by_category()[memory.Category.COMMUNICATION if not options else memory.Category.GRADIENT] > 0
    return said


def all_exact():
    sizes = [p.numel() * 4 for p in network(tm.float32).parameters()]
    copies, views = predicted({}), predicted({"gradient_as_bucket_view": True})
    buckets = copies.by_category()[memory.Category.COMMUNICATION]
    assert sum(sizes) <= buckets < sum(sizes) + 512 * len(sizes)
    assert memory.Category.COMMUNICATION not in views.by_category() or views.peak < copies.peak


if __name__ == "__main__":
    checks = [same_as_one_process, random_projections, accumulated, unused, unused_on_some_ranks, used_under_no_sync_alone]
    for check in (*checks, all_exact):
        check()
    print(f"rank {RANK} of {SIZE}: done")
    sys.stdout.flush()
