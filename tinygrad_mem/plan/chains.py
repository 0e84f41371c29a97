"""The chains of modules in a model, and the ways to recompute their stages."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..errors import ArgumentError
from ..nesting import leaves, mapped
from ..nn import Module, ModuleList, Sequential
from ..recompute import Schedule, Stage
from ..recompute.chain import Chain
from ..recompute.profile import profile
from .techniques import Recompute
from .times import OpCall, Times

MOST = 12  # most ways to run one chain, and most inside one bracket
WIDTH = 400  # most combinations of chains that are kept while they are combined


@dataclass(frozen=True)
class Way:
    """One way to run a chain.

    Attributes:
        items: see ``Recompute``.
        kept: bytes that are kept until its backward.
        peak: most bytes during its forward or backward, without what existed before.
        time: the time of the recomputation.
    """

    items: tuple[Any, ...]
    kept: int
    peak: int
    time: float


@dataclass(frozen=True)
class Found:
    """A chain in a model: its path, and the arguments of its call (of a ``ModuleList``: those of its first module)."""

    path: str
    module: Module
    inputs: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()
    version: int = 0  # of the first input

    @property
    def usable(self) -> bool:
        """True if it can run again: its first input is a tensor that was not written since (a ``Sequential`` has no others)."""
        x = self.inputs[0] if self.inputs else None
        alone = len(self.inputs) == 1 and not self.named
        return isinstance(x, Tensor) and x._version == self.version and (alone or isinstance(self.module, ModuleList))


class _FixedCall(Module):
    """A module with fixed arguments after the first; of several results it returns the first."""

    def __init__(self, block: Module, rest: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> None:
        super().__init__()
        self.block, self.rest, self.named = block, rest, dict(named)
        given = [each for each in leaves((rest, self.named)) if isinstance(each, Tensor)]
        for i, each in enumerate(given):
            self.register_buffer(f"given{i}", each)  # so that it is copied with the block

    def forward(self, x: Any) -> Any:
        found = self.block(x, *self.rest, **self.named)
        return found[0] if isinstance(found, tuple) else found


def watch(model: Module, seen: list[Found]) -> None:
    """Append each chain of ``model`` to ``seen`` when it runs.

    A ``Sequential`` is a chain unless it contains a longer one. The modules of a ``ModuleList`` are a chain too.
    """
    for path, module in _chains(model, ""):
        _record_calls(module[0] if isinstance(module, ModuleList) else module, Found(path, module), seen)


def _chains(module: Module, path: str) -> list[tuple[str, Any]]:
    if isinstance(module, ModuleList) and len(module) > 1 and _alike(module):
        return [(path, module)]
    inside = [each for name, child in module.named_children() for each in _chains(child, f"{path}.{name}" if path else name)]
    if isinstance(module, Sequential) and type(module).forward is Sequential.forward and len(module) > 1:
        longest = max((len(each) for _, each in inside), default=0)
        return inside if longest > len(module) else [(path, module)]
    return inside


def _alike(listed: ModuleList) -> bool:
    """True if the modules are one block several times, such as a transformer's."""
    kinds = {(type(child), tuple(tuple(p.shape) for p in child.parameters())) for child in listed}
    return len(kinds) == 1 and not isinstance(listed[0], Sequential) and any(True for _ in listed[0].children())


def _record_calls(module: Module, found: Found, seen: list[Found]) -> None:
    def called(_: Module, inputs: tuple, named: dict[str, Any]) -> None:
        version = inputs[0]._version if inputs and isinstance(inputs[0], Tensor) else 0
        seen.append(replace(found, inputs=_cut(inputs), named=tuple(_cut(named).items()), version=version))

    module.register_forward_pre_hook(called, with_kwargs=True)


def _cut(value: Any) -> Any:
    """``value``, its tensors without their graph."""
    return mapped(value, lambda x: x.detach() if isinstance(x, Tensor) else x)


def ways(found: Found, ops: Counter[tuple[str, OpCall]], times: Times, root: str) -> tuple[tuple[int, ...], list[Way]] | None:
    """(modules of each stage, ways to run the chain, the plain one first); ``None`` if a stage returns more than one tensor.

    Args:
        ops: the ops of a plain step, by the path of their module.
        root: the class of the model, with which paths begin.
    """
    chain: Any = found.module
    one_by_one = isinstance(chain, ModuleList)
    try:
        costs = profile(
            Sequential(_FixedCall(chain[0], found.inputs[1:], found.named)) if one_by_one else chain, found.inputs[0]
        )
    except ArgumentError:
        return None
    if one_by_one:
        return _one_by_one(found, costs.stages[0], ops, times, root)
    spent = _spent(found, costs.sizes, ops, times, root)
    stages = tuple(replace(s, forward=f, backward=b) for s, (f, b) in zip(costs.stages, spent, strict=True))
    return costs.sizes, _by_schedule(stages)


