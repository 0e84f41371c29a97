"""Logits: the scores of all words for all tokens, from which the loss of a language model is computed."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category, Track
from ...nn import functional as F
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread


@cache
def head(tokens: int, vocabulary: int, dtype: Any, width: int = 64, tile: int | None = None) -> Track:
    """The output projection and its loss: mark "logits", or with ``tile`` "backward ends"."""

    def run() -> None:
        hidden = tm.randn(tokens, width, dtype=dtype, requires_grad=True)
        weight = tm.randn(vocabulary, width, dtype=dtype, requires_grad=True)
        targets = tm.zeros(tokens, dtype=tm.int64)
        if tile is not None:
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=tile)
            F.linear_cross_entropy(hidden, weight, targets, options=options).backward()
            memory.mark("backward ends")
            return
        logits = F.linear(hidden, weight)
        memory.mark("logits")
        F.cross_entropy(logits, targets).backward()

    return memory.predict(run)


def logits(tokens: int, vocabulary: int, dtype: Any = tm.bfloat16) -> Counted:
    """Bytes of the logits."""
    track = head(tokens, vocabulary, dtype)
    return Counted(max(block.requested for block in track.live("logits")), track=track)


def gradients_alone() -> Counted:
    """The gradients of 8,192 states and of 256,000 rows of width 2,304: all that a loss without logits must leave."""
    track = head(8192, 256_000, tm.bfloat16, 2304, 1024)
    found = track.by_category("backward ends")[Category.GRADIENT]
    return Counted(found, (Extra("sums and locks of its kernel", 0, 8 << 20),), track)


def saved_by_tiles() -> int:
    """The bytes that a loss in tiles of 1,024 tokens saves, for Llama 3's vocabulary and 16,384 tokens in float32."""
    sizes = (16_384, 128_256, tm.float32, 4096)
    return head(*sizes).peak - head(*sizes, 1024).peak


CUT_CROSS_ENTROPY = Publication("Cut cross-entropy, README", "https://github.com/apple/ml-cross-entropy#readme")
_LOGITS = "the output projection runs on meta; the block of its result"

CLAIMS = [
    Claim(
        "trl-3678", thread("huggingface/trl", 3678), "Logits in bfloat16 of 2 x 256 tokens and 151,665 words.",
        Figure("310 MB"), _LOGITS, partial(logits, 2 * 256, 151_665),
        "In float32 they are 310,609,920 bytes; in bfloat16, half of that.",
    ),
    Claim(
        "trl-6858", thread("huggingface/trl", 6858, "pull"), "Logits in bfloat16 of 16,384 tokens and 248,320 words.",
        Figure("16 GB"), _LOGITS, partial(logits, 16_384, 248_320), "In float32 they are 16.3 GB; in bfloat16, half of that.",
    ),
    Claim(
        "cut-cross-entropy-logits", CUT_CROSS_ENTROPY, "Logits in bfloat16 of 8,192 tokens and 256,000 words.",
        Figure("4,000 MiB"), _LOGITS, partial(logits, 8192, 256_000), "A step needs them twice: their gradient is as large.",
    ),
    Claim(
        "cut-cross-entropy", CUT_CROSS_ENTROPY,
        "What a loss without logits takes in forward and backward: 8,192 tokens, 256,000 words. MB are 2**20 bytes.",
        Figure("1,164.0 MiB"), "the head and its loss in tiles run on meta; the two gradients that they leave",
        gradients_alone, "Only the gradients are as large as that. What else its kernel allocates depends on the kernel.",
    ),
    Claim(
        "alst-tiled-loss", paper("2506.13996", "Bekman et al., Arctic long sequence training, 2025"),
        "What a loss in tiles saves for Llama 3's vocabulary and 16k tokens.", Figure("at least 14 GiB"),
        "head and loss of 16,384 tokens in float32, whole and in tiles of 1,024, predicted: the difference of the peaks",
        saved_by_tiles,
    ),
]  # fmt: skip
