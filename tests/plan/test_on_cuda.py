"""Plans for a GPU, on one: the step with its techniques has the bytes that were predicted, and trains inside the budget."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Choice, Plan, Times, TrainingStep, plan

pytestmark = pytest.mark.cuda
TIMES = Times("meta")  # modelled: which ops are fast on an emulated device is not what a plan is about


def network() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.ReLU())], nn.Linear(24, 10))


def batch() -> tuple[tm.Tensor, tm.Tensor]:
    return tm.randn(128, 24), tm.randint(0, 10, (128,))


def sgd(parameters: Any) -> tm.optim.Optimizer:
    return tm.optim.SGD(parameters, lr=0.01, momentum=0.9)


def planned(allow: str = "identical") -> Plan:
    return plan(network, batch, F.cross_entropy, sgd, device="cuda", allow=allow, times=TIMES)


def trained(choice: Choice) -> tuple[int, list[float], list[np.ndarray]]:
    """Two steps on the GPU: peak bytes of them and of all that they use, losses, parameters."""
    with tm.device("cuda"):
        tm.manual_seed(0)
        gc.collect()
        with memory.track() as track:
            before = track._device.pool.used_bytes()
            model = network()
            optimizer = sgd(list(model.parameters()))
            x, y = batch()
            step = TrainingStep(choice, model, optimizer, F.cross_entropy)
            losses = [step(x, y).item() for _ in range(2)]
        return track.peak - before, losses, [p.detach().cpu().numpy() for p in model.parameters()]


def test_each_step_of_the_front_has_the_bytes_that_were_predicted():
    """All that the planner can do to this network, singly and together, and the numbers that it says."""
    found = planned(allow="approximate")
    _, plain_losses, plain_end = trained(found.plain.choice)
    seen = set()
    for point in found.front:
        peak, losses, end = trained(point.choice)
        assert peak == point.peak, str(point.choice)
        if point.choice.numbers == "identical":
            assert losses == plain_losses, str(point.choice)
            assert all((a == b).all() for a, b in zip(end, plain_end, strict=True)), str(point.choice)
        else:
            assert losses == pytest.approx(plain_losses, rel=1e-2), str(point.choice)
        seen |= set(point.choice.names)
    assert seen >= {"recompute", "offload", "in_backward", "accumulation"}


def test_a_plan_trains_inside_its_budget(gpu_pool: object):
    """The pool is CuPy's: it may cut its blocks in another way than ours, so it gets one block of the largest size more."""
    front = planned()
    plain = front.plain
    budget = (plain.reserved + front.search.smallest().reserved) // 2
    found = front.within(budget)
    assert found.choice.names
    cuda: Any = tm.device("cuda")
    gc.collect()
    with memory.limit(cuda.pool.used_bytes() + budget + 4 * 128 * 24, cuda):
        with pytest.raises(tm.OutOfMemoryError):
            trained(plain.choice)
        assert trained(found.choice)[0] == found.peak
