"""LoRA: what is trained, and what the frozen weights still take."""

from __future__ import annotations

import tinygrad_mem as tm
from tinygrad_mem import nn

from ...memory import Category
from ...techniques import lora
from ..claim import Claim, Counted, Extra, Figure, paper
from .parameters import count
from .states import kept, stepped

LAYERS, WIDTH = 96, 12_288  # of GPT-3


def adapter() -> int:
    """Bytes of LoRA's matrices of rank 4, beside the projections of queries and values."""
    with tm.device("meta"):
        model = nn.ModuleList(nn.Linear(WIDTH, WIDTH, False, dtype=tm.float16) for _ in range(2 * LAYERS))
        lora(model, 4, target_modules=map(str, range(2 * LAYERS)), dtype=tm.float16)
        return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def gpt3() -> nn.Module:
    """GPT-3's parameters: 96 blocks of four square projections and two wide ones, norms, 50,257 tokens, 2,048 positions."""
    block = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    layers: list[nn.Module] = [nn.Embedding(50_257, WIDTH), nn.Embedding(2048, WIDTH)]
    layers += [nn.Linear(*sizes) for _ in range(LAYERS) for sizes in block]
    return nn.ModuleList([*layers, *(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS + 1))])


def fully_trained() -> Counted:
    """float16 weights and moments; gradients may all be there, or go one by one."""
    track = stepped(gpt3, tm.optim.Adam, dtype="float16")
    gradients = kept(track, Category.GRADIENT)
    return Counted(kept(track) - gradients, (Extra("float16 gradients: none, or all of them at once", 0, gradients),), track)


_LORA = paper("2106.09685", "Hu et al., LoRA: low-rank adaptation of large language models, 2021, section 4.2")
CLAIMS = [
    Claim(
        "lora-checkpoint", _LORA, "The checkpoint of LoRA of rank 4 on GPT-3's queries and values, in float16.",
        Figure("about 35 MB"), "LoRA is put on these 192 layers on meta, and its matrices are counted", adapter,
        "18,874,368 numbers of 2 bytes: 37.7 MB, or 36.0 MiB. 35 MB are the 350 GB of all weights, divided by ten thousand.",
    ),
    Claim(
        "lora-weights", _LORA, "All of GPT-3's weights in float16.", Figure("about 350 GB"),
        "the network is made on meta, and its parameters are counted", lambda: 2 * count(gpt3),
    ),
    Claim(
        "lora-gpt3-training", _LORA, "Training GPT-3 with Adam.", Figure("1.2 TB"),
        "one step of Adam on given gradients, all in float16, predicted: weights and moments", fully_trained,
        "Less than 16 bytes a parameter, 2.8 TB, which mixed precision takes. 6 to 8 bytes allow it: moments in float16.",
        seconds=1,
    ),
]  # fmt: skip