def _spent(found: Found, sizes: tuple[int, ...], ops: Counter, times: Times, root: str) -> list[tuple[float, float]]:
    """Seconds of each stage's forward, when it is recomputed, and backward."""
    modules = list(found.module._modules.items())
    first = {id(module): name for name, module in reversed(modules)}  # a repeated module has the path of its first name
    stages_of: dict[str, list[int]] = {}
    for k, (a, b) in enumerate(pairwise(np.cumsum((0, *sizes)).tolist())):
        for _, module in modules[a:b]:
            stages_of.setdefault(first[id(module)], []).append(k)
    prefix = f"{root}.{found.path}." if found.path else f"{root}."
    spent = np.zeros((len(sizes), 2))
    for (path, call), count in ops.items():
        name = path.removeprefix(prefix).partition(".")[0]
        if path.startswith(prefix) and name in stages_of:
            forward, backward = times.of(call)
            for k in stages_of[name]:
                spent[k] += np.multiply((forward + times.python[0], backward), count / len(stages_of[name]))
    return [(float(f), float(b)) for f, b in spent]


def _by_schedule(stages: tuple[Stage, ...]) -> list[Way]:
    """The fastest schedules for each peak, plain and with a bracket around the whole chain."""
    everything = Schedule(range(len(stages)), stages)
    chain = Chain(stages)
    front = chain.fronts[0, len(stages) - 1]
    picked = np.unique(np.linspace(0, len(front.memory) - 1, min(MOST, len(front.memory))).astype(int))
    schedules = [everything, *(Schedule(chain.items(0, len(stages) - 1, int(front.memory[i])), stages) for i in picked[::-1])]
    schedules += [Schedule((schedule.items,), stages) for schedule in schedules]
    found = [Way(s.items, _kept_bytes(s.items, stages), s.peak, s.time - everything.time) for s in schedules]
    return list({way.items: way for way in found}.values())


def _kept_bytes(items: tuple, stages: tuple[Stage, ...]) -> int:
    return sum(stages[_last_stage(item)].output if isinstance(item, tuple) else stages[item].saved for item in items)


def _last_stage(item: Any) -> int:
    return _last_stage(item[-1]) if isinstance(item, tuple) else item


def _one_by_one(found: Found, one: Stage, ops: Counter, times: Times, root: str) -> tuple[tuple[int, ...], list[Way]]:
    """Ways to recompute the first modules of a list, each by itself; the backward of the last ones comes first."""
    listed: Any = found.module
    n, sizes = len(listed), (1,) * len(listed)
    spent = _spent(found, sizes, ops, times, root)
    result = []
    for count in range(n + 1):
        kept = count * one.output + (n - count) * one.saved
        peak = max(kept, kept - one.saved + one.backward_peak)  # type: ignore[operator]
        items = (*((i,) for i in range(count)), *range(count, n))
        result.append(Way(items, kept, peak, sum(forward for forward, _ in spent[:count])))
    picked = np.unique(np.linspace(0, n, min(MOST, n + 1)).astype(int))
    return sizes, [result[i] for i in picked]


def combined(chains: list[tuple[str, tuple[int, ...], list[Way]]]) -> list[tuple[int, float, tuple[Recompute, ...]]]:
    """The best ways to run all chains of a step: (peak, time, recomputed parts), none beaten by another in both.

    The chains run one after another, and each adds to what the chains before it have kept.
    """
    fronts: list[tuple[int, int, float, tuple]] = [(0, 0, 0.0, ())]  # kept so far, peak so far, time, ways
    for path, sizes, found in chains:
        grown = [
            (kept + way.kept, max(peak, kept + way.peak), time + way.time, (*chosen, (path, sizes, way.items)))
            for kept, peak, time, chosen in fronts
            for way in found
        ]
        fronts = _undominated(grown)
    best = sorted(((peak, time, chosen) for _, peak, time, chosen in fronts), key=lambda each: (each[1], each[0]))
    result: list[tuple[int, float, tuple[Recompute, ...]]] = []
    for peak, time, chosen in best:
        if not result or peak < result[-1][0]:
            parts = tuple(
                Recompute(path, items, sizes) for path, sizes, items in chosen if any(isinstance(i, tuple) for i in items)
            )
            result.append((peak, time, parts))
    return result


def _undominated(entries: list[tuple[int, int, float, tuple]]) -> list[tuple[int, int, float, tuple]]:
    """The entries that no other entry beats in kept bytes, peak and time. Of very many, an even selection."""
    entries.sort(key=lambda e: (e[2], e[1], e[0]))
    stairs: list[tuple[int, int]] = []  # (kept, peak) of the chosen that no other chosen beats: the one rises, the other falls
    chosen = []
    for entry in entries:
        held, peak = entry[:2]
        at = bisect_right(stairs, held, key=lambda stair: stair[0])
        if at and stairs[at - 1][1] <= peak:
            continue
        chosen.append(entry)
        end = at
        while end < len(stairs) and stairs[end][1] >= peak:
            end += 1
        start = at - 1 if at and stairs[at - 1][0] == held else at
        stairs[start:end] = [(held, peak)]
    if len(chosen) > WIDTH:
        chosen = [chosen[i] for i in np.unique(np.linspace(0, len(chosen) - 1, WIDTH).astype(int))]
    return chosen
