"""The acts of a program in a prediction, which decide the changes that could apply to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...interrupts import context
from .changing import at_first_call, before_backward
from .logits import HeadsSeen
from .places import removed
from .replacing import handled, patched


@dataclass(frozen=True)
class BlockList:
    """A list of equal blocks.

    Attributes:
        root: class of the model that has the list.
        path: where in the model.
        block: class of the blocks.
        sequential: the list is an ``nn.Sequential``, which itself calls its blocks in order.
    """

    root: str
    path: str
    block: str
    count: int
    sequential: bool

    def of(self, root: nn.Module) -> Any:
        """This list in a model; ``None``: it is another model."""
        if type(root).__name__ != self.root:
            return None
        return dict(root.named_modules()).get(self.path)


@dataclass
class Seen:
    """The observations of a program.

    Attributes:
        lists: lists of equal blocks, the outermost alone.
        optimizers: their classes.
        foreach: an optimizer steps with lists of parameters.
        can_be_fused: each optimizer has an option ``fused``, and does not use it.
        backwards, steps: how often.
        keeps_zeros: ``zero_grad(set_to_none=False)`` was called.
        clips: gradients were clipped after backward.
        scales: a ``GradScaler`` made the step.
        autocast: forward ran in autocast.
        narrow: a model has parameters of half precision.
        heads: linear layers whose results go to the cross entropy.
    """

    lists: list[BlockList] = field(default_factory=list)
    optimizers: set[type] = field(default_factory=set)
    foreach: bool = False
    can_be_fused: bool = False
    backwards: int = 0
    steps: int = 0
    keeps_zeros: bool = False
    clips: bool = False
    scales: bool = False
    autocast: bool = False
    narrow: bool = False
    heads: HeadsSeen = field(default_factory=HeadsSeen)
    _places: set[int] = field(default_factory=set)

    def module(self, root: nn.Module) -> None:
        """Record a module that the program calls."""
        self.lists += [found for found in blocks_of(root) if found not in self.lists]
        self.heads.module(root)
        self.narrow |= any(p.dtype in (torch.float16, torch.bfloat16) for p in root.parameters())
        self.autocast |= torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer that is about to step."""
        self._places.add(id(optimizer))
        self.steps += 1
        groups = optimizer.param_groups
        fusable = all("fused" in group and not group["fused"] for group in groups)
        self.can_be_fused = fusable and (self.can_be_fused or self.steps == 1)
        self.foreach |= any("foreach" in g and g["foreach"] is not False and not g.get("fused") for g in groups)
        self.optimizers.add(type(optimizer))

    @property
    def backwards_a_step(self) -> float:
        """Backwards for each optimizer's step."""
        return self.backwards * len(self._places) / self.steps if self.steps else 0.0

    @context
    def watching(self) -> Iterator[None]:
        """Inside, observe the running program."""

        def backward() -> None:
            self.backwards += 1

        clips = dict.fromkeys(("_clip_grads_with_norm_", "clip_grad_value_"), partial(_recorded, "clips"))
        changes = [
            handled(self, torch.nn.utils.clip_grad, **clips),
            handled(self, torch.amp.GradScaler, step=partial(_recorded, "scales")),
            handled(self, torch.optim.Optimizer, zero_grad=_zeroing),
            handled(self, nn.Module, zero_grad=_zeroing),
        ]
        steps = register_optimizer_step_pre_hook(lambda optimizer, *_: self.step(optimizer))
        with removed([steps]), at_first_call(self.module), self.heads, before_backward(backward), patched(*changes):
            yield


def _recorded(name: str, seen: Seen, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record in ``seen``, under ``name``, that the function is called."""
    setattr(seen, name, True)
    return own(*args, **kwargs)


def _zeroing(seen: Seen, own: Callable[..., None], owner: Any, set_to_none: bool = True) -> None:
    seen.keeps_zeros |= not set_to_none
    own(owner, set_to_none)


def blocks_of(root: nn.Module) -> list[BlockList]:
    """The lists of at least two equal blocks in a model that are not inside of another one."""
    found: list[BlockList] = []
    for path, module in root.named_modules():
        inside = any(path.startswith(f"{each.path}.") or not each.path for each in found)
        if inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        kinds = {type(child) for child in module}
        if len(module) > 1 and len(kinds) == 1:
            (kind,), sequential = kinds, isinstance(module, nn.Sequential)
            lone = not any(True for _ in module[0].children()) and kind.__module__.startswith("torch.nn.")
            if not lone:  # a lone layer saves its input, which a checkpoint keeps too
                found.append(BlockList(type(root).__name__, path, kind.__name__, len(module), sequential))
    return found
