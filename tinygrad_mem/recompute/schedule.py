"""Schedules: which stages of a chain are recomputed, how often, and what that costs.

A schedule lists the stages in order. Stages in brackets keep only their input until backward reaches them; then they run again,
by the brackets inside: ``[0 1 [2 3] 4] 5 6``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import ArgumentError

Items = tuple[Any, ...]  # numbers of stages, and tuples of the same


@dataclass(frozen=True)
class Stage:
    """The costs of one stage of a chain: bytes (or any unit of memory), and times in any unit.

    The input of a stage is counted at the stage before. Costs that are not given are those of a stage without temporaries.

    Attributes:
        forward, backward: times.
        output: bytes of its result.
        saved: bytes alive after a recorded forward, the result included.
        forward_peak: most bytes during a forward that keeps nothing, the result included.
        recorded_peak: most bytes during a recorded forward.
        backward_peak: most bytes during its backward: what was saved, and gradients.
        gradient: bytes of the gradient of its result, which is alive while the stage is recomputed.
        parameters: bytes of the gradients of its parameters, which stay.
    """

    forward: float = 1.0
    backward: float = 2.0
    output: int = 1
    saved: int = 1
    forward_peak: int | None = None
    recorded_peak: int | None = None
    backward_peak: int | None = None
    gradient: int | None = None
    parameters: int = 0

    def __post_init__(self) -> None:
        gradient = self.output if self.gradient is None else self.gradient
        for name, value in (
            ("gradient", gradient),
            ("forward_peak", self.output),
            ("recorded_peak", max(self.saved, self.output)),
            ("backward_peak", self.saved + gradient + self.parameters),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("forward", "backward", "output", "saved", "gradient", "parameters"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"Stage: expected no negative cost, found {name}={getattr(self, name)}")


class Schedule:
    """Stages, with brackets around those that are recomputed.

    Attributes:
        items: the numbers of the stages, in order; nested tuples of numbers are recomputed.
        stages: the costs of each stage; by default one unit each.
        peak: most memory, without what exists before the first forward; the chain's input belongs to the caller.
        time: the time of all forwards and backwards.
        forward_steps: how many forwards of stages run.
    """

    def __init__(self, items: Sequence[Any], stages: Sequence[Stage] | None = None) -> None:
        self.items = _tuples(items)
        numbers = list(_flat(self.items))
        if not numbers or numbers != list(range(len(numbers))):
            raise ArgumentError(f"Schedule: expected stages 0, 1, 2, ..., each once and in order, found {numbers}")
        self.stages = (Stage(),) * len(numbers) if stages is None else tuple(stages)
        if len(self.stages) != len(numbers):
            raise ArgumentError(f"Schedule: {len(numbers)} stages are scheduled, the costs of {len(self.stages)} were given")
        runs = _runs(self.items, 1)
        self.forward_steps = sum(runs)
        self.time = sum(n * stage.forward + stage.backward for n, stage in zip(runs, self.stages, strict=True))
        self.peak = _peak(self.items, self.stages, False)

    def __len__(self) -> int:
        return len(self.stages)

    def __str__(self) -> str:
        return _text(self.items)

    def __repr__(self) -> str:
        return (
            f"Schedule({_text(self.items)}: {len(self)} stages, {self.forward_steps} forward steps, "
            f"time {self.time:g}, peak {self.peak:,})"
        )


def _tuples(items: Any) -> Items:
    return tuple([item if isinstance(item, int) else _tuples(item) for item in items])


def _flat(items: Items) -> Iterator[int]:
    for item in items:
        if isinstance(item, tuple):
            yield from _flat(item)
        else:
            yield item


def _runs(items: Items, times: int) -> list[int]:
    """The number of times that each stage's forward runs."""
    found: list[int] = []
    for item in items:
        found += _runs(item, times + 1) if isinstance(item, tuple) else [times]
    return found


