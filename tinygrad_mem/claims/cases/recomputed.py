"""Recomputed activations, and optimizers that step in backward."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import Tensor, memory, nn, recompute

from ...memory import Category, Track
from ...models.llama import llama
from ...models.precision import Step
from ...models.published import PUBLISHED
from ...models.resnet import PreActResNet, resnet1001, resnet1202
from ...nn import functional as F
from ...recompute.blocks import checkpoint_blocks
from ...techniques import optimizer_in_backward
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread


@cache
def chen(recomputed: bool) -> tuple[int, float]:
    """A step of a ResNet of 1,001 layers on 6 images of 224 x 224: its peak, and how often a block runs again."""
    before = memory.memory_allocated("meta")
    memory.reset_peak_memory_stats("meta")
    runs = blocks = 0
    with tm.device("meta"):
        model: PreActResNet = resnet1001(1000)
        for stage in ("layer1", "layer2", "layer3") if recomputed else ():
            chain = getattr(model, stage)
            schedule = recompute.sqrt(len(chain), last=True)
            setattr(model, stage, recompute.apply(chain, schedule))
            runs, blocks = runs + schedule.forward_steps, blocks + len(chain)
        images, classes = tm.randn(6, 3, 224, 224), tm.randint(0, 1000, (6,))
        F.cross_entropy(model(images), classes).backward()
        del model, images, classes
    return memory.max_memory_allocated("meta") - before, runs / max(blocks, 1) - 1


class Classifier(nn.Module):
    """The layers after the last stage of blocks."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


def _loss(y: Tensor) -> Tensor:
    return F.cross_entropy(y, tm.zeros(y.shape[0], dtype=tm.int64))


def _peak(model: nn.Module, images: Tensor) -> int:
    """The peak of a step, parameters with it."""
    before = sum(p.nbytes for p in model.parameters())
    held = memory.memory_allocated("meta")
    memory.reset_peak_memory_stats("meta")
    _loss(model(images)).backward()
    model.zero_grad()
    return memory.max_memory_allocated("meta") - held + before


DTR_BUDGET, TOGETHER = 2005 * 10**6, 20  # blocks that are one stage to the planner


@cache
def dtr() -> tuple[int, int, float]:
    """ResNet-1202 on 64 images: the peak of a plain step, that of the plan within the budget, and how much longer it takes.

    Time is in operations; a backward is two forwards.
    """
    with tm.device("meta"):
        net = resnet1202()
        blocks = [*net.layer1, *net.layer2, *net.layer3]
        groups = [nn.Sequential(*blocks[i : i + TOGETHER]) for i in range(0, len(blocks), TOGETHER)]
        model = nn.Sequential(nn.Sequential(net.conv1, net.bn1, net.relu), *groups, Classifier(net.linear))
        images = tm.randn(64, 3, 32, 32)
        plain = _peak(model, images)
        costs = recompute.profile(model, images, _loss)
        schedule = recompute.chain(costs.stages, DTR_BUDGET - sum(p.nbytes for p in model.parameters()))
        planned = _peak(recompute.apply(model, schedule, costs.sizes), images)
    least = sum(stage.forward + stage.backward for stage in costs.stages)
    return plain, planned, schedule.time / least - 1


def dtr_plain() -> Counted:
    """With the outputs of all 1,203 batch norms, which need not be kept: 401 in each stage, where half as much remains."""
    stage = 401 * 4 * 64 * 16 * 32 * 32
    outputs = stage + stage // 2 + stage // 4
    return Counted(dtr()[0], (Extra("the outputs of all batch norms", outputs, outputs),))


def boundaries(name: str, tokens: int, layers: int | None = None) -> Counted:
    """The inputs of blocks: all that a language model in bfloat16 keeps of blocks that are recomputed."""
    config = PUBLISHED[name] | {"max_position_embeddings": 1 << 20}
    config |= {} if layers is None else {"num_hidden_layers": layers}

    def run() -> None:
        model: Any = checkpoint_blocks(Step("bfloat16", "cpu").make(partial(llama, config)), "every-block")
        y = model.hidden(tm.zeros(1, tokens, dtype=tm.int64))
        memory.mark("forward ends")
        del y

    track = memory.predict(run)
    kept = [b.requested for b in track.live("forward ends") if b.category is Category.ACTIVATION]
    size = tokens * config["hidden_size"] * 2
    return Counted(sum(each for each in kept if each == size) - size, track=track)


