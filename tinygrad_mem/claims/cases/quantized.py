"""Weights in 4 and 8 bits, and training with LoRA beside them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory

from ...memory import Track
from ...models.precision import Step
from ...recompute.blocks import checkpoint_blocks
from ...techniques import lora, quantize_frozen
from ...techniques.quantized import QuantizedLinear
from ..claim import Claim, Counted, Extra, Figure, paper, thread
from .states import FACTORY, llama_of


@cache
def weights(sizes: str, kind: str, double: bool | None = None) -> tuple[int, int]:
    """Bytes of a language model whose linear layers are quantized, and how many numbers these have."""
    with tm.device("meta"):
        model = Step("bfloat16", "cpu").make(llama_of(sizes))
        quantize_frozen(model, kind, double)
        layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
        arrays = [*model.parameters(), *model.buffers()]
        return sum(array.nbytes for array in arrays), sum(layer.in_features * layer.out_features for layer in layers)


def saved_by_double_quantization() -> Fraction:
    (single, numbers), (double, _) = (weights("llama-2-7b", "nf4", twice) for twice in (False, True))
    return Fraction(single - double, numbers)


@cache
def lora_step(sizes: str, rank: int, tokens: int) -> Track:
    """A step of LoRA on all linear layers, beside weights in NF4, each block recomputed; the mark "loaded" comes before.

    The optimizer's state is there from the beginning, as in every step but the first.
    """

    def step() -> None:
        model: Any = Step("bfloat16", "cpu").make(llama_of(sizes))
        quantize_frozen(model, "nf4")
        memory.mark("loaded")
        lora(model, rank, dtype=tm.bfloat16, target_modules="all-linear")
        checkpoint_blocks(model, "every-block")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = tm.optim.AdamW(trained, state_dtype=tm.float32)
        for parameter in trained:
            parameter.grad = tm.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        ids = tm.zeros(1, tokens, dtype=tm.int64)
        model.loss(ids, ids).backward()
        optimizer.step()

    return memory.predict(step)


def training() -> Counted:
    """The peak of training Llama 2 on 512 tokens, after the weights are there; up to 4,096 tokens beside."""
    short, long = (_trained_peak(lora_step("llama-2-7b", 8, tokens)) for tokens in (512, 4096))
    return Counted(short, (Extra("sequences of up to 4,096 tokens", 0, long - short),), lora_step("llama-2-7b", 8, 512))


def _trained_peak(track: Track) -> int:
    return track.at_peak("loaded").used


_QLORA = paper("2305.14314", "Dettmers et al., QLoRA, 2023")
_LORA = "a step of LoRA of rank {} on all linear layers, blocks recomputed, 512 tokens, predicted; the peak after loading"
_LENGTH = "The table names no length, and activations grow with it."
_QUANTIZED = "the model is made on meta, and its linear layers are quantized in NF4"

CLAIMS: list[Claim] = [
    Claim(
        "qlora-double-quantization", _QLORA, "What quantizing the scales of NF4 saves.", Figure("about 0.37 bits a parameter"),
        _QUANTIZED + ", both ways: Llama of 7 billion", saved_by_double_quantization,
        "4 bytes for 64 weights become one, and 4 for 16,384.",
    ),
    Claim(
        "qlora-48", _QLORA, "Training LoRA beside 65 billion parameters in NF4.", Figure("at most 48 GB"), _LORA.format(64),
        lambda: Counted(_trained_peak(lora_step("65b", 64, 512)), track=lora_step("65b", 64, 512)), seconds=3,
    ),
    Claim(
        "llama-factory-qlora", FACTORY, "LoRA beside 7 billion parameters in 4 bits. The table is an estimate.",
        Figure("about 6 GB"), _LORA.format(8), training, _LENGTH, seconds=3,
    ),
    Claim(
        "alpaca-lora-450", thread("tloen/alpaca-lora", 450),
        "Weights of Llama with 7 billion parameters in 8 bits, as a user expects.", Figure("4 GB"),
        "the model is made on meta, and its linear layers are quantized in int8", lambda: weights("llama-2-7b", "int8")[0],
        "A byte for each number of the linear layers; embedding and output in 16 bits.",
    ),
]  # fmt: skip
