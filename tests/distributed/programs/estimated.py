"""The steps that ``estimate --ranks`` predicts, run: each event of each rank is that of its prediction."""

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import exact
from tests.distributed.programs.shared import RANK, SIZE
from tinygrad_mem import nn
from tinygrad_mem.cli.estimate_ranks import ZERO, parallel
from tinygrad_mem.cli.networks import OPTIMIZERS
from tinygrad_mem.models.names import Named
from tinygrad_mem.models.precision import Step


def network():
    body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 3, 3), nn.Flatten())
    return nn.Sequential(body, nn.Linear(3 * 16, 9), nn.Tanh(), nn.Linear(9, 10))


NAMED = Named(network, (3, 8, 8), 10)


def steps(zero, precision, parts):
    if not dist.is_initialized():
        dist.init_process_group()
    tm.manual_seed(0)
    step = Step(precision, "cpu")
    model = step.prepare(NAMED.make())
    wrapped, optimizer, alone = parallel(model, OPTIMIZERS["adam"], step.options, zero)
    step.train(wrapped, optimizer, NAMED, 4, parts, alone)


if __name__ == "__main__":
    for zero in range(len(ZERO)):
        for precision, parts in (("float32", 1), ("float32", 2), ("half", 1)):
            exact(lambda zero=zero, precision=precision, parts=parts: steps(zero, precision, parts))
    print(f"rank {RANK} of {SIZE}: done", flush=True)
