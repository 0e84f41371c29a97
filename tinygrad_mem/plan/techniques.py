"""The application of each technique to a training step, by the planner. The catalogue says what a technique costs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, ClassVar

from ..amp import GradScaler, autocast
from ..distributed import broadcast, get_world_size
from ..distributed.optim import ZeroRedundancyOptimizer
from ..distributed.zero import divided
from ..dtypes import float16
from ..errors import ArgumentError
from ..memory.stats import empty_cache
from ..nn import Module, ModuleList, Sequential
from ..optim.optimizer import Optimizer
from ..recompute import Schedule, checkpoint_wrapper, scheduled
from ..techniques import TABLE, catalogue, checkpoints_on_cpu, compressed, optimizer_in_backward, save_on_cpu
from ..techniques.catalogue import LEVELS

__all__ = (
    "LEVELS", "Accumulation", "Applied", "Autocast", "Compression", "InBackward", "InPlace", "Offload", "Recompute",
    "Replicated", "Tiles", "Zero1", "Zero2", "Zero3",
)  # fmt: skip


class Prepared:
    """A model and an optimizer that techniques prepare for training.

    Attributes:
        parts: the number of parts that a batch is split into.
        scaler: scales the loss.
        in_backward: what updates parameters in backward, or None.
    """

    def __init__(self, model: Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.parts = 1
        self.scaler = GradScaler(enabled=False)
        self.in_backward: Any = None


class Applied:
    """A technique as it is applied to one training step. A subclass overrides what it needs; the base changes nothing.

    Attributes:
        rows: its rows in the catalogue (``techniques.TABLE``); ``name`` is the first.
        said: the words for it; names in braces are those of its fields.
        numbers: how near the numbers are to those of a plain step: the level of its worst row.
    """

    rows: ClassVar[tuple[str, ...]]
    said: ClassVar[str]
    name: ClassVar[str]
    numbers: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = cls.rows[0]
        cls.numbers = max((TABLE[row].numbers for row in cls.rows), key=LEVELS.index)

    def prepare(self, step: Prepared) -> None:
        """Change the step before the first run."""

    def region(self) -> AbstractContextManager[Any]:
        """Return the context in which forward and loss run; it is entered in each step."""
        return nullcontext()

    def __str__(self) -> str:
        return self.said.format(**vars(self))


@dataclass(frozen=True)
class Recompute(Applied):
    """Parts of one chain of modules are recomputed.

    Attributes:
        path: the path of the ``Sequential`` or ``ModuleList`` in the model. Modules of a ``ModuleList`` are recomputed one by
        one.
        items: its stages, with tuples around those that are recomputed; see ``recompute.Schedule``.
        sizes: the number of modules in each stage.
    """

    path: str
    items: tuple[Any, ...]
    sizes: tuple[int, ...]
    rows = ("recompute",)

    def prepare(self, step: Prepared) -> None:
        """Run the chain by its schedule from now on. It stays the same object, with the same modules."""
        where = self.path or "itself"
        chain: Any = _part(step.model, self.path, f"{sum(self.sizes)} modules in {where!r}")
        if not isinstance(chain, (Sequential, ModuleList)) or len(chain) != sum(self.sizes):
            raise _other_model(f"{sum(self.sizes)} modules in {where!r}", f"a {type(chain).__name__}")
        if isinstance(chain, ModuleList):
            for module, item in zip(chain, self.items, strict=True):
                if isinstance(item, tuple):
                    checkpoint_wrapper(module)
        else:
            chain.schedule, chain.sizes = Schedule(self.items), self.sizes  # type: ignore[attr-defined]
            chain._known_as = chain._root_name()
            chain.__class__ = scheduled.Scheduled

    def __str__(self) -> str:
        return f"{self.path or 'model'}: {Schedule(self.items)}"


@dataclass(frozen=True)
class InPlace(Applied):
    """Activations overwrite inputs that nothing else needs: one array of this size less while they run.

    Attributes:
        paths: the paths of the modules that do so.
    """

    paths: tuple[str, ...]
    rows = ("inplace_activations",)

    def prepare(self, step: Prepared) -> None:
        _set_on(step.model, self.paths, "inplace", True, "an activation")

    def __str__(self) -> str:
        return f"{len(self.paths)} activation{'s' * (len(self.paths) > 1)} in place"


@dataclass(frozen=True)
class InBackward(Applied):
    """The optimizer steps in backward."""

    rows, said = ("in_backward",), "optimizer in backward"

    def prepare(self, step: Prepared) -> None:
        step.in_backward = optimizer_in_backward(step.optimizer)


@dataclass(frozen=True)
class Offload(Applied):
    """Tensors saved for backward are kept in host memory.

    Attributes:
        only_checkpoints: only the inputs of recomputed parts are.
    """

    only_checkpoints: bool = False
    rows = ("offload",)

    def region(self) -> AbstractContextManager[Any]:
        return (checkpoints_on_cpu if self.only_checkpoints else save_on_cpu)(pin_memory=True)

    def __str__(self) -> str:
        return "offload of checkpoints' inputs" if self.only_checkpoints else "offload"


@dataclass(frozen=True)
class Tiles(Applied):
    """Parts of the model compute some tokens at a time, and again in backward.

    Attributes:
        paths: the paths of these modules. Each has an attribute ``tile``, which is ``None``.
        tokens: what it becomes.
    """

    paths: tuple[str, ...]
    tokens: int
    rows, said = ("chunking",), "{tokens} tokens at a time"

    def prepare(self, step: Prepared) -> None:
        _set_on(step.model, self.paths, "tile", self.tokens, "a module with a tile")


@dataclass(frozen=True)
class Accumulation(Applied):
    """The batch is split into ``parts``, which run one after another."""

    parts: int
    rows, said = ("accumulation",), "batch in {parts} parts"

    def prepare(self, step: Prepared) -> None:
        step.parts = self.parts


@dataclass(frozen=True)
class Autocast(Applied):
    """Products run in float16, and the loss is scaled, on ``device``."""

    device: str
    rows, said = ("autocast", "loss_scaling"), "autocast"

    def prepare(self, step: Prepared) -> None:
        step.scaler = GradScaler(self.device)

    def region(self) -> AbstractContextManager[Any]:
        return autocast(self.device, dtype=float16)


@dataclass(frozen=True)
class Compression(Applied):
    """Tensors saved for backward take ``bits`` per element."""

    bits: int
    rows, said = ("compression",), "saved in {bits} bits"

    def region(self) -> AbstractContextManager[Any]:
        return compressed(self.bits)


@dataclass(frozen=True)
class Replicated(Applied):
    """Each of ``ranks`` ranks has the whole model and its part of the batch. Subclasses divide more.

    Attributes:
        stage: the stage of ZeRO.
    """

    ranks: int
    stage: ClassVar[int] = 0
    rows, said = ("data_parallel",), "data parallel on {ranks} ranks"

    def prepare(self, step: Prepared) -> None:
        """Divide the model, which all other techniques have prepared, over the ranks of the default process group.

        All ranks get the parameters and buffers of rank 0. What the making of the whole model reserved is given back.
        """
        if get_world_size() != self.ranks:
            raise ArgumentError(
                f"plan: it was made for {self.ranks} ranks, this program runs on {get_world_size()}: plan with that many ranks"
            )
        for tensor in chain(step.model.parameters(), step.model.buffers()):
            broadcast(tensor.detach(), group_src=0)
        step.model = divided(step.model, self.stage, gradient_as_bucket_view=True, init_sync=False)
        if self.stage == 1:
            step.optimizer = ZeroRedundancyOptimizer(step.optimizer.param_groups, type(step.optimizer))
        empty_cache()


@dataclass(frozen=True)
class Zero1(Replicated):
    """Each rank keeps the optimizer's state of its own parameters."""

    stage = 1
    rows, said = ("zero_1",), "ZeRO 1 on {ranks} ranks"


