"""``plan``: the fastest training step that fits a budget of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, BudgetError, is_whole
from ..files import cache_folder
from ..memory import batch_size
from ..memory.predict import dry_run, predict
from ..memory.sizes import bytes_text, parse_bytes
from ..memory.stats import where
from ..nesting import leaves, mapped
from ..nn import Module
from ..optim.optimizer import Optimizer
from ..recompute.profile import copy_of, uninitialised
from .choice import Choice, Loss, TrainingStep
from .divided import Divided
from .runs import Point, Recipe
from .search import Search
from .techniques import KINDS, LEVELS, OVER_RANKS, Accumulation, Offload, Tiles, names, tileable
from .times import Times

__all__ = ("NAMES", "Plan", "largest", "plan")

T = TypeVar("T")
NAMES = tuple(kind.name for kind in KINDS)
"""The names of all techniques that can be allowed."""


@dataclass
class Plan:
    """The fastest training step that fits a budget.

    Attributes:
        budget: bytes; ``None`` if none was given: then the plan is the plain step.
        point: the techniques, and what the step needs with them.
        plain: what the step needs without techniques.
        device: the device for which the plan was made; ``measured`` says whether times were measured on it, or modelled.
    """

    budget: int | None
    point: Point
    search: Search | Divided
    device: str

    @property
    def choice(self) -> Choice:
        """The techniques."""
        return self.point.choice

    @property
    def peak(self) -> int:
        """Most bytes in use, from the construction of the model on."""
        return self.point.peak

    @property
    def plain(self) -> Point:
        """The step without techniques."""
        return self.search.plain

    @property
    def ranks(self) -> int:
        """The number of processes that train together."""
        return self.search.recipe.ranks

    @property
    def measured(self) -> bool:
        """True if times are seconds on the device; else they are modelled, and only their ratios have a meaning."""
        return self.search.times.measured

    def within(self, budget: int | str) -> Plan:
        """The plan of the same step for another budget. Runs that were made already are not repeated.

        Raises:
            BudgetError, ValueError: as :func:`plan`.
        """
        room = parse_bytes(budget)
        choice = self.search.cheapest(room)
        if choice is None:
            raise BudgetError(partial(_nothing_fits, self.search, room))
        return Plan(room, self.search.point(choice), self.search, self.device)

    @cached_property
    def front(self) -> list[Point]:
        """The best trade-offs of memory and time, the fastest first: no other choice is better in both."""
        return self.search.front()

    def apply(self, model: Module, optimizer: Optimizer, loss: Loss | None = None) -> TrainingStep:
        """The training step: ``step(inputs, targets)`` trains ``model`` and returns the loss.

        Args:
            model, optimizer: like those that the plan was made for. The model is changed: its chains run by the plan from now
            on.
            loss: a function of (output, targets); by default the plan's.

        Raises:
            ArgumentError: the plan was made for another model.
        """
        return TrainingStep(self.choice, model, optimizer, loss or self.search.recipe.loss)

    def table(self, width: int = 128) -> str:
        """The front as text: a table of at most ``width`` columns, with the plan's row marked.

        Raises:
            ModuleNotFoundError: rich is missing: ``pip install rich``.
        """
        from .show import table

        return table(self.front, self.point, self.plain, width)

    def plot(self, path: Path | str) -> None:
        """Draw the front: peak against time, with the budget as a line. The ending of ``path`` is .png, .svg or .pdf.

        Raises:
            ModuleNotFoundError: matplotlib is missing: ``pip install matplotlib``.
        """
        from .show import plot

        plot(self.front, self.point, self.plain, self.budget, path)

    def lines(self) -> str:
        """The lines of a program that trains by the plan, wherever it runs: on several ranks each of them has these."""
        kinds = sorted({type(technique).__name__ for technique in self.choice.techniques} | {"Choice", "TrainingStep"})
        lines = [f"from tinygrad_mem.plan import {', '.join(kinds)}", ""]
        if self.ranks > 1:
            lines = ["import tinygrad_mem.distributed as dist", *lines, "dist.init_process_group()"]
        lines += [f"choice = {self.choice!r}", "step = TrainingStep(choice, model, optimizer, loss)"]
        if self.ranks > 1:
            lines.append(f"# start it: python -m tinygrad_mem launch -n {self.ranks} train.py")
        return "\n".join(lines)

    def __str__(self) -> str:
        inside = "" if self.budget is None else f" of {bytes_text(self.budget)}"
        slower = self.point.time / self.plain.time
        said = (
            f"{self.choice}: peak {bytes_text(self.peak)}{inside}, {slower:.2f} of the plain step's time "
            f"(plain: {bytes_text(self.plain.peak)})"
        )
        return said if isinstance(self.search, Search) else f"{said}\n{self._of_ranks(self.search)}"

    def _of_ranks(self, search: Divided) -> str:
        """The needs of each different rank, and the ways that were tried."""
        lines = [*map(str, self.point.by_rank)]
        tried = Counter(str(technique) for point in search.tried for technique in point.choice.techniques[-1:])
        lines.append(f"tried: {', '.join(f'{count} with {name}' for name, count in tried.items())}")
        return "\n".join([*lines, *(f"not possible: {way}: {reason}" for way, reason in search.refused.items())])


def plan(
    model: Module | Callable[[], Module],
    input: Any,
    loss: Callable[..., Tensor],
    optimizer: Optimizer | Callable[[list], Optimizer],
    budget: int | str | None = None,
    device: Any = None,
    allow: str | Iterable[str] = "identical",
    *,
    ranks: int = 1,
    times: Times | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Plan:
    """Find the fastest training step within ``budget``: which techniques, and where.

    Only single ops are computed, to measure their times. Every choice of techniques runs on ``meta``, where bytes are exact;
    the choice that is returned has run there within the budget. Choices that keep the numbers bit for bit are searched first,
    others only if none of these fits.

    On several ranks, data parallel and each stage of ZeRO are searched together with the techniques of one rank. The plan is
    the fastest whose largest rank stays within the budget. The time of a step includes what a rank sends, at 25 GB/s.

    Args:
        model: a network, or a function that makes it. A network is not changed.
        input: a batch: ``(inputs, targets)``, or inputs alone; or a function that makes the pair. Inputs are a tensor, or a
            tuple or dict of the model's arguments; a batch of these is never split.
        loss: a function of (output, targets), or of the output alone if there are no targets. It returns a mean over samples.
        optimizer: an optimizer of the model's parameters, which is not changed; or a function of a list of parameters.
        budget: bytes, or text such as ``"8 GiB"``, for all that the pool reserves, as under ``memory.limit``. Without a budget
            the plan is the plain step; its ``front`` shows the choices.
        device: the device to plan for; by default the default device. If it is not here, its workspaces are predicted and times
            are modelled.
        allow: ``"identical"``; ``"close"``, also other rounding: splitting the batch, and tiles of tokens in modules that have
            an attribute ``tile``, ``None`` until now; ``"approximate"``, also half precision and compressed activations; or
            names of techniques (``plan.NAMES``).
        ranks: the number of processes that train together. The batch is that of all: each rank has its part, along dimension 0
            of each tensor. The budget is that of each rank. ``allow`` says how near the numbers are to data parallel's.
        times: measured times of ops, to share between plans.
        progress: called with a short text about each choice that is tried.

    Raises:
        BudgetError: of the choices that were tried, none fits; the message says what the closest one needs, and for what.
        ArgumentError: an unknown technique, something that is not a batch, or a batch that cannot be divided by the ranks.
        ValueError: ``budget`` is not a size.
    """
    if not is_whole(ranks):
        raise ArgumentError(f"plan: ranks is the number of processes, a whole number from 1 on, found {ranks!r}")
    if budget is not None:
        parse_bytes(budget)
    batch, loss = _makes_batch(input, loss)
    batch = batch if ranks == 1 else _part(batch, ranks)
    makes_model = (lambda: copy_of(model, where())) if isinstance(model, Module) else model
    recipe = Recipe(makes_model, batch, loss, _makes_optimizer(optimizer, model), ranks)
    chosen = where(device)
    allowed = _allowed(allow, _useless(recipe, chosen.like))
    if ranks > 1 and not any(kind.name in allowed for kind in OVER_RANKS):
        allowed += tuple(kind.name for kind in OVER_RANKS)
    times = times or Times(str(chosen), cache_folder())
    search = (Search if ranks == 1 else Divided)(recipe, times, chosen.like, allowed, progress)
    found = Plan(None, search.plain, search, str(chosen))
    try:
        return found if budget is None else found.within(budget)
    finally:
        times.save()


def largest(build: Callable[[int], T], most: int = 1 << 20) -> tuple[int, T]:
    """The largest ``n`` for which ``build(n)`` raises no ``BudgetError``, and its result: for the largest batch that fits.

    >>> n, found = largest(lambda n: plan(model, (tm.empty(n, 3, 32, 32), tm.zeros(n, dtype=tm.int64)), loss, sgd, "1 GiB"))

    Raises:
        BudgetError: not even 1 fits.
    """
    found = build(1)

    def fits(n: int) -> bool:
        nonlocal found
        try:
            found = build(n)
        except BudgetError:
            return False
        return True

    return batch_size.largest(fits, 1, most), found


def _allowed(allow: str | Iterable[str], useless: dict[str, str]) -> tuple[str, ...]:
    """The allowed names, without techniques that cannot save anything here."""
    if isinstance(allow, str) and allow in LEVELS:
        return tuple(name for name in names(allow) if name not in useless)
    chosen = (allow,) if isinstance(allow, str) else tuple(allow)
    for name in chosen:
        if name not in NAMES:
            raise ArgumentError(f"plan: allow is {', '.join(map(repr, LEVELS))}, or some of {', '.join(NAMES)}; found {name!r}")
        if name in useless:
            raise ArgumentError(f"plan: {name} is allowed, but {useless[name]}")
    return chosen


def _useless(recipe: Recipe, like: str) -> dict[str, str]:
    """Technique -> the reason why it cannot save anything here."""
    found = {kind.name: "there is one rank: ask for more with ranks=" for kind in OVER_RANKS if recipe.ranks == 1}
    found |= {} if like == "cuda" else {Offload.name: "on the cpu, the host's memory is the same memory"}
    with dry_run():
        inputs, _ = recipe.batch()
        if not tileable(recipe.model()) or not isinstance(inputs, Tensor) or inputs.ndim < 2:
            found[Tiles.name] = "no module of this network has an attribute tile, or its inputs have no axis of tokens"
    if not isinstance(inputs, Tensor):
        found[Accumulation.name] = (
            "inputs that are not one tensor cannot be split: it is not known which of them have a dimension of samples"
        )
    return found


def _makes_batch(input: Any, loss: Callable[..., Tensor]) -> tuple[Callable[[], tuple[Any, Tensor]], Loss]:
    """The functions that make the batch, and the loss of (output, targets)."""
    if callable(input) and not isinstance(input, Tensor):
        makes: Any = input
        return makes, loss
    inputs, *targets = input if isinstance(input, (tuple, list)) else (input,)
    if len(targets) > 1 or not all(isinstance(each, Tensor) for each in leaves((inputs, targets))):
        raise ArgumentTypeError(
            "plan: input is a tensor, (inputs, targets), or a function that makes these, and inputs are a tensor, or a tuple "
            f"or dict of tensors; found {input!r}"
        )

    def batch() -> tuple[Any, Tensor]:
        made = _rebuilt(inputs)
        return made, _rebuilt(targets[0]) if targets else next(leaves(made))

    return batch, loss if targets else lambda output, _: loss(output)


def _part(batch: Callable[[], tuple[Any, Tensor]], ranks: int) -> Callable[[], tuple[Any, Tensor]]:
    """The function that makes one rank's part of a batch."""
    with dry_run():
        inputs, targets = batch()
        shapes = [tuple(each.shape) for each in leaves((inputs, targets))]
        sizes = {shape[:1] for shape in shapes}
        if len(sizes) != 1 or () in sizes:
            raise ArgumentError(
                "plan: a batch is divided over ranks along dimension 0, which must be the samples in each of its tensors; "
                f"found {', '.join(str(list(shape)) for shape in shapes)}"
            )
        ((samples,),) = sizes
        if not samples or samples % ranks:
            raise ArgumentError(
                f"plan: a batch of {samples} samples cannot be divided into equal parts for {ranks} ranks: give a multiple"
            )
        like = mapped((inputs, targets), lambda x: _Like((samples // ranks, *x.shape[1:]), x.dtype, x.requires_grad))
    return lambda: _rebuilt(like)


@dataclass(frozen=True)
class _Like:
    """A tensor to make."""

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool


def _rebuilt(inputs: Any) -> Any:
    """The same nesting, of uninitialised tensors on the default device."""
    return mapped(inputs, lambda x: uninitialised(x, where()))


def _makes_optimizer(optimizer: Any, model: Any) -> Callable[[list], Optimizer]:
    if not isinstance(optimizer, Optimizer):
        return optimizer
    if not isinstance(model, Module):
        raise ArgumentTypeError(
            "plan: with a function that makes the model, give a function of its parameters as the optimizer"
        )
    number = {id(p): i for i, p in enumerate(model.parameters())}
    try:
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "params": [number[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
    except KeyError:
        raise ArgumentError("plan: the optimizer has a parameter that is not in the model") from None
    kind: Any = type(optimizer)
    return lambda parameters: kind([{**group, "params": [parameters[i] for i in group["params"]]} for group in groups])


def _nothing_fits(search: Search | Divided, budget: int) -> str:
    """The message of the error: what the closest choice needs, and which part of that is the largest."""
    closest = search.smallest()
    largest = max(closest.by_rank, key=lambda each: each.peak).ranks[0]
    track = predict(lambda: search.train(closest.choice), like=search.like, world_size=search.recipe.ranks, rank=largest)
    parts = sorted(track.by_category("peak").items(), key=lambda item: -item[1])
    shares = ", ".join(f"{category.value} {bytes_text(size)}" for category, size in parts)
    useless = _useless(search.recipe, search.like)
    left = [name for name in NAMES if name not in search.allow and name not in useless]
    more = f" Allow {', '.join(left)}; or use" if left else " Use"
    more += " more ranks," if search.recipe.ranks > 1 else ""
    return (
        f"plan: nothing that is allowed fits into {bytes_text(budget)}. The closest ({closest.choice}) needs "
        f"{bytes_text(closest.peak)} in use and {bytes_text(closest.reserved)} reserved: {shares}. Most of it is "
        f"{parts[0][0].value}.{more} a smaller batch, a lighter optimizer or a smaller model."
    )
