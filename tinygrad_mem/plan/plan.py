"""``plan``: a budget in bytes, and the cheapest training step that stays inside it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, BudgetError
from ..memory.predict import dry_run, predict
from ..memory.sizes import bytes_text, parse_bytes
from ..memory.stats import where
from ..nn import Module, Parameter
from ..optim.optimizer import Optimizer
from .choice import Choice, Loss, TrainingStep
from .runs import Point, Recipe
from .search import Search
from .techniques import KINDS, LEVELS, Accumulation, Offload, names
from .times import Times

T = TypeVar("T")
NAMES = tuple(kind.name for kind in KINDS)
"""Of all techniques that can be allowed."""


@dataclass
class Plan:
    """The cheapest training step that fits a budget.

    Attributes:
        budget: bytes; ``None`` where none was given, and the plan is the plain step.
        point: the techniques, and what the step needs with them.
        plain: what it needs without any.
        device: where it is to run; ``measured`` says whether times are of this device, or modelled.
    """

    budget: int | None
    point: Point
    search: Search
    device: str

    @property
    def choice(self) -> Choice:
        """The techniques."""
        return self.point.choice

    @property
    def peak(self) -> int:
        """Most bytes in use in a step, and while all of it is made."""
        return self.point.peak

    @property
    def plain(self) -> Point:
        """The step without techniques."""
        return self.search.plain

    @property
    def measured(self) -> bool:
        """Whether times are seconds of the device; else they are modelled, and only their ratios mean something."""
        return self.search.times.measured

    def within(self, budget: int | str) -> Plan:
        """The plan of the same step for another budget; what has been tried is not tried again.

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
        """Memory against time: choices that no other beats in both, the fastest first. The plan's own is among the runs."""
        return self.search.front()

    def apply(self, model: Module, optimizer: Optimizer, loss: Loss | None = None) -> TrainingStep:
        """The training step: ``step(inputs, targets)`` trains ``model`` and returns the loss.

        Args:
            model, optimizer: such as the plan was made for; the model's chains run by the plan from now on.
            loss: of (output, targets); what the plan was made with, unless given.

        Raises:
            ArgumentError: the model is another one.
        """
        return TrainingStep(self.choice, model, optimizer, loss or self.search.recipe.loss)

    def table(self) -> str:
        """The front, as a table to print, the plan's own row marked.

        Raises:
            ModuleNotFoundError: rich is missing: ``pip install rich``.
        """
        from .show import table

        return table(self)

    def plot(self, path: Path | str) -> None:
        """The front as a picture (png, svg or pdf by the ending of ``path``): peak against time, the budget as a line.

        Raises:
            ModuleNotFoundError: matplotlib is missing: ``pip install matplotlib``.
        """
        from .show import plot

        plot(self, path)

    def __str__(self) -> str:
        inside = "" if self.budget is None else f" of {bytes_text(self.budget)}"
        slower = self.point.time / self.plain.time
        return (
            f"{self.choice}: peak {bytes_text(self.peak)}{inside}, {slower:.2f} of the plain step's time "
            f"(plain: {bytes_text(self.plain.peak)})"
        )


