"""Tensor and sequence parallel: the numbers of one process, and the bytes of the prediction."""

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, equal, exact, part, same
from tinygrad_mem import nn
from tinygrad_mem.distributed import regions
from tinygrad_mem.distributed.tensor import Replicate, Shard
from tinygrad_mem.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
    vocabulary_parallel_cross_entropy,
)
from tinygrad_mem.nn import functional as F

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUP = dist.init_device_mesh("cpu", (SIZE,)).get_group()
WIDTH, WORDS, TOKENS, BATCH = 16, 24, 8, 3


class Network(nn.Module):
    """Tokens (tokens, batch) or (batch, tokens): a table, a norm, two layers, a norm, logits."""

    def __init__(self, tied=False):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=3)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.last = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(self.last(x)).flatten(0, 1)


def network(dtype=tm.float64, tied=False):
    tm.manual_seed(0)
    return Network(tied).to(dtype)


def divided(mesh, axis, dtype=tm.float64, tied=False):
    """Over the ranks; with an axis, tokens between the layers lie over ranks along it."""
    tokens = Replicate() if axis is None else Shard(axis)
    plan = {
        "table": RowwiseParallel(output_layouts=tokens),
        "up": ColwiseParallel(input_layouts=tokens),
        "down": RowwiseParallel(output_layouts=tokens),
        "head": ColwiseParallel(input_layouts=tokens),
    }
    if axis is not None:
        plan |= {"norm": SequenceParallel(), "last": SequenceParallel()}
    return parallelize_module(network(dtype, tied), mesh, plan)


CUT = {"table.weight": 0, "up.weight": 0, "up.bias": 0, "down.weight": 1, "head.weight": 0}


def batch(step):
    rng = np.random.default_rng(step)
    tokens, targets = rng.integers(0, WORDS, (TOKENS, BATCH)), rng.integers(0, WORDS, TOKENS * BATCH)
    targets[2] = -100
    return tm.tensor(tokens), tm.tensor(targets)


def trained(model, loss, steps=STEPS):
    """The losses, and the parameters at the end."""
    optimizer = tm.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        value = loss(model(tokens), targets)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return [np.array(losses), *(p.detach().numpy().copy() for p in model.parameters())]


def over_ranks(logits, targets):
    return vocabulary_parallel_cross_entropy(logits, targets, GROUP)


def same_as_one_process():
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    for tied in (False, True):
        alone = trained(network(tied=tied), F.cross_entropy)
        names = [name for name, _ in network(tied=tied).named_parameters()]
        wanted = [alone[0], *(part(a, GROUP, CUT[n]) if n in CUT else a for n, a in zip(names, alone[1:], strict=True))]
        for axis in (None, 0) if tied else (None, 0, 1):
            if axis == 1 and BATCH % SIZE:  # the second axis of tokens as the one that lies over ranks
                continue
            found = trained(divided(mesh, axis, tied=tied), over_ranks)
            equal(found, wanted, f"tied {tied}, axis {axis}")
            same(found, trained(divided(mesh, axis, tied=tied), over_ranks))


def every_region():
    """A function of the whole, through each pair of regions: its value and its gradient are those of one process."""
    rng = np.random.default_rng(1)
    whole, factor = rng.standard_normal((2, 4, SIZE * 3, 5)), rng.standard_normal((2, 4, SIZE * 3, 5))
    axis = 2

    def tensor(array):
        return tm.tensor(array, requires_grad=True)

    for dim in (axis, axis - 4):
        x = tensor(whole)
        y = regions.gather_from(regions.scatter_to(x, GROUP, dim) ** 2, GROUP, dim)
        equal([y.detach().numpy()], [whole**2])
        (y * tm.tensor(factor)).sum().backward()
        equal([x.grad.numpy()], [2 * whole * factor])
    x = tensor(whole)
    y = regions.reduce_from(regions.copy_to(x, GROUP) ** 2 * (RANK + 1), GROUP)
    share = SIZE * (SIZE + 1) / 2
    equal([y.detach().numpy()], [whole**2 * share])
    (y * tm.tensor(factor)).sum().backward()
    equal([x.grad.numpy()], [2 * whole * factor * share])
    for dim in (0, 1, 2):
        cut = np.moveaxis(whole, axis, dim)
        weight = np.moveaxis(factor, axis, dim)
        x = tensor(part(cut, GROUP, dim))
        whole_again = regions.copy_to(regions.gather_from(x, GROUP, dim), GROUP)
        y = regions.reduce_scatter_to(whole_again**2 * (RANK + 1), GROUP, dim)
        equal([y.detach().numpy()], [part(cut**2, GROUP, dim) * share])
        (y * tm.tensor(part(weight, GROUP, dim))).sum().backward()
        equal([x.grad.numpy()], [2 * part(cut * weight, GROUP, dim) * share])


