"""The changes that :func:`.advise` tries. Each can be made to a program from outside, and has a price."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import _adafactor
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ..interrupts import context
from ..memory.sizes import bytes_text
from .program.changing import (
    BitsAndBytesAdam,
    adam_becomes,
    constructors,
    forward_and_loss,
    forwards,
    stepping_in_backward,
    zeroed_to_none,
)
from .program.logits import LossHead, LossInChunks
from .program.seen import BlockList, Seen

_DOCS = "https://docs.pytorch.org/docs/stable/"
_ADAM = (torch.optim.Adam, torch.optim.AdamW)


class ProgramChange:
    """A change of a program.

    Attributes:
        name: its name.
        cost: its price in words.
        price: its price as a level. 0: nothing; 1: time; 2: time for copies; 3: other numbers; 4: another training rule.
        numbers: how the program's results change, in words.
        code: the code to write.
        source: the page that explains it.
        kinds: the decisions that it makes; two changes that decide the same are not combined.
        settings: settings of the allocator.
    """

    name = cost = code = source = settings = ""
    numbers = "the same"
    price = 0
    kinds: frozenset[str] = frozenset()

    def why_not(self, seen: Seen, device: str) -> str:
        """The reason why it does not apply to the program; ``""`` if it applies."""
        return ""

    def made(self, device: str) -> AbstractContextManager:
        """Return the context in which a program runs with the change."""
        return nullcontext()

    def paid(self, seen: Seen) -> str:
        """:attr:`cost`, with the numbers that were counted while the program ran with it."""
        return self.cost


class ForeachOff(ProgramChange):
    name, cost, code = "foreach=False", "more kernels a step: slower for many small parameters", "optimizer(..., foreach=False)"
    source, price, kinds = f"{_DOCS}optim.html#algorithms", 1, frozenset({"step"})

    def why_not(self, seen: Seen, device: str) -> str:
        return "" if seen.foreach and device != "cpu" else "no optimizer steps with lists of parameters here"

    def made(self, device: str) -> AbstractContextManager:
        def off(optimizer: torch.optim.Optimizer) -> None:
            for options in (optimizer.defaults, *optimizer.param_groups):
                if "foreach" in options:
                    options["foreach"] = False

        return constructors(after=off)


class FusedStep(ProgramChange):
    name, cost, code = "fused=True", "nothing: one kernel, faster", "optimizer(..., fused=True)"
    source, kinds, numbers = f"{_DOCS}optim.html#algorithms", frozenset({"step"}), "the same but for rounding"

    def why_not(self, seen: Seen, device: str) -> str:
        return "" if seen.can_be_fused else "an optimizer has no fused step or uses it already, or none steps"

    def made(self, device: str) -> AbstractContextManager:
        def fuse(kind: type, options: dict[str, Any]) -> None:
            options.pop("foreach", None)
            options["fused"] = True

        return constructors(before=fuse)


class GradientsToNone(ProgramChange):
    name, cost, code = "gradients to None", "nothing", "optimizer.zero_grad(set_to_none=True)"
    source = f"{_DOCS}generated/torch.optim.Optimizer.zero_grad.html"
    kinds = frozenset({"zero"})
    numbers = "the same if each parameter gets a gradient in each step"

    def why_not(self, seen: Seen, device: str) -> str:
        return "" if seen.keeps_zeros else "zero_grad drops gradients already, or is not called"

    def made(self, device: str) -> AbstractContextManager:
        return zeroed_to_none()


class StepInBackward(ProgramChange):
    name, cost = "optimizer in backward", "one optimizer for each parameter: small kernels"
    code = (
        "for p in model.parameters():\n"
        "    alone = torch.optim.AdamW([p])  # your optimizer\n"
        "    def step(p, alone=alone): alone.step(); alone.zero_grad()\n"
        "    p.register_post_accumulate_grad_hook(step)\n"
        "# and no optimizer.step()"
    )
    source = "https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html"
    price, kinds = 1, frozenset({"zero", "when"})

    def why_not(self, seen: Seen, device: str) -> str:
        if not seen.steps:
            return "no optimizer steps"
        if seen.clips:
            return "gradients are clipped, which needs all of them at once"
        if seen.scales:
            return "GradScaler looks at all gradients before a step"
        if seen.backwards_a_step != 1:
            return f"{seen.backwards_a_step:g} backwards for each step: gradients are accumulated, or come from elsewhere"
        foreign = [kind.__name__ for kind in seen.optimizers if not kind.__module__.startswith("torch.optim")]
        return f"{foreign[0]} is not one of torch.optim's: make one for each parameter yourself" if foreign else ""

    def made(self, device: str) -> AbstractContextManager:
        return stepping_in_backward()


class ExpandableSegments(ProgramChange):
    name, cost = "expandable segments", "none in bytes; set by an environment variable"
    code, settings = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ...", "expandable_segments:True"
    source, kinds = f"{_DOCS}notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf", frozenset({"allocator"})

    def why_not(self, seen: Seen, device: str) -> str:
        return "the CPU has no segments" if device == "cpu" else ""


class CheckpointedBlocks(ProgramChange):
    """Recompute each block of a list in backward, by itself."""

    numbers, price = "the same", 1
    source = f"{_DOCS}checkpoint.html"

    def __init__(self, lists: list[BlockList], every: int, where: str) -> None:
        self.lists, self.every = lists, every
        count = sum(-(-each.count // every) for each in lists)
        which = "all" if every == 1 else "every second"
        self.name = f"checkpoint {which} of {where}"
        self.cost = f"one more forward of {count} blocks ({lists[0].block}) a step"
        step = "" if every == 1 else f"[::{every}]"
        self.code = "\n".join(
            f"for b in {_dotted(each.path)}{step}: b.forward = partial(checkpoint, b.forward, use_reentrant=False)"
            for each in lists
        )
        self.kinds = frozenset(f"{each.root}.{each.path}" for each in lists)

    def made(self, device: str) -> AbstractContextManager:
        def chosen(root: nn.Module) -> list:
            blocks = [b for each in self.lists for b in list(each.of(root) or [])[:: self.every]]
            return [(b, partial(checkpoint, b.forward, use_reentrant=False)) for b in blocks]

        return forwards(chosen)


class SegmentedBlocks(ProgramChange):
    """Checkpoint an ``nn.Sequential`` in about as many segments as the square root of its number of blocks."""

    numbers, price = "the same", 1
    source = f"{_DOCS}checkpoint.html#torch.utils.checkpoint.checkpoint_sequential"

    def __init__(self, blocks: BlockList, where: str) -> None:
        self.blocks, self.segments = blocks, max(2, round(blocks.count**0.5))
        again = blocks.count // self.segments * (self.segments - 1)
        self.name = f"checkpoint {where} in {self.segments} segments"
        self.cost = f"one more forward of {again} blocks ({blocks.block}) a step"
        at = _dotted(blocks.path)
        self.code = f"{at}.forward = partial(checkpoint_sequential, {at}, {self.segments}, use_reentrant=False)"
        self.kinds = frozenset({f"{blocks.root}.{blocks.path}"})

    def why_not(self, seen: Seen, device: str) -> str:
        if self.blocks.sequential:
            return ""
        return (
            "the model calls these blocks in a loop of its own: write that loop as checkpoint_sequential(blocks, "
            f"{self.segments}, x, use_reentrant=False), if each takes only the result of the one before"
        )

    def made(self, device: str) -> AbstractContextManager:
        def chosen(root: nn.Module) -> list:
            found = self.blocks.of(root)
            again = partial(checkpoint_sequential, found, self.segments, use_reentrant=False)
            return [] if found is None else [(found, again)]

        return forwards(chosen)


class AutocastForward(ProgramChange):
    name, cost = "autocast bfloat16", "8 bits of precision in matrix products; time mostly falls"
    numbers, price, kinds = "rounded to bfloat16 in forward and backward", 3, frozenset({"dtype"})
    code = 'with torch.autocast("cuda", dtype=torch.bfloat16): loss = ...  # forward and loss, not backward'
    source = f"{_DOCS}amp.html#autocasting"

    def why_not(self, seen: Seen, device: str) -> str:
        if seen.autocast:
            return "forward runs in autocast already"
        return "the model's parameters are of half precision already" if seen.narrow else ""

    def made(self, device: str) -> AbstractContextManager:
        return forward_and_loss(lambda: torch.autocast(device.split(":")[0], dtype=torch.bfloat16))


class OffloadSaved(ProgramChange):
    """Keep tensors that are saved for backward in host memory."""

    name, price, kinds = "saved tensors on the CPU", 2, frozenset({"saved"})
    code = "with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = ...  # forward and loss, not backward"
    source = f"{_DOCS}autograd.html#torch.autograd.graph.save_on_cpu"
    moved = 0

    def why_not(self, seen: Seen, device: str) -> str:
        if device == "cpu":
            return "the CPU's own memory is counted"
        return "" if seen.backwards else "there is no backward"

    def made(self, device: str) -> AbstractContextManager:
        self.moved = 0

        def saved() -> Any:
            hooks: Any = torch.autograd.graph.save_on_cpu(pin_memory=True)
            pack = hooks.pack_hook

            def counted(tensor: torch.Tensor) -> Any:
                self.moved += tensor.numel() * tensor.element_size()
                return pack(tensor)

            hooks.pack_hook = counted
            return hooks

        return forward_and_loss(saved)

    def paid(self, seen: Seen) -> str:
        each = bytes_text(self.moved // max(1, seen.backwards))
        return f"{each} to the host and {each} back over PCIe for each backward; as much pinned memory there"


class AdafactorForAdam(ProgramChange):
    name, cost = "Adafactor for Adam", "another optimizer: its learning rate must be tuned again"
    numbers, price, kinds = "different: another rule", 4, frozenset({"step", "rule"})
    code, source = "torch.optim.Adafactor(model.parameters(), lr=...)", f"{_DOCS}generated/torch.optim.Adafactor.html"

    def why_not(self, seen: Seen, device: str) -> str:
        return _not_adam(seen)

    @context
    def made(self, device: str) -> Iterator[None]:  # type: ignore[override]
        module: Any = _adafactor
        with adam_becomes(torch.optim.Adafactor, ("lr", "weight_decay")):
            module.max = lambda a, b: a  # a scale and an unknown norm; the bytes do not depend on it
            try:
                yield
            finally:
                del module.max


class EightBitStates(ProgramChange):
    name, numbers, price = "8-bit states for Adam", "different: states are rounded to 8 bits", 4
    cost = (
        "accuracy of states; predicted as two bytes an element and two float32 for each 256, float32 below 4,096 elements, "
        "and no temporaries"
    )
    code, kinds = "bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)", frozenset({"step", "rule"})
    source = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"

    def why_not(self, seen: Seen, device: str) -> str:
        return "bitsandbytes is for a GPU" if device == "cpu" else _not_adam(seen)

    def made(self, device: str) -> AbstractContextManager:
        return adam_becomes(BitsAndBytesAdam, ("lr", "betas", "eps", "weight_decay"))


class ChunkedLoss(ProgramChange):
    """The last linear layer and the cross entropy as one function, which makes some rows of the logits at a time."""

    name, cost, numbers = "loss in chunks", "smaller matrix products; no second backward", "the same but for rounding"
    price, kinds = 1, frozenset({"logits"})
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear_cross_entropy.html"

    def __init__(self, heads: list[LossHead]) -> None:
        self.heads = heads
        self.code = "\n".join(map(_chunked, heads))

    def why_not(self, seen: Seen, device: str) -> str:
        if not hasattr(nn.functional, "linear_cross_entropy"):
            return "this PyTorch has no F.linear_cross_entropy"
        return "" if self.heads else seen.heads.why_none

    def made(self, device: str) -> AbstractContextManager:
        return LossInChunks(self.heads).running()


def changes(seen: Seen) -> list[ProgramChange]:
    """All changes for a program, in the order in which they are made: another optimizer rule comes before a change of its
    step."""
    kinds = AdafactorForAdam, EightBitStates, ForeachOff, FusedStep, GradientsToNone, StepInBackward, ExpandableSegments
    found: list[ProgramChange] = [kind() for kind in kinds]
    paths = [each.path for each in seen.lists]  # two models may have lists at the same one
    places = [
        f"{each.root}.{each.path}" if each.path and paths.count(each.path) > 1 else each.path or each.root
        for each in seen.lists
    ]
    for each, where in zip(seen.lists, places, strict=True):
        found += [CheckpointedBlocks([each], 1, where), CheckpointedBlocks([each], 2, where), SegmentedBlocks(each, where)]
    if len(seen.lists) > 1:
        found.append(CheckpointedBlocks(seen.lists, 1, ", ".join(places)))
    return [*found, AutocastForward(), OffloadSaved(), ChunkedLoss(seen.heads.found)]


def _dotted(path: str) -> str:
    """A path in a model as Python code: ``model.layers[0].blocks``."""
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part]
    return "model" + "".join(parts)


def _chunked(head: LossHead) -> str:
    """The code in place of a head and its loss."""
    weight = _dotted(head.path)
    layer = weight.removesuffix(".weight")
    cast = "" if head.autocast is None else f".to({head.autocast})"
    bias = f"linear_bias={layer}.bias{cast}, " if head.bias else ""
    return (
        f"# x: what {layer} is called with; the model returns it in place of {layer}(x)\n"
        f"loss = F.linear_cross_entropy(x.flatten(0, -2){cast}, {weight}{cast}, targets.flatten(), "
        f"{bias}options=nn.LinearCrossEntropyOptions())"
    )


def _not_adam(seen: Seen) -> str:
    return "" if seen.optimizers & set(_ADAM) else "no optimizer is Adam or AdamW"
