"""The bytes of a parameter, its gradient and its state in the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category, Track
from ...models.llama import llama
from ...models.precision import Step
from ...models.published import PUBLISHED
from ...models.resnet import resnet50
from ..claim import Claim, Counted, Extra, Figure, Publication, bytes_at, paper, thread
from .parameters import count

KEPT = (Category.PARAMETER, Category.MASTER_WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)
"""What there is of a parameter between steps."""
READING = Extra("context of CUDA, kernels, and segments of the allocator that are not full", 3 * 10**8, 3 * 10**9)
"""The bytes that the driver shows beyond the arrays. Kernels of other libraries decide them, so they are not known."""
LLAMA_65B = PUBLISHED["llama-2-7b"] | {
    "hidden_size": 8192, "intermediate_size": 22_016, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 64, "max_position_embeddings": 2048,
}  # fmt: skip
"""Llama 1 of 65 billion parameters. That of 7 billion has the shapes of Llama 2."""


def stepped(make: Callable[[], nn.Module], rule: Callable[[Any], Any], dtype: str = "float32", wide: bool = False) -> Track:
    """The track of one step of an optimizer, whose gradients are given; the mark "updated" follows it.

    ``wide``: gradients in float32, whatever the parameters are.
    """

    def step() -> None:
        model = Step(dtype, "cpu").make(make)
        optimizer = rule(list(model.parameters()))
        for parameter in model.parameters():
            if wide:
                parameter.grad_dtype = tm.float32
            parameter.grad = tm.empty(parameter.shape, dtype=tm.float32 if wide else parameter.dtype)
        optimizer.step()
        memory.mark("updated")

    return memory.predict(step)


def kept(track: Track, *categories: Category) -> int:
    """Bytes of these categories after the step."""
    return bytes_at("updated", track, categories or KEPT)


def a_parameter(make: Callable[[], nn.Module], rule: Callable[[Any], Any], *categories: Category, **options: Any) -> Counted:
    """Bytes of a parameter, its gradient and its state; or of these categories alone."""
    track = stepped(make, rule, **options)
    return Counted(Fraction(kept(track, *categories), count(make)), track=track)


def bert_base_cased() -> nn.Module:
    """The parameters of bert-base-cased: three embeddings, 12 layers, a pooler."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
    embeddings = [nn.Embedding(rows, 768) for rows in (28_996, 512, 2)]
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return nn.ModuleList([*embeddings, nn.LayerNorm(768), encoder, nn.Linear(768, 768)])


def mixed_precision(name: str) -> int:
    """Bytes of a published language model after a step: bfloat16 weights, float32 copies, gradients and moments."""
    return kept(stepped(llama_of(name), masters, dtype="bfloat16", wide=True))


def llama_of(name: str) -> Callable[[], nn.Module]:
    """Makes a published language model; ``"65b"``: Llama 1 of 65 billion parameters."""
    return partial(llama, LLAMA_65B if name == "65b" else PUBLISHED[name])


def masters(parameters: Any) -> tm.optim.Optimizer:
    """Adam with float32 copies of half-precision parameters."""
    return tm.optim.Adam(parameters, master_weights=True)


def adam() -> Counted:
    track = stepped(bert_base_cased, tm.optim.Adam)
    return Counted(Fraction(kept(track, Category.OPTIMIZER_STATE), kept(track, Category.PARAMETER)), track=track)


def bert_in_half() -> Counted:
    track = stepped(bert_base_cased, masters, dtype="float16")
    return Counted(kept(track), track=track)


ANATOMY = Publication(
    "Hugging Face, Model training anatomy", "https://huggingface.co/docs/transformers/v4.38.2/model_memory_anatomy"
)
_ESTIMATE = Publication(
    "Hugging Face, accelerate estimate-memory", "https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator"
)
FACTORY = Publication("LLaMA-Factory, hardware requirement", "https://github.com/hiyouga/LLaMA-Factory#hardware-requirement")
GRADIENTS_GIVEN = "one step of the optimizer on given gradients, predicted; bytes after it"

