"""QLoRA over ranks, ``DistributedDataParallel`` and ``fully_shard``: one process's numbers, and the bytes of the prediction."""

import sys

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import exact
from tests.distributed.programs.fsdp import rows
from tests.distributed.programs.shared import RANK, SIZE, batch, mine, same
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.parallel import DistributedDataParallel
from tinygrad_mem.techniques import lora, quantize_frozen

WIDTH, THIN, BLOCKS = 256, 4, 3
KINDS = ("nf4", "int8")


def network(kind):
    tm.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Linear(6, WIDTH), *blocks, nn.Linear(WIDTH, 3))
    model = lora(quantize_frozen(model, kind), THIN)
    for name, p in model.named_parameters():
        if name.endswith("lora_B.weight"):
            nn.init.normal_(p, 0.0, 0.1)
    return model


def parallel(model):
    return DistributedDataParallel(model)


def sharded(model):
    for block in list(model)[1:-1]:
        fully_shard(block)
    return fully_shard(model)


def trained(model, part, steps=4):
    losses, update = [], tm.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for step in range(steps):
        x, y = batch(step, part, tm.float32)
        update.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        memory.mark("backward ends")
        update.step()
        memory.mark("step ends")
        losses.append(loss.detach())
    total = tm.stack(losses)
    if part != slice(None):
        dist.all_reduce(total, dist.ReduceOp.AVG)
    return total


def same_as_one_process():
    for kind in KINDS:
        wanted = trained(network(kind), slice(None)).numpy()
        model = network(kind)
        np.testing.assert_allclose(trained(parallel(model), mine()).numpy(), wanted, rtol=1e-5, err_msg=kind)
        same(model)
        np.testing.assert_allclose(trained(sharded(network(kind)), mine()).numpy(), wanted, rtol=1e-5, err_msg=kind)


def bytes_are_those_of_the_prediction():
    def run(how, kind):
        if not dist.is_initialized():
            dist.init_process_group()
        trained(how(network(kind)), mine(), 2)

    for kind in KINDS:
        for how, share in ((parallel, 1), (sharded, SIZE)):
            at = exact(lambda: run(how, kind)).by_category("step ends")  # noqa: B023
            own = [(p.requires_grad, rows(p.detach().numpy(), share, RANK % share)) for p in network(kind).parameters()]
            frozen, thin = (sum(-(-part.nbytes // 512) * 512 for is_thin, part in own if is_thin == each) for each in (0, 1))
            assert at[memory.Category.PARAMETER] == frozen + thin
            assert at[memory.Category.GRADIENT] == thin
            assert at[memory.Category.OPTIMIZER_STATE] == 2 * thin


if __name__ == "__main__":
    for check in (same_as_one_process, bytes_are_those_of_the_prediction):
        check()
    print(f"rank {RANK} of {SIZE}: done")
    sys.stdout.flush()
