"""ZeRO 1: the numbers of one process, of PyTorch's rule of who owns what, and the bytes of the prediction."""

import sys

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, exact
from tests.distributed.programs.shared import BATCH, RANK, SIZE, batch, mine, parameters, same
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.parallel import DistributedDataParallel

RULES = {
    "sgd": (tm.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adam": (tm.optim.Adam, {"lr": 0.01}),
    "adamw": (tm.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def network(dtype=tm.float64):
    tm.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 90), nn.ReLU(), nn.Linear(90, 3)).to(dtype)


def trained(wrap, part, steps=STEPS):
    model = network()
    called, optimizer = wrap(model)
    schedule = tm.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for step in range(steps):
        x, y = batch(step, part)
        optimizer.zero_grad()
        loss = F.mse_loss(called(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model, optimizer, losses


def same_as_one_process():
    for rule, options in RULES.values():
        alone, plain, losses = trained(lambda m: (m, rule(m.parameters(), **options)), slice(None))  # noqa: B023
        ways = [lambda m: (DistributedDataParallel(m), ZeroRedundancyOptimizer(m.parameters(), rule, **options))] * 2  # noqa: B023
        (model, optimizer, found), (again, _, _) = [trained(way, mine()) for way in ways]
        total = tm.tensor(found, dtype=tm.float64)
        dist.all_reduce(total, dist.ReduceOp.AVG)
        np.testing.assert_allclose(total.numpy(), losses, rtol=1e-10)
        for a, b in zip(parameters(alone), parameters(model), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)
        for a, b in zip(parameters(model), parameters(again), strict=True):
            np.testing.assert_array_equal(a, b)
        same(model)
        assert set(optimizer.state) == set(optimizer.optim.param_groups[0]["params"])
        state_dicts(alone, plain, model, optimizer, rule, options)


def state_dicts(alone, plain, model, optimizer, rule, options):
    """All of the state on one rank is that of one process, and each rank takes its own of it."""
    with pytest.raises(RuntimeError, match="Optimizer state has not been consolidated on this rank"):
        optimizer.state_dict()
    to = SIZE - 1
    optimizer.consolidate_state_dict(to=to)
    if to == RANK:
        found, wanted = optimizer.state_dict(), plain.state_dict()
        assert found["param_groups"] == wanted["param_groups"]
        assert list(found["state"]) == list(wanted["state"])
        for number, values in wanted["state"].items():
            assert list(found["state"][number]) == list(values)
            for name, value in values.items():
                each = found["state"][number][name]
                np.testing.assert_allclose(np.asarray(each), np.asarray(value), rtol=1e-9, atol=1e-13)
    fresh = ZeroRedundancyOptimizer(model.parameters(), rule, **{**options, "lr": 7.0})
    fresh.load_state_dict(plain.state_dict())
    assert fresh.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    assert set(fresh.state) == set(fresh.optim.param_groups[0]["params"])
    for p in model.parameters():
        p.grad = tm.ones_like(p)
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        p.grad = tm.ones_like(p)
        p.data.copy_(q.detach())
    fresh.step()
    plain.step()
    for a, b in zip(parameters(alone), parameters(model), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match=r"its groups have \[2\] parameters, those of this optimizer have \[6\]"):
        fresh.load_state_dict(rule([tm.ones(2), tm.ones(2)], **options).state_dict())
    with pytest.raises(TypeError, match=r"load_state_dict: expected a dict"):
        fresh.load_state_dict([])


def a_checkpoint_goes_on():
    """Each rank of another run takes its own of the state of all, and goes on bit for bit."""
    (model, optimizer, _), again = trained(wrapped, mine(), steps=3), network()
    whole = {}
    for rank in range(SIZE):
        optimizer.consolidate_state_dict(to=rank)
        whole = optimizer.state_dict() if rank == RANK else whole
    assert list(whole["state"]) == list(range(6))
    fresh = ZeroRedundancyOptimizer(again.parameters(), tm.optim.Adam, lr=7.0)
    fresh.load_state_dict(whole)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        q.data.copy_(p.detach())
    for step in range(2):
        for p, q in zip(model.parameters(), again.parameters(), strict=True):
            p.grad = tm.full_like(p, 0.1 * (step + 1))
            q.grad = tm.full_like(q, 0.1 * (step + 1))
        optimizer.step()
        fresh.step()
    for a, b in zip(parameters(model), parameters(again), strict=True):
        np.testing.assert_array_equal(a, b)


def wrapped(model):
    return DistributedDataParallel(model), ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, lr=0.01)


def groups_added_later():
    model = network()
    first, *rest = model.parameters()
    optimizer = ZeroRedundancyOptimizer([("first", first)], tm.optim.SGD, lr=0.5)
    optimizer.add_param_group({"params": [(f"p{i}", p) for i, p in enumerate(rest)], "lr": 0.25})
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.25]
    assert optimizer.param_groups[1]["momentum"] == 0
    before = parameters(model)
    for p in model.parameters():
        p.grad = tm.ones_like(p)
    optimizer.param_groups[1]["lr"] = 0.125  # as a schedule does
    optimizer.step()
    for i, (a, b) in enumerate(zip(before, parameters(model), strict=True)):
        np.testing.assert_array_equal(a - (0.125 if i else 0.5), b)


def half_with_masters():
    """Float16 with float32 masters: only this rank's have any."""
    model = network(tm.float16)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, lr=0.01, master_weights=True)
    alone = network(tm.float16)
    plain = tm.optim.Adam(alone.parameters(), lr=0.01, master_weights=True)
    for step in range(3):
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            p.grad = tm.full_like(p, 0.1 * (step + 1))
            q.grad = tm.full_like(q, 0.1 * (step + 1))
        optimizer.step()
        plain.step()
    for a, b in zip(parameters(alone), parameters(model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert 0 < len(optimizer.state) < len(plain.state)


def refused():
    model = network()
    with pytest.raises(NotImplementedError, match="parameters_as_bucket_view and overlap_with_ddp are not offered"):
        ZeroRedundancyOptimizer(model.parameters(), tm.optim.SGD, parameters_as_bucket_view=True, lr=1.0)
    with pytest.raises(NotImplementedError, match="LBFGS needs all gradients at once"):
        ZeroRedundancyOptimizer(model.parameters(), tm.optim.LBFGS)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.SGD, lr=1.0)
    with pytest.raises(NotImplementedError, match="a process group cannot be copied"):
        optimizer.__getstate__()
    with tm.techniques.optimizer_in_backward(optimizer), pytest.raises(NotImplementedError, match="no rank updates all"):
        model(tm.ones(1, 6, dtype=tm.float64)).sum().backward()
    with pytest.raises(ValueError, match="invalid rank 9"):
        optimizer.consolidate_state_dict(to=9)
    half = dist.new_group([0])
    if RANK:
        with pytest.raises(ValueError, match="this rank is not a member of the process group"):
            ZeroRedundancyOptimizer(model.parameters(), tm.optim.SGD, half, lr=1.0)


def bytes_are_those_of_the_prediction():
    def run():
        if not dist.is_initialized():
            dist.init_process_group()
        model = network(tm.float32)
        called = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam)
        for _ in range(2):
            F.mse_loss(called(tm.zeros(BATCH, 6)), tm.zeros(BATCH, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()

    said = exact(run)
    model = network(tm.float32)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam)
    own = optimizer.optim.param_groups[0]["params"]
    expected = sum(2 * (-(-p.numel() * 4 // 512) * 512) for p in own)
    assert said.by_category().get(memory.Category.OPTIMIZER_STATE, 0) == expected


if __name__ == "__main__":
    for check in (
        same_as_one_process,
        a_checkpoint_goes_on,
        groups_added_later,
        half_with_masters,
        refused,
        bytes_are_those_of_the_prediction,
    ):
        check()
    print(f"rank {RANK} of {SIZE}: done")
    sys.stdout.flush()
