"""What plans are made of: a technique has a name, says what it does to numbers, and changes a training step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..amp import GradScaler, autocast
from ..dtypes import float16
from ..errors import ArgumentError
from ..nn import Module, ModuleList, Sequential
from ..recompute import Schedule, checkpoint_wrapper, scheduled
from ..techniques import compressed, optimizer_in_backward, save_on_cpu

if TYPE_CHECKING:
    from .choice import TrainingStep


class Technique:
    """One thing that a training step does to need less memory; nothing, unless a subclass says otherwise.

    Attributes:
        name: by which it is allowed.
        numbers: ``"identical"``: each is what it is in a plain step, bit for bit; ``"close"``: sums round differently (with
            batch norm statistics are others, with dropout masks); ``"approximate"``: they are noisier than that.
        not_with: names of those that it cannot be used with, and why.
    """

    name: ClassVar[str]
    numbers: ClassVar[str] = "identical"
    not_with: ClassVar[dict[str, str]] = {}

    def prepare(self, step: TrainingStep) -> None:
        """Change the step before its first run."""

    def region(self) -> AbstractContextManager[Any]:
        """Where forward and loss run, entered in each step."""
        return nullcontext()


@dataclass(frozen=True)
class Recompute(Technique):
    """Parts of one chain of modules are recomputed.

    Attributes:
        path: of the ``Sequential`` (a module of another chain is recomputed or not: its items are single) in the model.
        items: its stages, with tuples around those that are recomputed; see ``recompute.Schedule``.
        sizes: how many modules each stage has.
    """

    path: str
    items: tuple[Any, ...]
    sizes: tuple[int, ...]
    name = "recompute"

    def prepare(self, step: TrainingStep) -> None:
        """Let the chain run by its schedule from now on; it is the same object with the same modules."""
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
class InPlace(Technique):
    """Activations write over their input, where nobody else wants it: one array of their size less while they run.

    Attributes:
        paths: of the modules that do so from now on.
    """

    paths: tuple[str, ...]
    name = "inplace_activations"

    def prepare(self, step: TrainingStep) -> None:
        for path in self.paths:
            module: Any = _part(step.model, path, f"an activation {path!r}")
            if not hasattr(module, "inplace"):
                raise _other_model(f"an activation {path!r}", f"a {type(module).__name__}")
            module.inplace = True

    def __str__(self) -> str:
        return f"{len(self.paths)} activation{'s' * (len(self.paths) > 1)} in place"


@dataclass(frozen=True)
class InBackward(Technique):
    """The optimizer steps in backward."""

    name = "in_backward"
    not_with: ClassVar = {
        "accumulation": "a gradient is complete after the last part only",
        "autocast": "gradients are scaled until all of them are known to be finite",
    }

    def prepare(self, step: TrainingStep) -> None:
        step.in_backward = optimizer_in_backward(step.optimizer)

    def __str__(self) -> str:
        return "optimizer in backward"


@dataclass(frozen=True)
class Offload(Technique):
    """What is saved for backward waits in the host's memory."""

    name = "offload"
    not_with: ClassVar = {"compression": "one of the two gets what is saved"}

    def region(self) -> AbstractContextManager[Any]:
        return save_on_cpu(pin_memory=True)

    def __str__(self) -> str:
        return "offload"


@dataclass(frozen=True)
class Accumulation(Technique):
    """The batch is split into ``parts``, one after another."""

    parts: int
    name = "accumulation"
    numbers = "close"

    def prepare(self, step: TrainingStep) -> None:
        step.parts = self.parts

    def __str__(self) -> str:
        return f"batch in {self.parts} parts"


@dataclass(frozen=True)
class Autocast(Technique):
    """Products in float16, and the loss scaled, on ``device``."""

    device: str
    name = "autocast"
    numbers = "approximate"

    def prepare(self, step: TrainingStep) -> None:
        step.scaler = GradScaler(self.device)

    def region(self) -> AbstractContextManager[Any]:
        return autocast(self.device, dtype=float16)

    def __str__(self) -> str:
        return "autocast"


@dataclass(frozen=True)
class Compression(Technique):
    """What is saved for backward is kept in ``bits`` an element."""

    bits: int
    name = "compression"
    numbers = "approximate"

    def region(self) -> AbstractContextManager[Any]:
        return compressed(self.bits)

    def __str__(self) -> str:
        return f"saved in {self.bits} bits"


KINDS: tuple[type[Technique], ...] = (Recompute, InPlace, InBackward, Offload, Accumulation, Autocast, Compression)
LEVELS = ("identical", "close", "approximate")


def names(level: str) -> tuple[str, ...]:
    """Of the techniques whose numbers are as near to a plain step's as ``level``, or nearer."""
    return tuple(kind.name for kind in KINDS if LEVELS.index(kind.numbers) <= LEVELS.index(level))


def reason_against(a: type[Technique] | Technique, b: type[Technique] | Technique) -> str | None:
    """Why the two cannot be used together; ``None`` where they can."""
    return a.not_with.get(b.name) or b.not_with.get(a.name)


def _part(model: Module, path: str, expected: str) -> Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise _other_model(expected, "none there") from None


def _other_model(expected: str, found: str) -> ArgumentError:
    return ArgumentError(f"plan: it was made for a model with {expected}; this one has {found}. Make the plan for this model.")
