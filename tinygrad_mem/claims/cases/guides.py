"""A guide's table: BERT-large on one GPU, with one technique after another, as the driver reads it.

A reading is what the allocator has reserved, and beside it the context and the kernels, whose size is not the program's.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from ..claim import Claim, Counted, Extra, Figure, Publication
from .states import ANATOMY

MIB = 1 << 20
CONTEXT = 1343 * MIB
"""What the guide reads before the model is loaded: context, kernels, and PyTorch's first segment of 2 MiB."""
LATER = Extra("kernels and libraries that are loaded later than the first reading", 0, 512 * MIB)


def _runs() -> Any:
    """The programs, which import PyTorch and transformers."""
    return import_module("..transformers_runs", __package__)


def weights() -> Counted:
    track = _runs().bert_weights()
    return Counted(CONTEXT + track.peak_reserved - 2 * MIB, track=track)


def training(batch: int, recomputed: bool = False, half: bool = False, rule: str = "adamw") -> Counted:
    track = _runs().bert_training(batch, recomputed, half, rule)
    scores = (1 if recomputed else 24) * batch * 16 * 512 * 512 * 4
    kept = Extra("an array of float32 scores in each layer that PyTorch of 2022 may also have kept", 0, scores)
    return Counted(CONTEXT + track.peak_reserved - 2 * MIB, (kept, LATER), track)


_ONE_GPU = Publication(
    "Hugging Face, Efficient training on a single GPU", "https://huggingface.co/docs/transformers/v4.21.0/perf_train_gpu_one"
)
_NEEDS = ("torch", "transformers")
_RESERVED = "{} in PyTorch, predicted; what its allocator reserves, beside the 1,343 MiB that were there before"
_WHY = "The guide is of January 2022: PyTorch's kernels and the library's model were others."
_ONE = "batches of 1 x 512 tokens, each block recomputed, float16 by autocast"


def _row(name: str, says: str, stated: str, seconds: float, batch: int = 1, why: str = _WHY, **options: Any) -> Claim:
    words = f"The driver's reading after training BERT-large: {says}. The guide writes MB for 2**20 bytes."
    find = partial(training, batch, **options)
    return Claim(
        f"bert-large-{name}", _ONE_GPU, words, Figure(stated), _RESERVED.format("two steps"), find, why, _NEEDS, seconds
    )


CLAIMS = [
    Claim(
        "bert-large-weights", ANATOMY, "The driver's reading after BERT-large was moved to the GPU.", Figure("2,631 MiB"),
        _RESERVED.format("the same"), weights,
        "The guide writes MB for 2**20 bytes. 1,279 MiB of weights become 1,288 by the allocator's segments.", _NEEDS, 6,
    ),
    _row("training", "batches of 4 x 512 tokens, AdamW", "14,949 MiB", 9, 4),
    _row("accumulated", "4 batches of 1 x 512 tokens a step, AdamW", "8,681 MiB", 6),
    _row("recomputed", "4 batches of 1 x 512 tokens a step, each block recomputed, AdamW", "6,775 MiB", 6, recomputed=True),
    _row("half", "batches of 4 x 512 tokens, float16 by autocast, AdamW", "13,939 MiB", 8, 4, half=True),
    _row("half-recomputed", f"{_ONE}, AdamW", "7,275 MiB", 8, recomputed=True, half=True),
    _row("adafactor", "batches of 4 x 512 tokens, Adafactor", "12,295 MiB", 8, 4, rule="adafactor"),
    _row("adafactor-all", f"{_ONE}, Adafactor", "4,847 MiB", 9, recomputed=True, half=True, rule="adafactor"),
    _row("adam8bit", "batches of 4 x 512 tokens, Adam in 8 bits", "13,085 MiB", 5, 4, rule="adam8bit"),
    _row("adam8bit-all", f"{_ONE}, Adam in 8 bits", "5,363 MiB", 6, recomputed=True, half=True, rule="adam8bit"),
]  # fmt: skip
