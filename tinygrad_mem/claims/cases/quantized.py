"""Weights in 4 and 8 bits, and training with LoRA beside them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory

from ...memory import Track
from ...models.llama import llama
from ...models.precision import Step
from ...models.published import PUBLISHED
from ...recompute.blocks import checkpoint_blocks
from ...techniques import lora, quantize_frozen
from ...techniques.quantized import QuantizedLinear
from ..claim import Claim, Counted, Extra, Figure, paper, thread
from .states import FACTORY, LLAMA_65B


@cache
def weights(sizes: str, kind: str, double: bool | None = None) -> tuple[int, int]:
    """Bytes of a language model whose linear layers are quantized, and how many numbers these have."""
    config = LLAMA_65B if sizes == "65b" else PUBLISHED[sizes]
    with tm.device("meta"):
        model = Step("bfloat16", "cpu").make(partial(llama, config))
        quantize_frozen(model, kind, double)
        layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
        arrays = [*model.parameters(), *model.buffers()]
        return sum(array.nbytes for array in arrays), sum(layer.in_features * layer.out_features for layer in layers)


def saved_by_double_quantization() -> Fraction:
    (single, numbers), (double, _) = (weights("llama-2-7b", "nf4", twice) for twice in (False, True))
    return Fraction(single - double, numbers)


@cache
def lora_steps(sizes: str, rank: int, tokens: int, kind: str | None) -> Track:
    """Two steps of LoRA on all linear layers, on one sequence, each block recomputed; the mark "loaded" comes before."""
    config: Any = LLAMA_65B if sizes == "65b" else PUBLISHED[sizes]

    def steps() -> None:
        model: Any = Step("bfloat16", "cpu").make(partial(llama, config))
        if kind is not None:
            quantize_frozen(model, kind)
        memory.mark("loaded")
        lora(model, rank, dtype=tm.bfloat16)
        checkpoint_blocks(model, "every-block")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = tm.optim.AdamW(trained, state_dtype=tm.float32)
        ids = tm.zeros(1, tokens, dtype=tm.int64)
        for _ in range(2):
            optimizer.zero_grad()
            model.loss(ids, ids).backward()
            optimizer.step()

    return memory.predict(steps)


def training(sizes: str, rank: int, kind: str | None) -> Counted:
    """The peak of training on 512 tokens, after the weights are there; up to 4,096 tokens beside."""
    short, long = (_trained_peak(lora_steps(sizes, rank, tokens, kind)) for tokens in (512, 4096))
    return Counted(short, (Extra("sequences of up to 4,096 tokens", 0, long - short),), lora_steps(sizes, rank, 512, kind))


def _trained_peak(track: Track) -> int:
    return track.at_peak("loaded").used


_QLORA = paper("2305.14314", "Dettmers et al., QLoRA, 2023")
_LORA = "two steps of LoRA of rank {} on all linear layers, blocks recomputed, 512 tokens, predicted; the peak after loading"
_QUANTIZED = "the model is made on meta, and its linear layers are quantized in NF4"

CLAIMS: list[Claim] = [
    Claim(
        "qlora-double-quantization", _QLORA, "What quantizing the scales of NF4 saves.", Figure("about 0.37 bits a parameter"),
        _QUANTIZED + ", both ways: Llama of 7 billion", saved_by_double_quantization,
        "4 bytes for 64 weights become one, and 4 for 16,384.",
    ),
    Claim(
        "qlora-double-quantization-65b",
        _QLORA, "What quantizing the scales of NF4 saves for a model of 65 billion parameters.", Figure("about 3 GB"),
        _QUANTIZED + ", both ways", lambda: weights("65b", "nf4", False)[0] - weights("65b", "nf4", True)[0], seconds=2,
    ),
    Claim(
        "qlora-48", _QLORA, "Training LoRA beside 65 billion parameters in NF4.", Figure("at most 48 GB"), _LORA.format(64),
        lambda: Counted(_trained_peak(lora_steps("65b", 64, 512, "nf4")), track=lora_steps("65b", 64, 512, "nf4")), seconds=6,
    ),
    Claim(
        "llama-factory-qlora", FACTORY, "LoRA beside 7 billion parameters in 4 bits. The table is an estimate.",
        Figure("about 6 GB"),
        _LORA.format(8), partial(training, "llama-2-7b", 8, "nf4"), "The table names no length, and activations grow with it.",
        seconds=5,
    ),
    Claim(
        "llama-factory-lora", FACTORY, "LoRA beside 7 billion parameters in 16 bits. The table is an estimate.",
        Figure("about 16 GB"),
        _LORA.format(8), partial(training, "llama-2-7b", 8, None), "The table names no length, and activations grow with it.",
        seconds=5,
    ),
    Claim(
        "alpaca-lora-450", thread("tloen/alpaca-lora", 450),
        "Weights of Llama with 7 billion parameters in 8 bits, as somebody expects.",
        Figure("4 GB"), "the model is made on meta, and its linear layers are quantized in int8",
        lambda: weights("llama-2-7b", "int8")[0],
        "A byte for each number of the linear layers; embedding and output in 16 bits.",
    ),
]  # fmt: skip