def _text(items: Items) -> str:
    """The schedule as text, such as ``[0 1] 2-5``."""
    parts: list[str] = []
    start = 0
    while start < len(items):
        stop = start + 1
        if isinstance(items[start], tuple):
            parts.append(f"[{_text(items[start])}]")
        else:
            while stop < len(items) and not isinstance(items[stop], tuple):
                stop += 1
            first, last = items[start], items[stop - 1]
            parts.append(f"{first}-{last}" if last > first + 1 else " ".join(map(str, range(first, last + 1))))
        start = stop
    return " ".join(parts)


def sweep(stages: Sequence[Stage]) -> int:
    """The peak while ``stages`` run one after another and keep nothing, the last result included."""
    before = [0, *(stage.output for stage in stages)]
    return max(held + stage.forward_peak for held, stage in zip(before, stages, strict=False))  # type: ignore[operator]


def _peak(items: Items, stages: Sequence[Stage], again: bool) -> int:
    """The peak from the forward of ``items`` to the end of their backward, without their input.

    Args:
        again: whether this is a recomputation, in which the gradient of the result exists already.
    """
    end = max(_flat(items[-1:]))
    arriving: Any = stages[end].gradient if again else 0
    peak: Any = None
    left = 0  # gradients of parameters of the stages behind
    for item in reversed(items):
        if isinstance(item, tuple):
            part = [stages[i] for i in _flat(item)]
            inner = left + _peak(item, stages, True)
            after = 0 if peak is None else part[-1].output + peak
            peak = max(arriving + sweep(part), after, inner)
            left += sum(stage.parameters for stage in part)
        else:
            stage = stages[item]
            after = 0 if peak is None else stage.saved + peak
            peak = max(arriving + stage.recorded_peak, after, left + stage.backward_peak)
            left += stage.parameters
    return peak


# --- schedules that look at numbers of stages only ---------------------------------------------------------------------------


def uniform(length: int, segments: int, *, last: bool = False) -> Schedule:
    """``length`` equal stages in ``segments`` parts of nearly equal length, each recomputed as a whole.

    Args:
        last: recompute the last part too; by default its backward follows at once, as in checkpoint_sequential.

    Raises:
        ArgumentError: fewer than one part, or more than stages.
    """
    if not 1 <= segments <= length:
        raise ArgumentError(f"uniform: expected 1 to {length} segments, found {segments}")
    cuts = [length * i // segments for i in range(segments + 1)]
    parts: list[Any] = [tuple(range(a, b)) for a, b in pairwise(cuts)]
    return Schedule(parts if last else [*parts[:-1], *parts[-1]])


def sqrt(length: int, *, last: bool = False) -> Schedule:
    """:func:`uniform` in about ``sqrt(length)`` parts: memory for ``2 sqrt(length)`` stages, and one more forward at most.

    Source: Chen et al., *Training deep nets with sublinear memory cost*, 2016.
    """
    return uniform(length, max(round(math.sqrt(length)), 1), last=last)


def revolve(length: int, slots: int) -> Schedule:
    """The fewest forward steps for ``length`` equal stages, with memory for ``slots`` inputs of stages, the first included.

    The stages run ``length + t`` times, ``t = r length - C(slots + r, r - 1)`` for the least r with ``C(slots + r, r) >=
    length``.

    Source: Griewank and Walther, *Algorithm 799: revolve*, 2000.

    Raises:
        ArgumentError: no stage, or no room.
    """
    if length < 1 or slots < 1:
        raise ArgumentError(f"revolve: expected at least 1 stage and 1 slot, found {length} and {slots}")
    return Schedule(_revolve(0, length, slots))


def _revolve(start: int, length: int, slots: int) -> Items:
    """Stages from ``start`` on: each part in brackets has all slots, the stages behind it have one less."""
    items: list[Any] = []
    if slots == 1:
        inner: Items = (start,)
        for i in range(start + 1, start + length):
            inner = (inner, i)
        return inner
    while length > 1 and slots > 1:
        repeats = 0
        while math.comb(slots + repeats, repeats) < length:
            repeats += 1
        first = min(math.comb(slots + repeats - 1, slots), length - math.comb(slots + repeats - 2, slots - 1))
        items.append(_revolve(start, first, slots))
        start, length, slots = start + first, length - first, slots - 1
    return (*items, *(_revolve(start, length, 1) if slots == 1 else (start,)))
