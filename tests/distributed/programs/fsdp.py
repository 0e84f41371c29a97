"""``fully_shard``: the numbers of one process, bit-equal runs, and the bytes of the prediction."""

import sys

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.blocks import classes
from tests.distributed.checks import STEPS, exact
from tests.distributed.programs.shared import BATCH, RANK, SIZE, batch, mine
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.nn import functional as F

WAYS = {
    "ZeRO 3": {},
    "ZeRO 2": {"reshard_after_forward": False},
    "root too": {"reshard_after_forward": True},
}


Block, Network = classes(tm)


def network(dtype=tm.float64, **sizes):
    tm.manual_seed(0)
    return Network(**sizes).to(dtype)


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def rows(p, size=SIZE, rank=RANK):
    """This rank's rows of a whole array."""
    chunk = -(-len(p) // size)
    return p[rank * chunk : (rank + 1) * chunk]


def check_shards(alone, model, **tolerance):
    for (name, p), (same, q) in zip(alone.named_parameters(), model.named_parameters(), strict=True):
        assert name == same
        np.testing.assert_allclose(q.detach().numpy(), rows(p.detach().numpy()), err_msg=name, **tolerance)


def trained(model, part, rule=tm.optim.Adam, steps=STEPS, clip=None):
    optimizer = rule(model.parameters(), lr=0.01)
    losses, norms = [], []
    for step in range(steps):
        x, y = batch(step, part)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), *clip).item())
        optimizer.step()
        losses.append(loss.detach())
    total = tm.stack(losses)
    if part != slice(None):
        dist.all_reduce(total, dist.ReduceOp.AVG)
    return [*total.tolist(), *norms]


def same_as_one_process():
    for rule in (tm.optim.Adam, tm.optim.SGD):
        alone = network()
        wanted = trained(alone, slice(None), rule)
        for name, options in WAYS.items():
            model, again = (sharded(network(), **options) for _ in range(2))
            found = trained(model, mine(), rule)
            np.testing.assert_allclose(found, wanted, rtol=1e-10, err_msg=name)
            check_shards(alone, model, rtol=1e-10, atol=1e-12)
            assert trained(again, mine(), rule) == found
            for p, q in zip(model.parameters(), again.parameters(), strict=True):
                np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def run(options, steps=2):
    """A few training steps in float32."""
    if not dist.is_initialized():
        dist.init_process_group()
    model = sharded(network(tm.float32, width=100, blocks=2), **options)
    optimizer = tm.optim.Adam(model.parameters())
    for _ in range(steps):
        F.mse_loss(model(tm.zeros(BATCH, 6)), tm.zeros(BATCH, 3)).backward()
        memory.mark("backward ends")
        optimizer.step()
        optimizer.zero_grad()
        memory.mark("step ends")


def bytes_are_those_of_the_prediction():
    for options in WAYS.values():
        said = exact(lambda: run(options))  # noqa: B023
        at = said.by_category("step ends")
        own = [rows(p.detach().numpy()).nbytes for p in network(tm.float32, width=100, blocks=2).parameters()]
        rounded = sum(-(-n // 512) * 512 for n in own)
        assert at == {memory.Category.PARAMETER: rounded, memory.Category.OPTIMIZER_STATE: 2 * rounded}


if __name__ == "__main__":
    for check in (same_as_one_process, bytes_are_those_of_the_prediction):
        check()
    print(f"rank {RANK} of {SIZE}: done")
    sys.stdout.flush()
