"""Plans for several ranks: the plan's bytes are those of every rank, real or predicted; what it says; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import ArgumentError, BudgetError, NotOfferedError, ShapeError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Choice, Plan, Replicated, Times, TrainingStep, Zero1, Zero2, Zero3, plan

WIDTH, LAYERS, SAMPLES = 64, 4, 32
MATRIX = 4 * WIDTH * WIDTH


def network() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS)])


def adam(parameters: Any) -> tm.optim.Optimizer:
    return tm.optim.Adam(parameters, lr=0.01)


def planned(ranks: int, budget: int | None = None, samples: int = SAMPLES, **more: Any) -> Plan:
    batch = tm.zeros(samples, WIDTH), tm.zeros(samples, WIDTH)
    return plan(network, batch, F.mse_loss, adam, budget, ranks=ranks, times=Times("meta"), **more)


def test_what_is_divided_by_formula():
    """Between steps there are the batch, parameters, Adam's two moments and the buckets of data parallel. On 4 ranks there is a
    quarter of what the stage divides."""
    points = {
        type(point.choice.techniques[-1]): point for point in planned(4).search.tried if len(point.choice.techniques) == 1
    }
    batch = 2 * SAMPLES // 4 * WIDTH * 4
    assert {kind: point.kept - batch for kind, point in points.items()} == {
        Replicated: LAYERS * MATRIX * 4,
        Zero1: LAYERS * MATRIX * 2 + LAYERS * MATRIX * 2 // 4,
        Zero2: LAYERS * MATRIX * 3 // 4,
        Zero3: LAYERS * MATRIX * 3 // 4,
    }


def test_what_is_sent_by_formula():
    """(N - 1) / N of the parameters for each time that they go round: twice in an all-reduce of gradients, once where they are
    sent from their owners, gathered, or reduced and scattered."""
    for ranks in (2, 4):
        once = LAYERS * MATRIX * (ranks - 1) // ranks
        points = planned(ranks).search.tried
        sent = {type(p.choice.techniques[-1]): p.sent for p in points if len(p.choice.techniques) == 1}
        assert sent == {Replicated: 2 * once, Zero1: 3 * once, Zero2: 2 * once, Zero3: 3 * once}


def test_the_plan_is_the_fastest_of_all_that_were_tried_and_fit():
    base = planned(4)
    assert base.choice == Choice((Replicated(4),))
    for budget in range(base.search.smallest().reserved, base.plain.reserved, 1 << 14):
        found = base.within(budget)
        assert found.peak <= budget
        fitting = [p.time for p in found.search.tried if p.reserved <= budget]
        assert found.point.time <= 1.001 * min(fitting)
    with pytest.raises(BudgetError, match=r"The closest \(.*on 4 ranks\) needs .* or use more ranks, a smaller batch"):
        base.within(base.search.smallest().peak - 1)


def test_stages_that_are_allowed_by_name():
    found = planned(2, allow=["zero_3", "recompute"])
    assert {type(p.choice.techniques[-1]) for p in found.search.tried} == {Zero3}
    with pytest.raises(ArgumentError, match="zero_1 is allowed, but there is one rank: ask for more with ranks="):
        planned(1, allow=["zero_1"])


def test_the_lines_that_it_says_are_the_plan():
    """They run on each rank, and have its peaks."""
    base = planned(4)
    for found in (base, base.within(base.search.smallest().reserved)):

        def run(found: Plan = found) -> None:
            model = network()
            names = {"model": model, "optimizer": adam(list(model.parameters())), "loss": F.mse_loss}
            x, y = tm.zeros(SAMPLES // 4, WIDTH), tm.zeros(SAMPLES // 4, WIDTH)
            exec(found.lines(), names)
            for _ in range(3):
                names["step"](x, y)  # type: ignore[operator]

        lines = found.lines().splitlines()
        assert lines[-1] == "# start it: python -m tinygrad_mem launch -n 4 train.py"
        for alike in memory.predict(run, world_size=4, ranks="all"):
            said = [each for each in found.point.by_rank if set(alike.ranks) <= set(each.ranks)]
            assert [(alike.track.peak, alike.reserved) for _ in said] == [(each.peak, each.reserved) for each in said] != []


def test_what_a_plan_says():
    found = planned(4).within(planned(4).search.smallest().reserved)
    first, *ranks, tried = str(found).splitlines()
    assert "on 4 ranks: peak" in first
    (each,) = found.point.by_rank
    assert ranks == [f"ranks 0-3: peak {each.peak:,} bytes, reserved {each.reserved:,}, sends {each.sent:,} in a step"]
    counts = [int(part.split(" with ")[0]) for part in tried.removeprefix("tried: ").split(", ")]
    assert sum(counts) == len(found.search.tried)
    assert "sent" in found.table()
    assert "sent" not in planned(1).table()
    assert "dist" not in planned(1).lines()


def test_several_tensors_are_divided_alike():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, a: tm.Tensor, b: tm.Tensor) -> tm.Tensor:
            assert len(a) == len(b) == 4
            return self.layer(a) + b

    batch = (tm.zeros(8, 8), tm.zeros(8, 8)), tm.zeros(8, 8)
    assert plan(Two(), batch, F.mse_loss, adam, ranks=2, times=Times("meta")).ranks == 2
    with pytest.raises(ArgumentError, match=r"must be the samples in each of its tensors; found \[8, 8\], \[4, 8\], \[8, 8\]"):
        plan(Two(), ((tm.zeros(8, 8), tm.zeros(4, 8)), batch[1]), F.mse_loss, adam, ranks=2)


def test_refusals():
    for ranks in (0, -1, 2.0, True, "2"):
        with pytest.raises(ArgumentError, match=f"ranks is the number of processes, a whole number from 1 on, found {ranks!r}"):
            planned(ranks)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a batch of 32 samples cannot be divided into equal parts for 5 ranks"):
        planned(5)
    with pytest.raises(ArgumentError, match="cannot be divided into equal parts for 2 ranks"):
        planned(2, samples=0)
    with pytest.raises(
        ArgumentError, match="a model can be divided over ranks in one way only, found ZeRO 1 on 2 ranks and data parallel on 2"
    ):
        Choice((Zero1(2), Replicated(2)))
    with pytest.raises(ArgumentError, match="zero_1 cannot be used with in_backward: no rank updates all parameters"):
        Choice((Zero1(2), planned(1).search.free[-1]))  # type: ignore[union-attr]


def test_another_number_of_ranks_is_refused():
    def run() -> None:
        tm.distributed.init_process_group()
        model = network()
        TrainingStep(Choice((Zero2(4),)), model, adam(model.parameters()), F.mse_loss)

    with pytest.raises(ArgumentError, match="it was made for 4 ranks, this program runs on 2: plan with that many ranks"):
        memory.predict(run, world_size=2)


def test_recompute_goes_with_what_is_divided():
    def deep() -> nn.Module:
        return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)])

    base = plan(deep, (tm.zeros(512, WIDTH), tm.zeros(512, WIDTH)), F.mse_loss, adam, ranks=2, times=Times("meta"))
    names = {p.choice.names for p in base.front}
    assert {"recompute", "zero_3"} in [set(each) for each in names]


def test_a_way_that_is_not_possible_is_left_out_and_said():
    def adafactor(parameters: Any) -> tm.optim.Optimizer:
        return tm.optim.Adafactor(parameters, lr=0.01)

    batch = tm.zeros(SAMPLES, WIDTH), tm.zeros(SAMPLES, WIDTH)
    found = plan(network, batch, F.mse_loss, adafactor, ranks=2, times=Times("meta"))
    assert {type(p.choice.techniques[-1]) for p in found.search.tried} == {Replicated, Zero1}
    said = str(found).splitlines()[-2:]
    for stage, line in zip((2, 3), said, strict=True):
        assert line.startswith(
            f"not possible: ZeRO {stage} on 2 ranks: Adafactor: 0.0.weight is divided over ranks, and the rule"
        )
    with pytest.raises(NotOfferedError, match="is divided over ranks"):
        plan(network, batch, F.mse_loss, adafactor, ranks=2, times=Times("meta"), allow=["zero_3"])
    with pytest.raises(ShapeError):  # of the user's own network
        plan(lambda: nn.Linear(3, 3), batch, F.mse_loss, adam, ranks=2, times=Times("meta"))