def plan(
    model: Module | Callable[[], Module],
    input: Any,
    loss: Callable[..., Tensor],
    optimizer: Optimizer | Callable[[list], Optimizer],
    budget: int | str | None = None,
    device: Any = None,
    allow: str | Iterable[str] = "identical",
    *,
    times: Times | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Plan:
    """The cheapest training step within ``budget``: which techniques, and where.

    Nothing is computed and no memory is taken but for the times of single ops: every choice runs on ``meta``, where bytes are
    exact, and the one that is returned has run there inside the budget. Choices that leave the numbers bit for bit are searched
    first; others only where none of these fits.

    Args:
        model: a network, or a function that makes it. A network is looked at and left as it is.
        input: a batch: ``(inputs, targets)``, or inputs alone; or a function that makes the pair. Inputs are a tensor, or a
            tuple or dict of what the model is called with: such a batch is not split.
        loss: of (output, targets), or of the output alone where there are no targets; one number, a mean over samples.
        optimizer: an optimizer of the model's parameters, looked at and left as it is; or a function of a list of parameters.
        budget: bytes, or text such as ``"8 GiB"``, for all that the pool takes, as under ``memory.limit``; without, the plan
            is the plain step, and its ``front`` says what there is to choose from.
        device: where it is to run, the default device unless given. What is not here is predicted: workspaces as its kernels
            want them, times modelled.
        allow: ``"identical"``; ``"close"``, also what differs by rounding: splitting the batch; ``"approximate"``, also half
            precision and compressed activations; or names of techniques (``plan.NAMES``).
        times: measured times of ops, to share between plans.
        tell: called with a few words about each choice that is tried.

    Raises:
        BudgetError: nothing that is allowed fits; the message says what the closest needs, and for what.
        ArgumentError: a technique that is not known; a batch that is none. ValueError: ``budget`` is no size.
    """
    if budget is not None:
        parse_bytes(budget)
    recipe = Recipe(_makes_model(model), *_makes_batch(input, loss), _makes_optimizer(optimizer, model))
    chosen = where(device)
    allowed = _allowed(allow, _useless(recipe, chosen.like))
    times = times or Times(str(chosen), cache_folder())
    search = Search(recipe, times, chosen.like, allowed, tell)
    found = Plan(None, search.plain, search, str(chosen))
    try:
        return found if budget is None else found.within(budget)
    finally:
        times.save()


def cache_folder() -> Path | None:
    """The folder of measured times: ``TINYGRAD_MEM_CACHE``, else the user's cache folder; ``None`` if that is set empty."""
    named = os.environ.get("TINYGRAD_MEM_CACHE")
    if named is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygrad_mem"


def largest(build: Callable[[int], T], most: int = 1 << 20) -> tuple[int, T]:
    """The largest ``n`` for which ``build(n)`` raises no ``BudgetError``, and what it returned: the question asked backwards.

    >>> n, found = largest(lambda n: plan(model, (tm.empty(n, 3, 32, 32), tm.zeros(n, dtype=tm.int64)), loss, sgd, "1 GiB"))

    Raises:
        BudgetError: not even 1 fits.
    """
    best, found = 1, build(1)
    step = 1
    while best + step <= most and (tried := _tried(build, best + step)) is not None:
        best, found = best + step, tried
        step *= 2
    while step:
        if best + step <= most and (tried := _tried(build, best + step)) is not None:
            best, found = best + step, tried
        step //= 2
    return best, found


def _tried(build: Callable[[int], T], n: int) -> T | None:
    try:
        return build(n)
    except BudgetError:
        return None


def _allowed(allow: str | Iterable[str], useless: dict[str, str]) -> tuple[str, ...]:
    """The names that are meant, less those that are of no use here.

    Raises:
        ArgumentError: one is not known; or it is of no use, and was named.
    """
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
    """Techniques that cannot save anything here, and why."""
    found = {} if like == "cuda" else {Offload.name: "on the cpu, the host's memory is the same memory"}
    with dry_run():
        inputs, _ = recipe.batch()
    if not isinstance(inputs, Tensor):
        found[Accumulation.name] = "inputs that are not one tensor cannot be split: who knows which of them go by samples?"
    return found


def _makes_model(model: Module | Callable[[], Module]) -> Callable[[], Module]:
    if not isinstance(model, Module):
        return model

    def twin() -> Module:
        memo: dict[int, Any] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            like = _twin(tensor)
            memo[id(tensor)] = Parameter(like, tensor.requires_grad) if isinstance(tensor, Parameter) else like
        return copy.deepcopy(model, memo)

    return twin


def _makes_batch(input: Any, loss: Callable[..., Tensor]) -> tuple[Callable[[], tuple[Any, Tensor]], Loss]:
    """The functions that make the batch, and the loss of (output, targets)."""
    if callable(input) and not isinstance(input, Tensor):
        makes: Any = input
        return makes, loss
    inputs, *targets = input if isinstance(input, (tuple, list)) else (input,)
    if len(targets) > 1 or not all(isinstance(each, Tensor) for each in (*_tensors(inputs), *targets)):
        raise ArgumentTypeError(
            "plan: input is a tensor, (inputs, targets), or a function that makes these, and inputs are a tensor, or a tuple "
            f"or dict of tensors; found {input!r}"
        )

    def batch() -> tuple[Any, Tensor]:
        made = _rebuilt(inputs)
        return made, _twin(targets[0]) if targets else _tensors(made)[0]

    return batch, loss if targets else lambda output, _: loss(output)


def _tensors(inputs: Any) -> list[Any]:
    """Those in a batch's inputs, or what is there instead."""
    each = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    return list(each)


def _rebuilt(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: _twin(x) for name, x in inputs.items()}
    return tuple(map(_twin, inputs)) if isinstance(inputs, tuple) else _twin(inputs)


def _twin(x: Tensor) -> Tensor:
    """Another tensor of its shape and dtype, on the default device, of no particular values."""
    device = where()
    return Tensor._wrap(device.empty(tuple(x.shape), x.dtype), device)


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
        raise ArgumentError("plan: the optimizer has a parameter that the model has not") from None
    kind: Any = type(optimizer)
    return lambda parameters: kind([{**group, "params": [parameters[i] for i in group["params"]]} for group in groups])


def _nothing_fits(search: Search, budget: int) -> str:
    """The error that says what the closest choice needs, and which part is the floor."""
    closest = search.smallest()
    track = predict(lambda: search.train(closest.choice), like=search.like)
    parts = sorted(track.by_category("peak").items(), key=lambda item: -item[1])
    shares = ", ".join(f"{category.value} {bytes_text(size)}" for category, size in parts)
    useless = _useless(search.recipe, search.like)
    left = [name for name in NAMES if name not in search.allow and name not in useless]
    more = f" Allow {', '.join(left)}, or" if left else " Use"
    return (
        f"plan: nothing that is allowed fits into {bytes_text(budget)}. The closest ({closest.choice}) needs "
        f"{bytes_text(closest.peak)} in use and {bytes_text(closest.reserved)} from the machine: {shares}. The floor is "
        f"{parts[0][0].value}.{more} a smaller batch, a lighter optimizer or a smaller model."
    )
