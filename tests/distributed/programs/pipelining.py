"""Pipelines: the numbers of one process with the whole batch, and the bytes of the prediction."""

import sys
from datetime import timedelta

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, THOROUGH, equal, exact, same
from tinygrad_mem import nn
from tinygrad_mem.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from tinygrad_mem.nn import functional as F

dist.init_process_group(timeout=timedelta(seconds=20))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
BATCH, WIDTH = 8, 12
SCHEDULES = (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B)


class Layer(nn.Module):
    """Wide enough inside that MPI sends nothing before it is received."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def network(width=WIDTH, dtype=tm.float64):
    tm.manual_seed(0)
    return [Layer(width).to(dtype) for _ in range(2 * SIZE)]


def pipeline(schedule, count, width=WIDTH, dtype=tm.float64, rank=None):
    """This rank's stages, and the schedule."""
    layers = network(width, dtype)
    rank = dist.get_rank() if rank is None else rank
    each = 1 if schedule is ScheduleInterleaved1F1B else 2
    stages = len(layers) // each
    like = tm.empty(BATCH // count, width, dtype=dtype)
    mine = [
        PipelineStage(nn.Sequential(*layers[i * each : i * each + each]), i, stages, "cpu", input_args=like)
        for i in range(rank, stages, SIZE)
    ]
    if schedule is ScheduleInterleaved1F1B:
        return mine, schedule(mine, count, F.mse_loss)
    return mine, schedule(mine[0], count, F.mse_loss)


def batch(step, width=WIDTH):
    rng = np.random.default_rng(step)
    x, y = rng.standard_normal((2, BATCH, width))
    return tm.tensor(x), tm.tensor(y)


def alone(width=WIDTH, steps=STEPS):
    """The losses, and the parameters of each layer."""
    layers = network(width)
    model = nn.Sequential(*layers)
    optimizer = tm.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, y = batch(step, width)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), [[p.detach().numpy().copy() for p in layer.parameters()] for layer in layers]


def trained(schedule, count, width=WIDTH, steps=STEPS):
    """The losses on the last rank, and this rank's parameters by layer."""
    stages, runs = pipeline(schedule, count, width)
    optimizer = tm.optim.Adam([p for stage in stages for p in stage.submod.parameters()], lr=0.01)
    means = []
    for step in range(steps):
        x, y = batch(step, width)
        optimizer.zero_grad()
        losses: list = []
        output = runs.step(*([x] if RANK == 0 else []), target=y, losses=losses)
        optimizer.step()
        assert (output is not None) == (RANK == SIZE - 1)
        if RANK == SIZE - 1:
            assert output.shape == (BATCH, width)
            assert len(losses) == count
            means.append(np.mean([loss.item() for loss in losses]))
    layers = {}
    for stage in stages:
        each = len(stage.submod)
        for i, layer in enumerate(stage.submod):
            layers[stage.stage_index * each + i] = [p.detach().numpy().copy() for p in layer.parameters()]
    return np.array(means), layers


def same_as_one_process():
    losses, layers = alone()
    for schedule in SCHEDULES:
        for count in (1, 2, 4, 8):
            if schedule is ScheduleInterleaved1F1B and count % max(1, count // SIZE):
                continue
            found, mine = trained(schedule, count)
            if RANK == SIZE - 1:
                equal([found], [losses])
            for i, parameters in mine.items():
                equal(parameters, layers[i], f"{schedule.__name__} {count} layer {i}")
            if THOROUGH or count == 4:
                again, others = trained(schedule, count)
                same([found, *(p for i in mine for p in mine[i])], [again, *(p for i in mine for p in others[i])])


def large_messages():
    """Messages that MPI only sends when they are received: no two ranks wait for each other."""
    wide = 20_000
    for schedule in SCHEDULES:
        stages, runs = [], None
        count = 8
        layers = [nn.Linear(1, 1).double() for _ in range(2 * SIZE)]
        each = 1 if schedule is ScheduleInterleaved1F1B else 2
        like = tm.empty(BATCH // count, wide, 1, dtype=tm.float64)
        number = len(layers) // each
        stages = [
            PipelineStage(nn.Sequential(*layers[i * each : i * each + each]), i, number, "cpu", input_args=like)
            for i in range(RANK, number, SIZE)
        ]
        runs = schedule(stages if schedule is ScheduleInterleaved1F1B else stages[0], count, F.mse_loss)
        x = tm.ones(BATCH, wide, 1, dtype=tm.float64)
        for _ in range(2):
            runs.step(*([x] if RANK == 0 else []), target=x)


def several_outputs():
    """A stage that passes on two tensors and an index, none of whose gradients is lost."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x), self.b(x).t().contiguous().t(), (x[:, 0] > 0).long()

    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x, y, which):
            return self.a(x), y * 2, which

    class Last(nn.Module):
        def forward(self, x, y, which):
            return x * which.unsqueeze(1)  # nothing depends on y

    tm.manual_seed(3)
    parts = [First(), *(Later() for _ in range(SIZE - 2)), Last()]
    x, y = tm.randn(4, 3), tm.randn(4, 3)
    value = (x,)
    for part in parts:
        value = part(*value)
        value = value if isinstance(value, tuple) else (value,)
    F.mse_loss(value[0], y).backward()
    wanted = [None if p.grad is None else p.grad.numpy().copy() for p in parts[RANK].parameters()]
    parts[RANK].zero_grad()
    like = (tm.empty(2, 3), tm.empty(2, 3), tm.empty(2, dtype=tm.int64))
    stage = PipelineStage(parts[RANK], RANK, SIZE, "cpu", input_args=like)
    Schedule1F1B(stage, 2, F.mse_loss).step(*([x] if RANK == 0 else []), target=y)
    for p, grad in zip(parts[RANK].parameters(), wanted, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), 0 * p.numpy(force=True) if grad is None else grad, rtol=1e-5, atol=1e-6)


def all_exact():
    for schedule in SCHEDULES:
        for count in (2, 4):

            def run(schedule=schedule, count=count):
                if not dist.is_initialized():
                    dist.init_process_group()
                stages, runs = pipeline(schedule, count, 64, tm.float32)
                optimizer = tm.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=0.01, momentum=0.9)
                x = tm.zeros(BATCH, 64)
                for _ in range(2):
                    runs.step(*([x] if dist.get_rank() == 0 else []), target=x, return_outputs=False)
                    optimizer.step()
                    optimizer.zero_grad()

            exact(run)


if __name__ == "__main__":
    for check in (same_as_one_process, large_messages, several_outputs, all_exact):
        check()
    print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
    sys.exit(0)