CLAIMS = [
    Claim(
        "adam-state", thread("pytorch/pytorch", 109581), "Adam's state, in times of the parameters.", Figure("2 times"),
        GRADIENTS_GIVEN + ", for BERT", adam, "With the gradient, training keeps four times the parameters' bytes.",
    ),
    Claim(
        "mixed-precision-18", ANATOMY,
        "A parameter under AdamW in mixed precision: two copies of the weight, a float32 gradient, two moments.",
        Figure("18 bytes a parameter"), GRADIENTS_GIVEN + ", for ResNet-50",
        partial(a_parameter, resnet50, masters, dtype="float16", wide=True),
        "That is 2 bytes more than in float32: only activations are halved.",
    ),
    Claim(
        "zero-16-bytes", paper("1910.02054", "Rajbhandari et al., ZeRO, 2020, section 3.1"),
        "A parameter under Adam in mixed precision, with float16 gradients.", Figure("16 bytes a parameter"),
        GRADIENTS_GIVEN + ", for ResNet-50", partial(a_parameter, resnet50, masters, dtype="float16"),
        "As many as in float32: only activations are halved.",
    ),
    Claim(
        "estimate-memory-weights", _ESTIMATE, "The float32 weights of bert-base-cased. The table writes MB for 2**20 bytes.",
        Figure("418.18 MiB"), "the network is made on meta, and its parameters are counted", lambda: 4 * count(bert_base_cased),
        "A slip of the pen: four times the table's own row for int8, 103.29, is 413.16.",
    ),
    Claim(
        "estimate-memory-half",
        _ESTIMATE, "Training bert-base-cased in float16 with Adam. The table writes MB for 2**20 bytes.",
        Figure("826.36 MiB"), GRADIENTS_GIVEN + ", in float16 with float32 copies", bert_in_half,
        "The tool takes four times the float16 weights. Moments and the copy are float32: 16 bytes a parameter instead of 8.",
    ),
    Claim(
        "llama-factory-full", FACTORY, "Full training of 7 billion parameters in mixed precision. The table is an estimate.",
        Figure("about 120 GB"), GRADIENTS_GIVEN + ", for Llama 2 of 7 billion parameters",
        partial(mixed_precision, "llama-2-7b"),
        "18 bytes a parameter, without any activation.", seconds=1,
    ),
    Claim(
        "llama-factory-full-70b", FACTORY, "Full training of 70 billion parameters in mixed precision: an estimate.",
        Figure("about 1,200 GB"), GRADIENTS_GIVEN + ", for Llama 2 of 70 billion parameters",
        partial(mixed_precision, "llama-2-70b"),
        "The table's own formula, 18 bytes a parameter, is 1,260 GB.", seconds=2,
    ),
    Claim(
        "llama-factory-pure", FACTORY, "Full training of 7 billion parameters, all of it in bfloat16: an estimate.",
        Figure("about 60 GB"), GRADIENTS_GIVEN + ", for Llama 2 of 7 billion parameters",
        lambda: Counted(kept(stepped(llama_of("llama-2-7b"), tm.optim.AdamW, dtype="bfloat16")), (READING,)),
        "The table's own formula, 8 bytes a parameter, is 56 GB. There are 6.74 billion.", seconds=1,
    ),
    Claim(
        "alst-144", paper("2506.13996", "Bekman et al., Arctic long sequence training, 2025"),
        "Weights, gradients and optimizer state of Llama 3.1 with 8 billion parameters in mixed precision.", Figure("144 GiB"),
        GRADIENTS_GIVEN, partial(mixed_precision, "llama-3.1-8b"),
        "18 bytes for each of 8 billion parameters are 144 GB of 10**9 bytes.", seconds=1,
    ),
    Claim(
        "stanford-alpaca-322", thread("tatsu-lab/stanford_alpaca", 322),
        "Full training of Llama with 7 billion parameters in float32.",
        Figure("about 112 GB"), GRADIENTS_GIVEN, lambda: kept(stepped(llama_of("llama-2-7b"), tm.optim.AdamW)),
        "7 x 4 x 4. There are 6.74 billion parameters, and activations come on top.", seconds=1,
    ),
    Claim(
        "llama-3-70b-full", thread("huggingface/blog", 2245), "Full training of Llama 3.1 with 70 billion parameters.",
        Figure("300 GB"), "one step of Adam on given gradients, all in bfloat16, predicted; bytes after it",
        lambda: kept(stepped(llama_of("llama-3-70b"), tm.optim.AdamW, dtype="bfloat16")),
        "8 bytes a parameter is the least that AdamW takes, all of it in 16 bits. The author agreed and raised the figure.",
        seconds=2,
    ),
    Claim(
        "qlora-780", paper("2305.14314", "Dettmers et al., QLoRA, 2023, abstract"),
        "Full 16-bit training of a model of 65 billion parameters.", Figure("at least 780 GB"),
        "one step of Adam with 16-bit weights, gradients given in 16 bits, moments in float32, predicted",
        lambda: kept(stepped(llama_of("65b"), lambda p: tm.optim.Adam(p, state_dtype=tm.float32), dtype="bfloat16")),
        "12 bytes a parameter; activations come on top.", seconds=2,
    ),
]  # fmt: skip