@dataclass(frozen=True)
class Zero2(Replicated):
    """Each rank keeps its rows of the gradients and of the optimizer's state; parameters are whole from forward to backward."""

    stage = 2
    rows, said = ("zero_2",), "ZeRO 2 on {ranks} ranks"


@dataclass(frozen=True)
class Zero3(Replicated):
    """Each rank keeps its rows of parameters, gradients and optimizer state; a unit is gathered while it is used."""

    stage = 3
    rows, said = ("zero_3",), "ZeRO 3 on {ranks} ranks"


OVER_RANKS: tuple[type[Replicated], ...] = (Replicated, Zero2, Zero1, Zero3)
"""The ways to divide a model over ranks; those that send less come first."""
KINDS: tuple[type[Applied], ...] = (
    *(Recompute, InPlace, InBackward, Offload, Tiles, Accumulation, Autocast, Compression),
    *OVER_RANKS,
)


def tileable(model: Module) -> tuple[str, ...]:
    """Return the paths of the modules that could compute in tiles, and do not."""
    return tuple(path for path, module in model.named_modules() if getattr(module, "tile", 0) is None)


def names(level: str) -> tuple[str, ...]:
    """Return the techniques that keep the numbers at ``level`` or better."""
    return tuple(kind.name for kind in KINDS if LEVELS.index(kind.numbers) <= LEVELS.index(level))


def reason_against(a: type[Applied] | Applied, b: type[Applied] | Applied) -> str | None:
    """Say why the two cannot be used together; ``None`` if they can."""
    reasons = (catalogue.reason_against(one, other) for one, other in product(a.rows, b.rows))
    return next((reason for reason in reasons if reason), None)


def _set_on(model: Module, paths: tuple[str, ...], name: str, value: Any, expected: str) -> None:
    """Set an attribute of the modules at these paths, which have it."""
    for path in paths:
        module = _part(model, path, f"{expected} {path!r}")
        if not hasattr(module, name):
            raise _other_model(f"{expected} {path!r}", f"a {type(module).__name__} without .{name}")
        setattr(module, name, value)


def _part(model: Module, path: str, expected: str) -> Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise _other_model(expected, "none there") from None


def _other_model(expected: str, found: str) -> ArgumentError:
    return ArgumentError(f"plan: it was made for a model with {expected}; this one has {found}. Make the plan for this model.")
