"""Language models: mostly what their forward keeps for backward, as papers, threads and a chart have it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from importlib import import_module
from typing import Any

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn

from ...distributed.fsdp import fully_shard
from ...memory import Category, Track
from ...models.gpt import gpt
from ...models.precision import Step
from ...nn import functional as F
from ...recompute.blocks import checkpoint_blocks
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread
from .parameters import COUNTED, count
from .states import GRADIENTS_GIVEN, kept, llama_of, stepped


@cache
def forward(make: Callable[[], nn.Module], batch: int, tokens: int, recomputed: bool = False) -> Track:
    """A forward in float16 up to the output projection; the mark "forward ends" follows."""

    def run() -> None:
        model: Any = Step("float16", "cpu").make(make)
        if recomputed:
            checkpoint_blocks(model, "every-block")
        y = model.hidden(tm.zeros(batch, tokens, dtype=tm.int64))
        memory.mark("forward ends")
        del y

    return memory.predict(run)


def activations(make: Callable[[], nn.Module], batch: int, tokens: int) -> Counted:
    track = forward(make, batch, tokens)
    return Counted(track.by_category("forward ends")[Category.ACTIVATION], track=track)


GPT2_XL = partial(gpt, "gpt2-xl")
LLAMA_7B, LLAMA_8B = llama_of("llama-2-7b"), llama_of("llama-3.1-8b")


def recomputed_gpt2() -> Counted:
    """The inputs of the blocks; beside them, in backward, the block that is computed again."""
    track = forward(GPT2_XL, 32, 1024, recomputed=True)
    inputs = track.by_category("forward ends")[Category.ACTIVATION]
    block = activations(GPT2_XL, 32, 1024).value // 48
    scores = 32 * 25 * 1024 * 1024 * 2
    parts = (
        Extra("one block's activations, computed again", block, block),
        Extra("its scores, their softmax and dropout in float16, where attention is written out", 0, 2 * scores),
    )
    return Counted(inputs, parts, track)


def moments() -> int:
    """Adam's, in float32, of weights in bfloat16."""
    adam = partial(tm.optim.AdamW, state_dtype=tm.float32)
    return kept(stepped(LLAMA_8B, adam, dtype="bfloat16"), Category.OPTIMIZER_STATE)


def llama_8b_weights() -> int:
    return 2 * count(LLAMA_8B)


def lomo_llama() -> Counted:
    """With scores in memory, by PyTorch and transformers as they are today."""
    found = import_module("..transformers_runs", __package__).llama_activations()
    scores = 32 * 8 * 32 * 512 * 512 * 2
    return Counted(found, (Extra("float16 scores that the library of 2023 kept, up to three in each layer", 0, 3 * scores),))


class LossAsForward(nn.Module):
    """A language model whose forward is its loss: from all logits in float32, or in tiles of 1,024 tokens."""

    def __init__(self, model: Any, tiled: bool) -> None:
        super().__init__()
        self.model, self.tiled = model, tiled
        model.tile = 1024

    def forward(self, ids: tm.Tensor) -> tm.Tensor:
        if self.tiled:
            return self.model.loss(ids, ids)
        return F.cross_entropy(self.model(ids).flatten(0, 1).float(), ids.flatten())


@cache
def rank_of_8(tiled: bool) -> Track:
    """Two steps of AdamW by one of 8 ranks that divide Llama 3 with 8 billion parameters, each block recomputed."""

    def train() -> None:
        dist.init_process_group()
        model: Any = checkpoint_blocks(Step("bfloat16", "cpu").make(llama_of("llama-3-8b")), "every-block")
        for block in model.model.layers:
            fully_shard(block)
        whole = LossAsForward(model, tiled)
        fully_shard(whole)
        optimizer = tm.optim.AdamW(whole.parameters())
        memory.mark("divided")
        for _ in range(2):
            optimizer.zero_grad()
            whole(tm.zeros(8, 4096, dtype=tm.int64)).backward()
            optimizer.step()

    return memory.predict(train, world_size=8)


def liger() -> Counted:
    """The library of 2024 copies the float32 logits of all tokens but the last before its loss."""
    whole, tiled = (rank_of_8(each).at_peak("divided").used for each in (False, True))
    share = 1 - Fraction(tiled, whole)
    copied = 1 - Fraction(tiled, whole + 4 * 8 * 4095 * 128_256)
    return Counted(share, (Extra("a copy of the float32 logits, which the library's loss of 2024 makes", 0, copied - share),))