class ViT(nn.Module):
    """Vision Transformer, large, patches of 16 x 16 (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int = 1024, layers: int = 24, patches: int = 14 * 14) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(tm.zeros(1, 1, width))
        self.places = nn.Parameter(tm.zeros(1, patches + 1, width))
        blocks = [
            nn.TransformerEncoderLayer(width, 16, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        self.layers, self.norm, self.head = nn.Sequential(*blocks), nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # N, patches, width
        x = tm.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


VIT_PARAMETERS = 304_326_632


@cache
def vit(in_backward: bool) -> Track:
    """Two steps of Adam on one image, stepping after backward or in it."""

    def steps() -> None:
        model = ViT()
        optimizer = tm.optim.Adam(model.parameters())
        early = optimizer_in_backward(optimizer) if in_backward else None
        for _ in range(2):
            F.cross_entropy(model(tm.randn(1, 3, 224, 224)), tm.randint(0, 1000, (1,))).backward()
            if early is None:
                optimizer.step()
                optimizer.zero_grad()

    return memory.predict(steps)


def vit_plain() -> Counted:
    """PyTorch's step works on lists: one more array for each parameter, for a moment."""
    size = 4 * VIT_PARAMETERS
    return Counted(vit(False).peak, (Extra("the square roots of moments that PyTorch's step holds", size, size),), vit(False))


_CHEN = paper("1604.06174", "Chen et al., Training deep nets with sublinear memory cost, 2016, abstract")
_DTR = paper("2006.09616", "Kirisame et al., Dynamic tensor rematerialization, 2021, its artifact")
_RESNET1001 = "a step of ResNet-1001 on 6 images of 224 x 224, predicted"
_PLAN = "the fastest schedule of blocks within 2,005 MB, found by a plan; its peak on meta, its time in operations"
_IN_BACKWARD = Publication(
    "PyTorch tutorial, How to save memory by fusing the optimizer step into the backward pass",
    "https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html",
)
_INPUTS = "a forward that recomputes each block, in bfloat16, predicted; the inputs of the blocks that are kept"

CLAIMS = [
    Claim(
        "chen-recomputed", _CHEN, "A residual network of 1,000 layers in segments of sqrt(n) blocks. 48 GB are needed without.",
        Figure("at most 7 GB"), _RESNET1001, lambda: chen(True)[0],
        "The abstract names neither batch nor widths. This batch takes 45 GB without, and each block runs twice.", seconds=3,
    ),
    Claim(
        "dtr-plain", _DTR, "ResNet-1202 on 64 images, nothing recomputed.", Figure("8,908 MB"), "a step on meta; its peak",
        dtr_plain, "Batch norm needs its input, and a ReLU its output. What is between these need not be kept.", seconds=4,
    ),
    Claim(
        "dtr-time", _DTR, "How much longer a step of ResNet-1202 takes within 2,005 MB, by an online method.", Figure("47 %"),
        _PLAN, lambda: Fraction(dtr()[2]), "No schedule of these blocks is faster than the plan, which knows all of them.",
        seconds=4,
    ),
    Claim(
        "accelerate-4175", thread("huggingface/accelerate", 4175, "pull"),
        "The inputs of the blocks of Qwen3 with 8 billion parameters, for 131,072 tokens.", Figure("38,654,705,664 B"),
        _INPUTS, partial(boundaries, "qwen3-8b", 131_072), seconds=2,
    ),
    Claim(
        "accelerate-4175-small", thread("huggingface/accelerate", 4175, "pull"),
        "The inputs of 24 blocks of width 1,024, for 32,768 tokens.", Figure("1.61 GB"),
        _INPUTS, partial(boundaries, "qwen3-0.6b", 32_768, 24), seconds=1,
    ),
    Claim(
        "accelerate-4175-long", thread("huggingface/accelerate", 4175, "pull"),
        "The inputs of the blocks of Qwen3 with 0.6 billion parameters, for an eighth of 1,048,576 tokens.", Figure("7.5 GB"),
        _INPUTS, partial(boundaries, "qwen3-0.6b", 131_072), seconds=1,
    ),
    Claim(
        "transformers-48444", thread("huggingface/transformers", 48444, "pull"),
        "The inputs of the blocks of Qwen3 with 8 billion parameters, for 128k tokens. The thread writes GB for 2**30 bytes.",
        Figure("36 GiB"), _INPUTS, partial(boundaries, "qwen3-8b", 131_072), seconds=2,
    ),
    Claim(
        "step-in-backward",
        _IN_BACKWARD, "A vision transformer of 304 million parameters under Adam, one image, stepping in backward.",
        Figure("about 4 GB"), "two steps, predicted; the peak", lambda: Counted(vit(True).peak, track=vit(True)), seconds=2,
    ),
    Claim(
        "step-after-backward", _IN_BACKWARD,
        "A vision transformer of 304 million parameters under Adam, one image, stepping after backward.", Figure("about 6 GB"),
        "two steps, predicted; the peak", vit_plain,
        "Four times the parameters, and PyTorch's step takes one more for a moment.", seconds=2,
    ),
]  # fmt: skip
