"""The options of ``estimate``, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .networks import OPTIMIZERS, USUAL_BATCH, check_parts, size_of, steps_in_backward


@dataclass(frozen=True)
class EstimateOptions:
    """The options, named as on the command line."""

    network: str
    batch_size: int | None
    sample: str | None
    tokens: str | None
    optimizer: str
    precision: str
    master_weights: bool
    paged: bool
    accumulate: int
    recompute: str | None
    offload: bool
    tile: int | None
    checkpoint: bool
    lora: int | None
    quantize: str | None
    budget: str | None
    gpu: str | None
    advise: bool
    device: str | None
    ranks: int | None
    rank: int
    zero: int
    tensor: int
    pipeline: int
    context: int
    picture: Path | None
    layers: bool
    as_json: bool

    @property
    def batch(self) -> int:
        """Samples in a step."""
        return self.batch_size or USUAL_BATCH

    @property
    def on(self) -> str:
        """The device of a network of this library."""
        return self.device or "cpu"

    @property
    def rule(self) -> Callable[..., Any]:
        """The function that makes the optimizer."""
        return partial(OPTIMIZERS[self.optimizer], **({"master_weights": True} if self.master_weights else {}))

    @property
    def room(self) -> int | None:
        """The budget in bytes."""
        return size_of("--budget", self.budget)

    @property
    def place(self) -> tuple[int, int] | None:
        """The rank of a PyTorch program, and the number of processes; ``None``: it is alone."""
        return (self.rank, self.ranks or 1) if self.rank or self.ranks else None

    @property
    def step_settings(self) -> list[str]:
        """The options that say how a PyTorch program's step is made, as far as they differ from the usual ones."""
        said = {
            f"--batch-size {self.batch_size}": self.batch_size is not None,
            f"--optimizer {self.optimizer}": self.optimizer != "momentum",
            f"--precision {self.precision}": self.precision != "float32",
            f"--accumulate {self.accumulate}": self.accumulate != 1,
            f"--lora {self.lora}": self.lora is not None,
            "--checkpoint": self.checkpoint,
        }
        return [option for option, differs in said.items() if differs]

    @property
    def in_backward(self) -> bool:
        """True if the optimizer updates each parameter in backward."""
        return steps_in_backward(self.optimizer, self.accumulate, self.precision, self.ranks)

    @property
    def is_divided(self) -> bool:
        """True if several ranks share the layers."""
        return max(self.tensor, self.pipeline, self.context) > 1

    def check_torch(self) -> None:
        """Refuse options that are only for networks of this library."""
        names = ("master_weights", "quantize", "paged", "tile", "zero", "recompute", "offload", "picture", "layers")
        given = [name for name in names if getattr(self, name)]
        given += [name for name in ("tensor", "pipeline", "context") if getattr(self, name) > 1]
        if given:
            raise ArgumentError(f"--{given[0].replace('_', '-')} is for networks of tinygrad_mem; write it in a function")

    def check(self) -> None:
        """Refuse what is for PyTorch's programs, and options that do not go together."""
        if self.gpu is not None or self.checkpoint or self.advise or self.rank:
            raise ArgumentError(f"--gpu, --checkpoint, --advise and --rank work for PyTorch programs, not for {self.network}")
        if self.ranks is not None:
            for name in ("lora", "paged", "offload", "tile", "layers"):
                if getattr(self, name):
                    raise ArgumentError(f"--{name} is for one rank: leave --ranks out")
        elif self.zero or self.picture is not None or self.is_divided:
            raise ArgumentError("--zero, --tensor, --pipeline, --context and --picture are for several ranks: give --ranks too")
        if self.offload and self.recompute is None and self.tile is None:
            raise ArgumentError("--offload keeps the inputs of recomputed parts on the host: give --recompute or --tile too")
        if self.quantize is not None and self.lora is None:
            raise ArgumentError("--quantize freezes the weights, so that nothing would be trained: give --lora too")
        check_parts(self.batch, self.accumulate)
        steps_in_backward(self.optimizer, self.accumulate, self.precision, self.ranks)
        size_of("--budget", self.budget)
