"""Pipelines: numbers of one process, micro-batches under way counted from the track, orders that end, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from tinygrad_mem.memory import Category

WIDTH = 128
WEIGHTS = 4 * (WIDTH * WIDTH + WIDTH)  # bytes of a stage


def made(schedule: Any, count: int, each: int) -> Any:
    """A schedule of so many micro-batches; each of this rank's stages keeps one array of a micro-batch for its backward."""
    rank, size = dist.get_rank(), dist.get_world_size()
    like = tm.empty(1, WIDTH)
    stages = [
        PipelineStage(nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH)), i, size * each, "cpu", input_args=like)
        for i in range(rank, size * each, size)
    ]
    return schedule(stages if schedule is ScheduleInterleaved1F1B else stages[0], count, lambda y, target: y.mean())


def train(schedule: Any, count: int, each: int = 1) -> None:
    dist.init_process_group()
    runs = made(schedule, count, each)
    x = tm.zeros(count, WIDTH)
    runs.step(*([x] if dist.get_rank() == 0 else []), target=x, return_outputs=False)
    memory.mark("the step ends")


def under_way(said: memory.Track) -> int:
    """The most micro-batches whose activations were alive at a moment."""
    return int(said.timeline().bytes(Category.ACTIVATION).max()) // (WIDTH * 4)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_micro_batches_under_way(count: int):
    """Stage i of p: min(p - i, m) in 1F1B, and m in GPipe."""
    size = 4
    for i in range(size):
        one = memory.predict(train, Schedule1F1B, count, world_size=size, rank=i)
        assert under_way(one) == min(size - i, count)
        assert under_way(memory.predict(train, ScheduleGPipe, count, world_size=size, rank=i)) == count


def test_micro_batches_under_way_through_several_stages():
    """Rank r of p with v stages: (v - 1) p + 2 (p - r - 1) + 1, as Megatron's."""
    size, each, count = 4, 2, 16
    for r in range(size):
        said = memory.predict(train, ScheduleInterleaved1F1B, count, each, world_size=size, rank=r)
        assert under_way(said) == (each - 1) * size + 2 * (size - r - 1) + 1


def test_nothing_is_kept_that_nobody_needs():
    """At the end only parameters and their gradients; one received input for each micro-batch under way, and what is sent."""
    size, count = 3, 6
    message = WIDTH * 4
    for i in range(size):
        said = memory.predict(train, Schedule1F1B, count, world_size=size, rank=i)
        end = said.by_category("the step ends")
        assert set(end) <= {Category.PARAMETER, Category.GRADIENT, Category.INPUT}
        assert said.timeline().bytes(Category.TEMPORARY).max() < 4 * message + WEIGHTS  # outputs are not among them
        most = int(said.timeline().bytes(Category.COMMUNICATION).max())
        kept = 0 if i == 0 else min(size - i, count)  # received inputs
        assert message * kept < most <= message * (kept + 2)


