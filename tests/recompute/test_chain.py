"""Schedules: what they cost by hand, by brute force over all of them, by closed forms, and by another package."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tinygrad_mem.errors import ArgumentError
from tinygrad_mem.recompute import Schedule, Stage, chain, front, revolve, sqrt, uniform
from tinygrad_mem.recompute.schedule import Items


def every(s: int, t: int) -> Iterator[Items]:
    """All schedules of the stages from s to t."""
    if s == t:
        yield (s,)
        return
    for rest in every(s + 1, t):
        yield (s, *rest)
    for j in range(s + 1, t + 1):
        for left in every(s, j - 1):
            for right in every(j, t):
                yield (left, *right)


@cache
def all_schedules(n: int) -> list[Items]:
    return list(every(0, n - 1))


SIZE = st.integers(0, 9)


@st.composite
def stage(draw: st.DrawFn) -> Stage:
    output, saved = draw(SIZE), draw(SIZE)
    return Stage(
        forward=draw(st.integers(1, 5)),
        backward=draw(st.integers(1, 9)),
        output=output,
        saved=saved + output,
        forward_peak=output + draw(SIZE),
        recorded_peak=saved + output + draw(SIZE),
        backward_peak=saved + output + draw(SIZE),
        gradient=draw(SIZE),
        parameters=draw(SIZE),
    )


@given(st.lists(stage(), min_size=1, max_size=6), st.integers(0, 120))
@settings(max_examples=examples(60))
def test_no_schedule_is_better(stages: list[Stage], budget: int):
    schedules = [Schedule(items, stages) for items in all_schedules(len(stages))]
    best: list[tuple[int, float]] = []
    for peak, time in sorted({(s.peak, s.time) for s in schedules}):
        if not best or time < best[-1][1]:
            best.append((peak, time))
    assert front(stages) == best
    fitting = [s.time for s in schedules if s.peak <= budget]
    if not fitting:
        with pytest.raises(ArgumentError, match=f"fits into {budget}: the least needs {best[0][0]}"):
            chain(stages, budget)
        return
    found = chain(stages, budget)
    assert found.peak <= budget
    assert found.time == min(fitting)


def test_a_peak_by_hand():
    stages = [Stage(1, 2, output=10, saved=30, forward_peak=15, recorded_peak=40, backward_peak=50, parameters=1)] * 3
    assert Schedule([0, 1, 2], stages).peak == 30 + 30 + 50  # the last stage's backward, with what the others saved
    # [0 1]'s input is the caller's; then 1 is recorded beside what 0 saved, and the gradient of 1 waits; 2's parameters stay
    assert Schedule([(0, 1), 2], stages).peak == max(10 + 15, 10 + 50, 1 + 30 + 50)
    assert Schedule([(0,), (1,), 2], stages).peak == max(10 + 10 + 50, 1 + 10 + 50, 2 + 50)
    plain = Schedule([0, 1, 2], stages)
    assert (plain.time, plain.forward_steps) == (9, 3)
    assert Schedule([((0,), 1), 2], stages).forward_steps == 3 + 2 + 1


def closed_form(length: int, slots: int) -> int:
    r = next(r for r in range(length + 1) if math.comb(slots + r, r) >= length)
    return r * length - math.comb(slots + r, r - 1) if r else 0


def slots_used(items: Items) -> int:
    """The most stage inputs that are kept at once, the chain's own included."""
    held, most = 0, 1
    for item in items:
        if isinstance(item, tuple):
            most = max(most, held + slots_used(item))
            held += 1
    return max(most, held)


def test_revolve_is_its_closed_form():
    assert revolve(10, 3).forward_steps - 10 == closed_form(10, 3) == 15
    assert revolve(1000, 10).forward_steps - 1000 == closed_form(1000, 10) == 3636
    assert revolve(1000, 62).forward_steps - 1000 == closed_form(1000, 62) == 1936
    for length in range(1, 40):
        for slots in range(1, 8):
            schedule = revolve(length, slots)
            assert schedule.forward_steps - length == closed_form(length, slots)
            assert slots_used(schedule.items) <= slots


@pytest.mark.parametrize(("length", "slots"), [(5, 2), (6, 3), (7, 2), (7, 3)])
def test_no_schedule_has_fewer_forward_steps_than_revolves(length: int, slots: int):
    def recorded_alone(items: Items) -> bool:
        """Revolve records one stage at a time: the last of each bracket."""
        return all(isinstance(item, tuple) and recorded_alone(item) for item in items[:-1])

    best = min(
        Schedule(items).forward_steps for items in all_schedules(length) if recorded_alone(items) and slots_used(items) <= slots
    )
    assert revolve(length, slots).forward_steps == best


def test_revolve_is_that_of_checkpoint_schedules():
    package = pytest.importorskip("checkpoint_schedules")
    for length, slots in ((1, 1), (10, 3), (23, 4), (60, 7), (200, 10)):
        theirs = package.Revolve(length, slots)
        steps = 0
        for action in theirs:
            if isinstance(action, package.Forward):
                steps += action.n1 - action.n0
            if isinstance(action, package.EndReverse):
                break
        assert revolve(length, slots).forward_steps == steps


def test_parts():
    assert str(sqrt(9)) == "[0-2] [3-5] 6-8"
    assert str(uniform(7, 3, last=True)) == "[0 1] [2 3] [4-6]"
    assert str(uniform(3, 1)) == "0-2"
    assert repr(sqrt(4)) == "Schedule([0 1] 2 3: 4 stages, 6 forward steps, time 14, peak 4)"
    for n in range(1, 200):
        assert sqrt(n).forward_steps <= 2 * n
        assert sqrt(n).peak <= 2 * math.sqrt(n) + 4


def test_a_chain_is_never_worse_than_equal_parts():
    stages = [Stage(1, 2, output=4 - i // 5, saved=20 - i, backward_peak=30 - i) for i in range(20)]
    for segments in range(1, 21):
        parts = Schedule(uniform(20, segments).items, stages)
        assert chain(stages, parts.peak).time <= parts.time
    assert chain(stages, 10**9).items == tuple(range(20))


def test_what_is_refused():
    for items in ([], [0, 2], [1, 0], [(0, 1), 1]):
        with pytest.raises(ArgumentError, match=r"expected stages 0, 1, 2, ..., each once and in order, found"):
            Schedule(items)
    with pytest.raises(ArgumentError, match="2 stages are scheduled, the costs of 1 were given"):
        Schedule([0, 1], [Stage()])
    with pytest.raises(ArgumentError, match="no negative cost, found output=-1"):
        Stage(output=-1)
    with pytest.raises(ArgumentError, match="at least one stage"):
        chain([], 3)
    with pytest.raises(ArgumentError, match="expected 1 to 3 segments, found 4"):
        uniform(3, 4)
    with pytest.raises(ArgumentError, match="at least 1 stage and 1 slot, found 3 and 0"):
        revolve(3, 0)
