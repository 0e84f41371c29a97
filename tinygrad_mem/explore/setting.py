"""A setting of a training step, and its prediction."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from .. import memory
from ..errors import ArgumentError
from ..memory import Track
from ..models.precision import Step
from ..techniques import optimizer_in_backward, save_on_cpu

PRECISIONS = ("float32", "autocast", "half", "float16", "bfloat16", "float64")
RECOMPUTE = ("none", "sqrt", "every-block")
PARTS = (1, 2, 4, 8)
DEVICES = ("cpu", "cuda")
MOST = 4096
"""The largest batch."""
_IN_DTYPE = {
    "half": "model.half()  # inputs too; the loss takes output.float()",
    **{name: f"model.to(tm.{name})  # inputs too" for name in ("float16", "bfloat16", "float64")},
}


@dataclass(frozen=True)
class StepSetting:
    """The choices of the page. The names are those of ``estimate``'s options.

    Attributes:
        sample: the shape of one sample, or "" for the network's own.
        tokens: of a network of token numbers, the length of a sample, or "" for its own; of a user's, as ``--tokens`` has it.
        accumulate: the parts of a batch.
        offload: what the forward pass saves waits in host memory.
    """

    network: str = "resnet20"
    batch_size: int = 32
    sample: str = ""
    tokens: str = ""
    optimizer: str = "momentum"
    precision: str = "float32"
    recompute: str = "none"
    accumulate: int = 1
    offload: bool = False
    device: str = "cpu"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> StepSetting:
        """The setting in the query of an address.

        Raises:
            ArgumentError: a name or a value that there is not.
        """
        kinds = {each.name: type(each.default) for each in fields(cls)}
        unknown = set(given) - set(kinds)
        if unknown:
            raise ArgumentError(f"there is no setting {', '.join(sorted(unknown))}: there are {', '.join(kinds)}")
        made = cls(**{name: _value(name, kinds[name], text) for name, text in given.items()})
        for name, known in (("precision", PRECISIONS), ("recompute", RECOMPUTE), ("device", DEVICES)):
            if getattr(made, name) not in known:
                raise ArgumentError(f"{name} is one of {', '.join(known)}; found {getattr(made, name)!r}")
        if not 1 <= made.batch_size <= MOST or not 1 <= made.accumulate <= made.batch_size:
            raise ArgumentError(
                f"batch_size must be 1 to {MOST}, and accumulate 1 to batch_size; found {made.batch_size} and {made.accumulate}"
            )
        if made.batch_size % made.accumulate:
            raise ArgumentError(f"{made.accumulate} parts do not divide a batch of {made.batch_size}")
        return made

    def command(self) -> str:
        """The command line with the same settings. It has no option for offload: a comment says that it is left out."""
        said = {
            name: value for name, value in asdict(self).items() if value != getattr(StepSetting, name) and name != "offload"
        }
        network = said.pop("network", self.network)
        names = {"sample": "input"}
        options = [f"--{names.get(name, name.replace('_', '-'))} {value}" for name, value in said.items()]
        without = ["# without offload"] if self.offload else []
        return " ".join(["python -m tinygrad_mem estimate", shlex.quote(network), *options, *without])

    def code(self, rule: Any, in_backward: bool) -> str:
        """The lines of a training script that this setting needs, for the optimizer that ``rule`` makes."""
        options = getattr(rule, "keywords", {}) | ({"master_weights": True} if self.precision == "half" else {})
        given = "".join(f", {name}={_literal(value)}" for name, value in options.items())
        scaled = self.precision in ("autocast", "half")
        lines = [
            _IN_DTYPE.get(self.precision, ""),
            "for parameter in model.parameters(): parameter.grad_dtype = tm.float32" if self.precision == "half" else "",
            f'tm.recompute.checkpoint_blocks(model, "{self.recompute}")' if self.recompute != "none" else "",
            f"optimizer = tm.optim.{getattr(rule, 'func', rule).__name__}(model.parameters(){given})",
            "tm.techniques.optimizer_in_backward(optimizer)" if in_backward else "",
            f'scaler = tm.amp.GradScaler("{self.device}")' if scaled else "",
            f'with tm.autocast("{self.device}", dtype=tm.float16): loss = ...' if self.precision == "autocast" else "",
            "with tm.autograd.graph.save_on_cpu(pin_memory=True): output = model(inputs)" if self.offload else "",
            f"loss = loss / {self.accumulate}  # of each part of a batch" if self.accumulate > 1 else "",
            "scaler.scale(loss).backward()" if scaled else "",
            "scaler.step(optimizer); scaler.update()" if scaled else "",
        ]
        return "\n".join(filter(None, lines))


def _value(name: str, kind: type, text: str) -> Any:
    if kind is bool:
        return text in ("true", "1", "on")
    if kind is int and not text.isdecimal():
        raise ArgumentError(f"{name} is a whole number, found {text!r}")
    return kind(text)


def _literal(value: object) -> str:
    return f"tm.{value.name}" if isinstance(value, np.dtype) else repr(value)


def predict(setting: StepSetting, named: Any, rule: Any, in_backward: bool) -> Track:
    """The track of two training steps of the network ``named``, with the optimizer that ``rule`` makes."""
    if setting.recompute != "none":
        named = named.recomputed(setting.recompute)

    def steps() -> None:
        step = Step(setting.precision, "cuda")  # loss scaling as on a GPU
        model: Any = step.make(named.make)
        update = rule(model.parameters(), **step.options)
        if in_backward:
            optimizer_in_backward(update)
        if setting.offload:
            _offload(model)
        step.train(model, update, named, setting.batch_size, setting.accumulate)

    return memory.predict(steps, like=setting.device)


def _offload(model: Any) -> None:
    """Let the model's forward run with what it saves on the host."""
    own = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with save_on_cpu(pin_memory=True):
            return own(*args, **kwargs)

    model.forward = forward