@contextmanager
def played(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def finishes(orders: list[list[Any]], size: int, each: int) -> bool:
    """True if no rank waits for ever, though a message is only sent when its receiver has asked for it."""
    last = size * each - 1
    begun: set[tuple] = set()  # receives, and sends
    programs = [_program(order, r, size, last, begun) for r, order in enumerate(orders)]
    waiting = {r: next(program, None) for r, program in enumerate(programs)}
    moved = True
    while moved:
        moved = False
        for r, program in enumerate(programs):
            while waiting[r] is not None and waiting[r] in begun:
                waiting[r], moved = next(program, None), True
    return all(each is None for each in waiting.values())


def _program(order: list[Any], rank: int, size: int, last: int, begun: set) -> Iterator[tuple]:
    """The sends and receives of other ranks that a rank waits for, as ``PipelineStage`` does."""
    sent: dict[tuple, tuple] = {}  # (stage, way) -> the message under way
    for kind, stage, chunk in order:
        index = stage * size + rank
        way, step = (0, 1) if kind == "F" else (1, -1)
        receives, sends = (index > 0, index < last) if kind == "F" else (index < last, index > 0)
        if receives:
            begun.add((index, way, chunk))
        if last == size - 1 and (receives or kind == "F"):
            yield from sent.values()
            sent.clear()
        if receives:
            yield ("sent", index, way, chunk)
        if sends:
            if (stage, way) in sent:
                yield sent[stage, way]
            sent[stage, way] = (index + step, way, chunk)
            begun.add(("sent", index + step, way, chunk))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_order_ends(size: int):
    for schedule, stages in ((ScheduleGPipe, (1,)), (Schedule1F1B, (1,)), (ScheduleInterleaved1F1B, (2, 3))):
        for each in stages:
            for count in (1, 2, size, 2 * size, 5 * size):
                orders = []
                for r in range(size):
                    with played(r, size):
                        orders.append(made(schedule, count, each).actions)
                for order in orders:
                    done = [tuple(action) for action in order]
                    assert sorted(done) == sorted((k, s, c) for k in "FB" for s in range(each) for c in range(count))
                assert finishes(orders, size, each), (schedule.__name__, each, count)
    if size > 2:  # and the check sees an order that waits for itself
        orders[0] = orders[0][::-1]
        assert not finishes(orders, size, each)


def test_a_stage_that_does_not_fit_is_refused():
    layer = nn.Linear(2, 2)
    with played(1, 4):
        with pytest.raises(ValueError, match="Stage index 4 is out of range of 4"):
            PipelineStage(layer, 4, 4, "cpu")
        with pytest.raises(ValueError, match="stage 2 of 4 belongs to rank 2 of the group, this is rank 1: the stages"):
            PipelineStage(layer, 2, 4, "cpu", input_args=tm.zeros(1, 2))
        with pytest.raises(ValueError, match="stage 1 receives its input: give input_args"):
            PipelineStage(layer, 1, 4, "cpu")
        with pytest.raises(NotImplementedError, match="dw_builder is not offered"):
            PipelineStage(layer, 1, 4, "cpu", input_args=tm.zeros(1, 2), dw_builder=lambda: None)
        with pytest.raises(ValueError, match="this rank is not a member of the process group"):
            PipelineStage(layer, 0, 1, "cpu", group=dist.new_group([0, 2]))


def test_a_schedule_that_does_not_fit_is_refused():
    with played(0, 2):
        stage = PipelineStage(nn.Linear(2, 2), 0, 2, "meta")
        early = PipelineStage(nn.Linear(2, 2), 0, 4, "meta")
        with pytest.raises(ValueError, match="one stage for each rank, found 4 stages on 2 ranks: use ScheduleInterleaved1F1B"):
            ScheduleGPipe(early, 2)
        with pytest.raises(ValueError, match="2 ranks with 1 stages each have 2 stages, found 4"):
            ScheduleInterleaved1F1B([early], 2)
        with pytest.raises(ValueError, match=r"multiple of the number of rounds \(2\), but got 5: use a multiple of 2"):
            ScheduleInterleaved1F1B([stage], 5)
        with pytest.raises(ValueError, match="n_microbatches is 1 or more, found 0"):
            Schedule1F1B(stage, 0)
        with pytest.raises(NotImplementedError, match="chunk and merge specs are not offered"):
            Schedule1F1B(stage, 2, None, (0,))
        runs = Schedule1F1B(stage, 2)
        with pytest.raises(ValueError, match="the rank of the first stage gives the batch, and no other rank; found 0"):
            runs.step()
        with pytest.raises(ValueError, match=r"a batch \[3, 2\] cannot be cut into 2 equal micro-batches along dimension 0"):
            runs.step(tm.zeros(3, 2, device="meta"))
    with played(1, 2):
        last = PipelineStage(nn.Linear(2, 2), 1, 2, "meta", input_args=tm.zeros(1, 2))
        with pytest.raises(ValueError, match="the rank of the last stage needs a loss_fn"):
            Schedule1F1B(last, 2).step()