def other_layouts():
    """Whole outputs, whole inputs of a row layer, gathered arguments, a table by columns."""
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    x = np.random.default_rng(2).standard_normal((SIZE * 2, WIDTH))
    results = []
    for over in (False, True):
        tm.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)).double()
        table = nn.Embedding(WORDS, WIDTH).double()
        given = tm.tensor(x, requires_grad=True)
        mine = given
        if over:
            plan = {
                "": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
                "0": ColwiseParallel(output_layouts=Replicate()),
                "1": RowwiseParallel(input_layouts=Replicate()),
            }
            parallelize_module(model, mesh, plan)
            parallelize_module(table, mesh, ColwiseParallel(output_layouts=Replicate()))
            given = tm.tensor(part(x, GROUP, 0), requires_grad=True)
            mine = given
        y = model(mine) + table(tm.arange(len(x)))
        (y**2).sum().backward()
        grads = [p.grad.numpy() for p in model.parameters()] + [table.weight.grad.numpy()]
        results.append([y.detach().numpy(), given.grad.numpy(), *grads])
    alone, found = results
    cuts = (None, 0, 0, 0, 1, None, 1)
    equal(found, [a if cut is None else part(a, GROUP, cut) for a, cut in zip(alone, cuts, strict=True)])


def losses():
    """Each reduction, smoothing, ignored targets, and trailing dimensions, against the whole on one process."""
    rng = np.random.default_rng(3)
    scores, target = 5 * rng.standard_normal((6, SIZE * 4, 3)), rng.integers(0, SIZE * 4, (6, 3))
    target[1, 2] = -100
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            whole = tm.tensor(scores, requires_grad=True)
            wanted = F.cross_entropy(whole, tm.tensor(target), **options)
            (wanted**2).sum().backward()
            mine = tm.tensor(part(scores, GROUP, 1), requires_grad=True)
            found = vocabulary_parallel_cross_entropy(mine, tm.tensor(target), GROUP, **options)
            (found**2).sum().backward()
            equal([found.detach().numpy(), mine.grad.numpy()], [wanted.detach().numpy(), part(whole.grad.numpy(), GROUP, 1)])
    with pytest.raises(IndexError, match=rf"Target {SIZE * 4} is out of bounds"):
        vocabulary_parallel_cross_entropy(tm.zeros(2, 4), tm.tensor([0, SIZE * 4]), GROUP)


def all_exact():
    for axis in (None, 0):

        def run(axis=axis):
            if not dist.is_initialized():
                dist.init_process_group()
            mesh = dist.init_device_mesh("cpu", (SIZE,))
            model = divided(mesh, axis, tm.float32)
            group = mesh.get_group()
            optimizer = tm.optim.AdamW(model.parameters(), lr=0.01)
            for _ in range(2):
                tokens, targets = tm.zeros(TOKENS, BATCH, dtype=tm.int64), tm.zeros(TOKENS * BATCH, dtype=tm.int64)
                vocabulary_parallel_cross_entropy(model(tokens), targets, group).backward()
                optimizer.step()
                optimizer.zero_grad()

        exact(run)


if __name__ == "__main__":
    for check in (every_region, same_as_one_process, other_layouts, losses, all_exact):
        check()
    print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
