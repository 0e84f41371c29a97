"""Recomputed activations."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory, recompute

from ...memory import Category
from ...models.llama import llama
from ...models.precision import Step
from ...models.published import PUBLISHED
from ...models.resnet import resnet1001
from ...nn import functional as F
from ...recompute.blocks import checkpoint_blocks
from ..claim import Claim, Counted, Figure, paper, thread


def chen() -> int:
    """The peak of a step of a ResNet of 1,001 layers on 6 images of 224 x 224, each stage in segments of sqrt(n) blocks."""
    before = memory.memory_allocated("meta")
    memory.reset_peak_memory_stats("meta")
    with tm.device("meta"):
        model = resnet1001(1000)
        for stage in ("layer1", "layer2", "layer3"):
            chain = getattr(model, stage)
            setattr(model, stage, recompute.apply(chain, recompute.sqrt(len(chain), last=True)))
        images, classes = tm.randn(6, 3, 224, 224), tm.randint(0, 1000, (6,))
        F.cross_entropy(model(images), classes).backward()
        del model, images, classes
    return memory.max_memory_allocated("meta") - before


def boundaries(tokens: int = 131_072) -> Counted:
    """The inputs of blocks: all that Qwen 3 of 8 billion parameters, in bfloat16, keeps of blocks that are recomputed."""
    config = PUBLISHED["qwen3-8b"] | {"max_position_embeddings": 1 << 20}

    def run() -> None:
        model: Any = checkpoint_blocks(Step("bfloat16", "cpu").make(partial(llama, config)), "every-block")
        y = model.hidden(tm.zeros(1, tokens, dtype=tm.int64))
        memory.mark("forward ends")
        del y

    track = memory.predict(run)
    kept = [b.requested for b in track.live("forward ends") if b.category is Category.ACTIVATION]
    size = tokens * config["hidden_size"] * 2
    return Counted(sum(each for each in kept if each == size) - size, track=track)


_CHEN = paper("1604.06174", "Chen et al., Training deep nets with sublinear memory cost, 2016, abstract")
_RESNET1001 = "a step of ResNet-1001 on 6 images of 224 x 224, predicted"
_INPUTS = "a forward that recomputes each block, in bfloat16, predicted; the inputs of the blocks that are kept"

CLAIMS = [
    Claim(
        "chen-recomputed", _CHEN, "A residual network of 1,000 layers in segments of sqrt(n) blocks. 48 GB are needed without.",
        Figure("at most 7 GB"), _RESNET1001, chen,
        "The abstract names neither batch nor widths. This batch takes 45 GB without, and each block runs twice.", seconds=3,
    ),
    Claim(
        "accelerate-4175", thread("huggingface/accelerate", 4175, "pull"),
        "The inputs of the blocks of Qwen3 with 8 billion parameters, for 131,072 tokens.", Figure("38,654,705,664 B"),
        _INPUTS, boundaries, seconds=2,
    ),
]  # fmt: skip
