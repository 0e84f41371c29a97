"""The cheapest schedule of a chain that fits into a budget, found by dynamic programming.

Source: Beaumont et al., *Optimal checkpointing for heterogeneous chains: how to train deep neural networks with limited
memory*, 2019 ("Rotor"): the best of all schedules that keep what they have stored until it is used. The paper divides memory
into slots; here each part of the chain has its exact front of memory against time, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError
from .schedule import Items, Schedule, Stage, sweep


class Front(NamedTuple):
    """The least time is ``time[i]`` with ``memory[i]`` up to ``memory[i + 1]``. Memory ascends, time descends."""

    memory: np.ndarray
    time: np.ndarray

    def at(self, memory: np.ndarray) -> np.ndarray:
        """The least times for these amounts of memory, each at least ``self.memory[0]``."""
        return self.time[np.searchsorted(self.memory, memory, "right") - 1]


class Chain:
    """The fronts of all parts of a chain.

    A part from stage ``s`` to ``t`` is a forward and its backward. There are two ways to run it. Either stage ``s`` is
    recorded, and the rest follows. Or the stages before some ``j`` run and keep only their input, and the rest follows; after
    its backward, the stages before ``j`` are run as a part of their own.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        if not stages:
            raise ArgumentError("chain: expected at least one stage")
        self.stages = tuple(stages)
        n = len(self.stages)
        self.forward = [0.0, *accumulate(stage.forward for stage in self.stages)]
        self.parameters = [0, *accumulate(stage.parameters for stage in self.stages)]
        self.sweeps = [list(accumulate((sweep_of(self.stages, s, i) for i in range(s, n)), max)) for s in range(n)]
        self.fronts: dict[tuple[int, int], Front] = {}
        for length in range(1, n + 1):
            for s in range(n - length + 1):
                self.fronts[s, s + length - 1] = self._front(s, s + length - 1)

    def _arriving(self, t: int) -> int:
        """Bytes of the gradient that waits while a part that ends with ``t`` runs; 0 for the last stage."""
        return self.stages[t].gradient if t < len(self.stages) - 1 else 0  # type: ignore[return-value]

    def _recorded(self, s: int, t: int) -> tuple[int, int, float]:
        """Stage ``s`` recorded: (least memory, memory that the rest of the part cannot use, time without the rest)."""
        stage = self.stages[s]
        behind = self.parameters[t + 1] - self.parameters[s + 1]
        least = max(self._arriving(t) + stage.recorded_peak, behind + stage.backward_peak)  # type: ignore[operator]
        return least, stage.saved, stage.forward + stage.backward

    def _split(self, s: int, j: int, t: int) -> tuple[int, int, int, float]:
        """Stages before ``j`` run and keep nothing: (least memory, memory that each of the two parts cannot use, time)."""
        least = self._arriving(t) + self.sweeps[s][j - 1 - s]
        behind = self.parameters[t + 1] - self.parameters[j]
        return least, self.stages[j - 1].output, behind, self.forward[j] - self.forward[s]

    def _front(self, s: int, t: int) -> Front:
        least, saved, time = self._recorded(s, t)
        if s == t:
            return Front(np.array([least], np.int64), np.array([time]))
        rest = self.fronts[s + 1, t]
        memories, times = [np.maximum(rest.memory + saved, least)], [rest.time + time]
        for j in range(s + 1, t + 1):
            least, output, behind, time = self._split(s, j, t)
            right, left = self.fronts[j, t], self.fronts[s, j - 1]
            a, b = right.memory + output, left.memory + behind
            memory = np.concatenate([a, b])
            memory = np.maximum(memory, max(least, a[0], b[0]))
            memories.append(memory)
            times.append(right.at(memory - output) + left.at(memory - behind) + time)
        return _pareto(np.concatenate(memories), np.concatenate(times))

    def items(self, s: int, t: int, budget: int) -> Items:
        """The cheapest way through a part within ``budget``."""
        found: list = []
        while s < t:
            j = self._choice(s, t, budget)
            if j is None:
                found.append(s)
                budget -= self.stages[s].saved
                s += 1
            else:
                _, output, behind, _ = self._split(s, j, t)
                found.append(self.items(s, j - 1, budget - behind))
                budget -= output
                s = j
        return (*found, s)

    def _choice(self, s: int, t: int, budget: int) -> int | None:
        """The stage at which the part is split; ``None`` if its first stage is recorded."""
        least, saved, time = self._recorded(s, t)
        best, choice = _time(self.fronts[s + 1, t], budget - saved) + time if budget >= least else np.inf, None
        for j in range(s + 1, t + 1):
            least, output, behind, time = self._split(s, j, t)
            if budget >= least:
                whole = time + _time(self.fronts[j, t], budget - output) + _time(self.fronts[s, j - 1], budget - behind)
                if whole < best:
                    best, choice = whole, j
        return choice


def sweep_of(stages: Sequence[Stage], s: int, i: int) -> int:
    """The memory that stage ``i`` needs in a run that starts at ``s`` and keeps nothing."""
    return sweep(stages[i : i + 1]) + (stages[i - 1].output if i > s else 0)


def _time(front: Front, budget: int) -> float:
    i = int(np.searchsorted(front.memory, budget, "right")) - 1
    return float(front.time[i]) if i >= 0 else np.inf


def _pareto(memory: np.ndarray, time: np.ndarray) -> Front:
    """The pairs that no other pair beats in both memory and time."""
    order = np.lexsort((time, memory))
    memory, time = memory[order], time[order]
    best = np.minimum.accumulate(time)
    keep = np.concatenate([[True], time[1:] < best[:-1]])
    return Front(memory[keep], time[keep])


def front(stages: Sequence[Stage]) -> list[tuple[int, float]]:
    """The best trade-offs of a chain: (peak, time) of each schedule that no other beats in both, least memory first."""
    found = Chain(stages).fronts[0, len(stages) - 1]
    return list(zip(found.memory.tolist(), found.time.tolist(), strict=True))


def chain(stages: Sequence[Stage], budget: int) -> Schedule:
    """The fastest schedule whose peak is at most ``budget``.

    The search takes a second or two for fifty stages, and grows with the cube of their number.

    Raises:
        ArgumentError: no schedule fits; the message says what the least one needs.
    """
    found = Chain(stages)
    least = int(found.fronts[0, len(stages) - 1].memory[0])
    if budget < least:
        raise ArgumentError(f"chain: no schedule of these {len(stages)} stages fits into {budget:,}: the least needs {least:,}")
    return Schedule(found.items(0, len(stages) - 1, budget), stages)
