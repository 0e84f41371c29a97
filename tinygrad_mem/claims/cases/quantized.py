"""Weights in 4 and 8 bits, and training with LoRA beside them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory

from ...memory import Track
from ...models.precision import Step
from ...recompute.blocks import checkpoint_blocks
from ...techniques import lora, quantize_frozen
from ...techniques.quantized import QuantizedLinear
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread
from .states import FACTORY, READING, llama_of


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
def lora_step(
    sizes: str, rank: int, tokens: int, kind: str | None, targets: tuple[str, ...] | str = "all-linear", batch: int = 1
) -> Track:
    """A step of LoRA on all linear layers, or on ``targets``, each block recomputed; the mark "loaded" comes before.

    The optimizer's state is there from the beginning, as in every step but the first.
    """

    def step() -> None:
        model: Any = Step("bfloat16", "cpu").make(llama_of(sizes))
        if kind is not None:
            quantize_frozen(model, kind)
        memory.mark("loaded")
        lora(model, rank, dtype=tm.bfloat16, target_modules=targets)
        checkpoint_blocks(model, "every-block")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = tm.optim.AdamW(trained, state_dtype=tm.float32)
        for parameter in trained:
            parameter.grad = tm.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        ids = tm.zeros(batch, tokens, dtype=tm.int64)
        model.loss(ids, ids).backward()
        optimizer.step()

    return memory.predict(step)


def training(sizes: str, rank: int, kind: str | None, *more: Extra) -> Counted:
    """The peak of training on 512 tokens, after the weights are there; up to 4,096 tokens beside."""
    short, long = (_trained_peak(lora_step(sizes, rank, tokens, kind)) for tokens in (512, 4096))
    parts = (Extra("sequences of up to 4,096 tokens", 0, long - short), *more)
    return Counted(short, parts, lora_step(sizes, rank, 512, kind))


def alpaca(sizes: str) -> Counted:
    """As the repository trains: rank 8 on queries and values, 4 sequences of 256 tokens, linear layers in 8 bits."""
    track = lora_step(sizes, 8, 256, "int8", ("q_proj", "v_proj"), 4)
    return Counted(_trained_peak(track), (READING,), track)


def adapters() -> int:
    """The numbers of LoRA's matrices of rank 8 on Llama's queries and values."""
    with tm.device("meta"):
        model = lora(Step("bfloat16", "cpu").make(llama_of("llama-2-7b")), 8, target_modules=["q_proj", "v_proj"])
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _trained_peak(track: Track) -> int:
    return track.at_peak("loaded").used


_QLORA = paper("2305.14314", "Dettmers et al., QLoRA, 2023")
_LORA = "a step of LoRA of rank {} on all linear layers, blocks recomputed, 512 tokens, predicted; the peak after loading"
_ALPACA = "a step of LoRA of rank 8 on queries and values, blocks recomputed, 4 x 256 tokens, predicted; the peak after loading"
_READ = (
    "The thread's numbers are readings, which include another kernel's workspaces and the context: their bytes are not known."
)
_LITGPT = Publication(
    "LitGPT, resource tables", "https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md"
)
_LENGTH = "The table names no length, and activations grow with it."
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
        lambda: Counted(_trained_peak(lora_step("65b", 64, 512, "nf4")), track=lora_step("65b", 64, 512, "nf4")), seconds=3,
    ),
    Claim(
        "llama-factory-qlora", FACTORY, "LoRA beside 7 billion parameters in 4 bits. The table is an estimate.",
        Figure("about 6 GB"), _LORA.format(8), partial(training, "llama-2-7b", 8, "nf4"), _LENGTH, seconds=3,
    ),
    Claim(
        "llama-factory-lora", FACTORY, "LoRA beside 7 billion parameters in 16 bits. The table is an estimate.",
        Figure("about 16 GB"), _LORA.format(8), partial(training, "llama-2-7b", 8, None), _LENGTH, seconds=3,
    ),
    Claim(
        "llama-factory-qlora-8bit", FACTORY, "LoRA beside 7 billion parameters in 8 bits. The table is an estimate.",
        Figure("10 GB"), _LORA.format(8), partial(training, "llama-2-7b", 8, "int8", READING), _LENGTH, seconds=3,
    ),
    Claim(
        "llama-factory-qlora-70b", FACTORY, "LoRA beside 70 billion parameters in 4 bits. The table is an estimate.",
        Figure("about 48 GB"), _LORA.format(8), partial(training, "llama-2-70b", 8, "nf4", READING), _LENGTH, seconds=5,
    ),
    Claim(
        "litgpt-trained", _LITGPT, "What LoRA of rank 8 trains of Llama 2 with 7 billion parameters.",
        Figure("4,194,304 parameters"), "LoRA is put on queries and values on meta, and its numbers are counted", adapters,
    ),
    Claim(
        "litgpt-double-quantization", _LITGPT,
        "What quantizing the scales of NF4 saves in training Llama 2 with 7 billion parameters: 14.14 less 13.84 GB.",
        Figure("0.30 GB"), _QUANTIZED + ", both ways",
        lambda: weights("llama-2-7b", "nf4", False)[0] - weights("llama-2-7b", "nf4", True)[0],
    ),
    Claim(
        "litgpt-double-quantization-13b", _LITGPT,
        "What quantizing the scales of NF4 saves in training Llama 2 with 13 billion parameters: 23.14 less 22.55 GB.",
        Figure("0.59 GB"), _QUANTIZED + ", both ways",
        lambda: weights("llama-2-13b", "nf4", False)[0] - weights("llama-2-13b", "nf4", True)[0], seconds=1,
    ),
    Claim(
        "alpaca-lora-121", thread("tloen/alpaca-lora", 121),
        "Training LoRA beside Llama of 7 billion parameters in 8 bits, as a user read it: 8 to 10 GB.",
        Figure("10 GB"), _ALPACA, partial(alpaca, "llama-2-7b"), _READ, seconds=2,
    ),
    Claim(
        "alpaca-lora-121-13b", thread("tloen/alpaca-lora", 121),
        "Training LoRA beside Llama of 13 billion parameters in 8 bits, as a user read it: 16 to 17 GB.",
        Figure("17 GB"), _ALPACA, partial(alpaca, "llama-2-13b"), _READ, seconds=2,
    ),
    Claim(
        "alpaca-lora-450", thread("tloen/alpaca-lora", 450),
        "Weights of Llama with 7 billion parameters in 8 bits, as a user expects.", Figure("4 GB"),
        "the model is made on meta, and its linear layers are quantized in int8", lambda: weights("llama-2-7b", "int8")[0],
        "A byte for each number of the linear layers; embedding and output in 16 bits.",
    ),
]  # fmt: skip
