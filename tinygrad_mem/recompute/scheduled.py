"""A Sequential that runs by a schedule."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..autograd.graph import saved_tensors_hooks
from ..errors import ArgumentError
from ..nn import Module, Sequential
from ..scope import local
from .frame import Frame
from .schedule import Items, Schedule


class Scheduled(Sequential):
    """The modules of a Sequential (the same objects, under the same names), run by a schedule.

    Attributes:
        schedule: which stages are recomputed.
        sizes: the number of modules in each stage.
    """

    schedule: Schedule
    sizes: tuple[int, ...]

    def forward(self, input: Any, *rest: Any, **named: Any) -> Any:
        """Run the modules one after another, each with ``rest`` and ``named`` too, as a model calls its blocks."""
        return _run(self._stages(), self.schedule.items, input, *rest, **named)

    def _stages(self) -> list[list[Module]]:
        modules = iter(self)
        return [[next(modules) for _ in range(size)] for size in self.sizes]

    def extra_repr(self) -> str:
        return str(self.schedule)


def apply(sequential: Sequential, schedule: Schedule, sizes: Sequence[int] | None = None) -> Scheduled:
    """A module with the results of ``sequential``, bit for bit, that recomputes by ``schedule``.

    It shares the modules of ``sequential``, and has the same parameters, buffers, names and state dict.

    Args:
        schedule: for the stages of the Sequential; it may have one stage more, for the loss behind it.
        sizes: the number of modules in each stage (:attr:`Profile.sizes`); one each by default.

    Raises:
        ArgumentError: the number of stages does not fit the modules.

    >>> costs = recompute.profile(model, x, loss)
    >>> model = recompute.apply(model, recompute.chain(costs.stages, budget), costs.sizes)
    """
    sizes = (1,) * len(sequential) if sizes is None else tuple(sizes)
    if len(schedule) == len(sizes) + 1 and schedule.items[-1] == len(sizes):
        schedule = Schedule(schedule.items[:-1], schedule.stages[:-1])
    if len(sizes) != len(schedule) or sum(sizes) != len(sequential):
        raise ArgumentError(
            f"apply: the schedule has {len(schedule)} stages, the Sequential {len(sequential)} modules in {len(sizes)} stages"
        )
    scheduled = Scheduled(OrderedDict(sequential._modules))  # type: ignore[arg-type]  # a module may be there twice
    scheduled.train(sequential.training)
    scheduled.schedule, scheduled.sizes = schedule, sizes
    scheduled._known_as = sequential._root_name()
    return scheduled


_END = object()


def _steps(items: Items) -> list:
    """``items`` flattened: a bracket becomes its tuple, its items and an end mark."""
    steps: list = []
    for item in items:
        steps += [item, *_steps(item), _END] if isinstance(item, tuple) else [item]
    return steps


def _run(stages: list[list[Module]], items: Items, x: Any, *rest: Any, **named: Any) -> Any:
    """Run ``items``, each bracket as a checkpoint.

    A loop, not nested calls: a call would hold the input of its bracket while it runs, which an outer bracket does not keep.
    """
    if not local.grad_enabled:
        items = ()
        for stage in stages:
            for module in stage:
                x = module(x, *rest, **named)
    before, frames = (local.saved_hooks, local.draws), []
    try:
        for step in _steps(items):
            if step is _END:
                frames.pop().ended = True
                local.saved_hooks = local.saved_hooks[:-1]
                local.draws.__exit__()
            elif isinstance(step, tuple):
                frame = Frame(partial(_run, stages, step), (x, *rest), named)
                frames.append(frame)
                frame.draws.__enter__()
                saved_tensors_hooks(frame.note, frame.hand_out).__enter__()
                del frame
            else:
                for module in stages[step]:
                    x = module(x, *rest, **named)
    finally:
        for frame in frames:  # of an error
            frame.ended = True
        local.saved_hooks, local.draws = before
    return x
