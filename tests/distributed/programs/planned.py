"""Plans for the ranks that run: each rank has the plan's peak, used and reserved, and the losses are those of one process.

Every way to divide the model runs, and the plans for some budgets.
"""

import numpy as np
from mpi4py import MPI

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import THOROUGH
from tests.distributed.programs.fsdp import Network
from tests.distributed.programs.shared import RANK, SIZE
from tinygrad_mem import nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import (
    Accumulation,
    Autocast,
    Choice,
    Compression,
    InBackward,
    Replicated,
    Times,
    TrainingStep,
    Zero1,
    Zero2,
    Zero3,
    plan,
)

STEPS, SAMPLES = 4 if THOROUGH else 3, 64


def chain():
    """A Sequential of blocks, whose activations outweigh its parameters."""
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Linear(6, 16), *blocks, nn.Linear(16, 3)).to(tm.float64)


def deep():
    """A ModuleList of blocks, and parameters of 3 and 1 rows."""
    return Network(width=48, blocks=3 if THOROUGH else 2).to(tm.float64)


def adam(parameters):
    return tm.optim.Adam(parameters, lr=0.01)


def batch(part=slice(None)):
    rng = np.random.default_rng(1)
    return tm.tensor(rng.standard_normal((SAMPLES, 6))[part]), tm.tensor(rng.standard_normal((SAMPLES, 3))[part])


def trained(network, choice, part=slice(None), dtype=tm.float64):
    """The losses of some steps on this rank, and the peak in use and the reserved bytes of its pool."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        tm.manual_seed(RANK)  # the plan's step gives all ranks the parameters of rank 0
        model = network()
        optimizer = adam(list(model.parameters()))
        x, y = (each.to(dtype) for each in batch(part))
        step = TrainingStep(choice, model, optimizer, F.mse_loss)
        losses = [step(x, y).item() for _ in range(STEPS)]
        return losses, cpu.pool.peak_used, cpu.pool.peak_total
    finally:
        cpu.pool = before


def points(network, budgets, *others):
    """The plans for some budgets, each way to divide the model alone, and ``others``, by choice."""
    base = plan(network, batch(), F.mse_loss, adam, ranks=SIZE, times=Times("meta"), allow="identical")
    seen = {point.choice: point for point in [*base.search.tried, *map(base.search.point, others)]}
    for budget in np.linspace(base.search.smallest().reserved, base.plain.reserved, budgets).astype(int).tolist():
        found = base.within(budget)
        assert found.peak <= budget
        seen[found.choice] = found.point
    return seen


def check(network, seen):
    """Run what was planned. Returns the techniques of all."""
    alone = wanted(network)
    mine = slice(RANK * SAMPLES // SIZE, (RANK + 1) * SAMPLES // SIZE)
    for choice, point in seen.items():
        losses, peak, reserved = trained(network, choice, mine)
        (said,) = [each for each in point.by_rank if RANK in each.ranks]
        assert (peak, reserved) == (said.peak, said.reserved), (choice, peak, reserved, said)
        total = tm.tensor(losses, dtype=tm.float64)
        dist.all_reduce(total)
        np.testing.assert_allclose(total.numpy() / SIZE, alone, rtol=1e-10, err_msg=str(choice))
    return {name for choice in seen for name in choice.names}


def wanted(network):
    """The losses of one process with the whole batch, from rank 0's parameters."""
    tm.manual_seed(0)
    model = network()
    step = TrainingStep(Choice(), model, adam(list(model.parameters())), F.mse_loss)
    x, y = batch()
    return [step(x, y).item() for _ in range(STEPS)]


def single():
    return chain().to(tm.float32)


def approximate():
    """Half precision and compressed activations: the plan's bytes."""
    inputs = tuple(tm.zeros(SAMPLES, n) for n in (6, 3))
    base = plan(single, inputs, F.mse_loss, adam, ranks=SIZE, times=Times("meta"))
    mine = slice(RANK * SAMPLES // SIZE, (RANK + 1) * SAMPLES // SIZE)
    ways = [(technique, kind) for kind in (Replicated, Zero1, Zero2, Zero3) for technique in (Autocast("cpu"), Compression(8))]
    for technique, kind in ways if THOROUGH else [ways[0], ways[3], ways[4], ways[7]]:
        choice = Choice((technique, kind(SIZE)))
        losses, *bytes = trained(single, choice, mine, tm.float32)
        (said,) = [each for each in base.search.point(choice).by_rank if RANK in each.ranks]
        assert bytes == [said.peak, said.reserved], (choice, bytes, said)
        assert np.isfinite(losses).all()


approximate()
others = [Choice((each, kind(SIZE))) for each in (InBackward(), Accumulation(4)) for kind in (Zero2, Zero3)]
plans = [(chain, 4 if THOROUGH else 2), (deep, 2 if THOROUGH else 1, *others, Choice((Accumulation(4), Zero1(SIZE))))]
found = points(*plans[RANK]) if plans[RANK:] else None  # each on one rank: to plan takes longer than to train
dist.barrier()
chains, networks = MPI.COMM_WORLD.allgather(found)[: len(plans)]
names = check(chain, chains) | check(deep, networks)
WAYS = "accumulation data_parallel in_backward recompute zero_1 zero_2 zero_3"
assert names - {"inplace_activations"} == set(WAYS.split())
print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