_ZERO = paper("1910.02054", "Rajbhandari et al., ZeRO, 2020, section 3.2")
_LOMO = thread("OpenLMLab/LOMO", 16)
_FORWARD = "a forward in 16 bits up to the logits, predicted; all that it keeps. Attention keeps no scores here"
_PLAYBOOK = Publication(
    "Hugging Face, The Ultra-Scale Playbook, chart of an 8B model's memory",
    "https://huggingface.co/spaces/nanotron/ultrascale-playbook/blob/9f7c465fdb144ed72ddc0706c06dd88cde086862/src/fragments/cp_8Bmemoryusage.html",
)
_PREDICTOR = Publication(
    "Hugging Face, The Ultra-Scale Playbook, its memory predictor",
    "https://huggingface.co/spaces/nanotron/ultrascale-playbook/tree/14042f587954217f9a27ce36145f35f5e42e3565/src",
)

CLAIMS = [
    Claim(
        "liger", Publication("Liger Kernel, README", "https://github.com/linkedin/Liger-Kernel#readme"),
        "What fused kernels save of training Llama 3 with 8 billion parameters in batches of 8 on 8 GPUs.", Figure("60 %"),
        "two steps of one of 8 ranks, 8 x 4,096 tokens in bfloat16, blocks recomputed, predicted with all logits and in tiles",
        liger, "The loss in tiles alone. The figure names no length; 4,096 tokens is where the other runs out of memory.",
        seconds=2,
    ),
    Claim(
        "zero-gpt2-activations", _ZERO, "Activations of GPT-2 with 1.5 billion parameters, 32 sequences of 1,024 tokens.",
        Figure("about 60 GB"), _FORWARD, partial(activations, GPT2_XL, 32, 1024),
        "12 numbers for each number of a block's input. A block keeps 16, 17 with dropout, and scores come on top.",
    ),
    Claim(
        "zero-gpt2-recomputed", _ZERO,
        "Activations of GPT-2 with 1.5 billion parameters, 32 sequences of 1,024 tokens, each block recomputed.",
        Figure("about 8 GB"), "a forward in 16 bits that recomputes each block, predicted; all that it keeps", recomputed_gpt2,
        "The inputs of 48 blocks are 5.0 GB. The rest is the block that backward is at.",
    ),
    Claim(
        "lomo-16", _LOMO,
        "Activations of Llama with 7 billion parameters, 8 x 512 tokens, by ZeRO's formula. The thread's GB are 2**30 bytes.",
        Figure("12.0 GiB"), _FORWARD, partial(activations, LLAMA_7B, 8, 512),
        "12 numbers for each number of a block's input. Llama's gated layer alone keeps four arrays 2.7 times as wide.",
    ),
    Claim(
        "lomo-activations", paper("2306.09782", "Lv et al., Full parameter fine-tuning, 2023, table 1"),
        "Activations of Llama with 7 billion parameters, 8 sequences of 512 tokens. The table writes GB for 2**30 bytes.",
        Figure("45.61 GiB"), "a forward of transformers' Llama in float16, scores in memory, predicted; bytes that it leaves",
        lomo_llama, "What is kept depends on how the library writes attention and norms. Without scores it is 19.1 GiB.",
        ("torch", "transformers"), 6,
    ),
    Claim(
        "playbook-parameters", _PLAYBOOK,
        "The weights of Llama 3.1 with 8 billion parameters in bfloat16. The chart writes GB for 2**30 bytes.",
        Figure("14.957 GiB"), COUNTED, llama_8b_weights,
    ),
    Claim(
        "playbook-optimizer", _PLAYBOOK,
        "Adam's state for Llama 3.1 with 8 billion parameters. The chart writes GB for 2**30 bytes.",
        Figure("59.8 GiB"), GRADIENTS_GIVEN,
        moments, "Two float32 moments. A float32 copy of the weights, which mixed precision keeps, would be 29.9 more.",
    ),
    Claim(
        "playbook-activations", _PLAYBOOK,
        "Activations of Llama 3.1 with 8 billion parameters for 4,096 tokens. The chart writes GB for 2**30 bytes.",
        Figure("17.0 GiB"), _FORWARD, partial(activations, LLAMA_8B, 1, 4096),
        "34 bytes for each number of a block's input, as in GPT-3. Llama's gated layer keeps four arrays 3.5 times as wide.",
    ),
    Claim(
        "playbook-predictor", _PREDICTOR,
        "The weights in 16 bits of its preset Llama 3 8B, by its formula. It writes GB for 2**30 bytes.",
        Figure("12.24 GiB"), COUNTED, llama_8b_weights,
        "It counts 12 h^2 + 13 h numbers a layer, as GPT-3 has, and 30,522 words instead of 128,256.",
    ),
]  # fmt: skip
