"""The bytes of a parameter, its gradient and its state in the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category, Track
from ...models.llama import llama
from ...models.precision import Step
from ...models.published import PUBLISHED
from ...models.resnet import resnet50
from ...techniques import optimizer_in_backward
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread
from .parameters import count

KEPT = (Category.PARAMETER, Category.MASTER_WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)
"""What there is of a parameter between steps."""
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
    found = track.by_category("updated")
    return sum(found.get(category, 0) for category in categories or KEPT)


def a_parameter(make: Callable[[], nn.Module], rule: Callable[[Any], Any], **options: Any) -> Counted:
    """Bytes of a parameter, its gradient and its state."""
    track = stepped(make, rule, **options)
    return Counted(Fraction(kept(track), count(make)), track=track)


def bert_base_cased() -> nn.Module:
    """The parameters of bert-base-cased: three embeddings, 12 layers, a pooler."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
    embeddings = [nn.Embedding(rows, 768) for rows in (28_996, 512, 2)]
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return nn.ModuleList([*embeddings, nn.LayerNorm(768), encoder, nn.Linear(768, 768)])


def llama_of(name: str) -> Callable[[], nn.Module]:
    """Makes a published language model."""
    return partial(llama, PUBLISHED[name])


def masters(parameters: Any) -> tm.optim.Optimizer:
    """Adam with float32 copies of half-precision parameters."""
    return tm.optim.Adam(parameters, master_weights=True)


def adam() -> Counted:
    track = stepped(bert_base_cased, tm.optim.Adam)
    return Counted(Fraction(kept(track, Category.OPTIMIZER_STATE), kept(track, Category.PARAMETER)), track=track)


def eight_bit() -> Fraction:
    sizes = [kept(stepped(bert_base_cased, rule), Category.OPTIMIZER_STATE) for rule in (tm.optim.Adam, tm.optim.Adam8bit)]
    return 1 - Fraction(sizes[1], sizes[0])


def adafactor() -> Counted:
    make = llama_of("llama-3.2-3b")
    track = stepped(make, tm.optim.Adafactor)
    return Counted(Fraction(kept(track, Category.OPTIMIZER_STATE), count(make)), track=track)


def bert_in_half() -> Counted:
    track = stepped(bert_base_cased, masters, dtype="float16")
    return Counted(kept(track), track=track)


@cache
def _llama_step(in_backward: bool) -> Track:
    """Two steps of one token with Llama's 7 billion parameters: AdamW with masters, or SGD in backward."""

    def steps() -> None:
        model: Any = Step("bfloat16", "cpu").make(llama_of("llama-2-7b"))
        if in_backward:
            optimizer = tm.optim.SGD(model.parameters(), lr=1e-3)
            optimizer_in_backward(optimizer)
        else:
            optimizer = tm.optim.AdamW(model.parameters(), master_weights=True)
        for _ in range(2):
            model.loss(tm.zeros(1, 1, dtype=tm.int64), tm.zeros(1, 1, dtype=tm.int64)).backward()
            if not in_backward:
                optimizer.step()
                optimizer.zero_grad()

    return memory.predict(steps)


def lomo() -> Counted:
    share = Fraction(_llama_step(True).peak, _llama_step(False).peak)
    baseline = _llama_step(False).peak
    larger = Fraction(_llama_step(True).peak, baseline + 4 * count(llama_of("llama-2-7b")))
    return Counted(share, (Extra("float32 gradients in the baseline, up to 4 bytes a parameter more", larger - share, 0),))


def galore() -> Fraction:
    """Embedding and output are left to AdamW, as in the paper's experiments."""

    def rule(parameters: list[Any]) -> tm.optim.Optimizer:
        outer = [p for p in parameters if 32_000 in p.shape]
        inner = [p for p in parameters if 32_000 not in p.shape]
        return tm.optim.GaLore([{"params": inner}, {"params": outer, "rank": 1 << 20}], rank=1024)

    return 1 - Fraction(*(_llama_state(each) for each in (rule, tm.optim.AdamW)))


def _llama_state(rule: Callable[[Any], Any]) -> int:
    return kept(stepped(llama_of("llama-2-7b"), rule), Category.OPTIMIZER_STATE)


def adam_mini() -> Fraction:
    return 1 - Fraction(*(_llama_state(each) for each in (tm.optim.AdamMini, tm.optim.AdamW)))


_ANATOMY = Publication(
    "Hugging Face, Model training anatomy", "https://huggingface.co/docs/transformers/v4.38.2/model_memory_anatomy"
)
_ESTIMATE = Publication(
    "Hugging Face, accelerate estimate-memory", "https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator"
)
FACTORY = Publication("LLaMA-Factory, hardware requirement", "https://github.com/hiyouga/LLaMA-Factory#hardware-requirement")
_GRADIENTS_GIVEN = "one step of the optimizer on given gradients, predicted; bytes after it"

CLAIMS = [
    Claim(
        "adam-state", thread("pytorch/pytorch", 109581), "Adam's state, in times of the parameters.", Figure("2 times"),
        _GRADIENTS_GIVEN + ", for BERT", adam, "With the gradient, training keeps four times the parameters' bytes.",
    ),
    Claim(
        "mixed-precision-18", _ANATOMY,
        "A parameter under AdamW in mixed precision: two copies of the weight, a float32 gradient, two moments.",
        Figure("18 bytes a parameter"), _GRADIENTS_GIVEN + ", for ResNet-50",
        partial(a_parameter, resnet50, masters, dtype="float16", wide=True),
        "That is 2 bytes more than in float32: only activations are halved.",
    ),
    Claim(
        "zero-16-bytes", paper("1910.02054", "Rajbhandari et al., ZeRO, 2020, section 3.1"),
        "A parameter under Adam in mixed precision, with float16 gradients.",
        Figure("16 bytes a parameter"), _GRADIENTS_GIVEN + ", for ResNet-50",
        partial(a_parameter, resnet50, masters, dtype="float16"),
        "As many as in float32: only activations are halved.",
    ),
    Claim(
        "eight-bit-optimizers", Publication("bitsandbytes, 8-bit optimizers",
        "https://huggingface.co/docs/bitsandbytes/optimizers"),
        "What an 8-bit optimizer saves of the optimizer's state.", Figure("75 %"),
        _GRADIENTS_GIVEN + ", of Adam and of Adam in 8 bits, for BERT",
        eight_bit, "Each moment takes a byte, and 4 bytes for each block of 2,048; biases and norms stay in 32 bits.",
    ),
    Claim(
        "adafactor-four-bytes",
        Publication("Hugging Face, GPU training guide", "https://huggingface.co/docs/transformers/v4.38.2/perf_train_gpu_one"),
        "Adafactor's state for a model of 3 billion parameters.", Figure("about 4 bytes a parameter"),
        _GRADIENTS_GIVEN + ", for Llama 3.2 of 3 billion parameters", adafactor,
        "Without momentum, as it is used, it keeps a row and a column of each matrix. 4 bytes are one full moment.",
        seconds=2,
    ),
    Claim(
        "estimate-memory-weights", _ESTIMATE, "The float32 weights of bert-base-cased. The table writes MB for 2**20 bytes.",
        Figure("418.18 MiB"), "the network is made on meta, and its parameters are counted",
        lambda: 4 * count(bert_base_cased),
        "A slip of the pen: four times the table's own row for int8, 103.29, is 413.16.",
    ),
    Claim(
        "estimate-memory-half",
        _ESTIMATE, "Training bert-base-cased in float16 with Adam. The table writes MB for 2**20 bytes.",
        Figure("826.36 MiB"), _GRADIENTS_GIVEN + ", in float16 with float32 copies", bert_in_half,
        "The tool takes four times the float16 weights. Moments and the copy are float32: 16 bytes a parameter instead of 8.",
    ),
    Claim(
        "llama-factory-full", FACTORY, "Full training of 7 billion parameters in mixed precision. The table is an estimate.",
        Figure("about 120 GB"), _GRADIENTS_GIVEN + ", for Llama 2 of 7 billion parameters",
        lambda: kept(stepped(llama_of("llama-2-7b"), masters, dtype="bfloat16", wide=True)),
        "18 bytes a parameter, without any activation.", seconds=1,
    ),
    Claim(
        "alst-144", paper("2506.13996", "Bekman et al., Arctic long sequence training, 2025"),
        "Weights, gradients and optimizer state of Llama 3.1 with 8 billion parameters in mixed precision.", Figure("144 GiB"),
        _GRADIENTS_GIVEN, lambda: kept(stepped(llama_of("llama-3.1-8b"), masters, dtype="bfloat16", wide=True)),
        "18 bytes for each of 8 billion parameters are 144 GB of 10**9 bytes.", seconds=1,
    ),
    Claim(
        "stanford-alpaca-322", thread("tatsu-lab/stanford_alpaca", 322),
        "Full training of Llama with 7 billion parameters in float32.",
        Figure("about 112 GB"), _GRADIENTS_GIVEN, lambda: kept(stepped(llama_of("llama-2-7b"), tm.optim.AdamW)),
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
        "galore", paper("2403.03507", "Zhao et al., GaLore, 2024, abstract"),
        "What GaLore saves of the optimizer's state: Llama of 7 billion parameters, rank 1,024.", Figure("at most 65.5 %"),
        _GRADIENTS_GIVEN + ", of AdamW and of GaLore on the blocks' matrices", galore,
        "A matrix of n x m keeps 1,024 (n + 2 m) numbers instead of 2 n m.", seconds=2,
    ),
    Claim(
        "adam-mini", Publication("Adam-mini, README", "https://github.com/zyushun/Adam-mini"),
        "What Adam-mini saves of the optimizer's state.", Figure("50 %"),
        _GRADIENTS_GIVEN + ", of AdamW and of Adam-mini, for Llama of 7 billion parameters", adam_mini,
        "One of two moments goes; a number for each row stays.", seconds=2,
    ),
    Claim(
        "qlora-780", paper("2305.14314", "Dettmers et al., QLoRA, 2023, abstract"),
        "Full 16-bit training of a model of 65 billion parameters.", Figure("at least 780 GB"),
        "one step of Adam with 16-bit weights, gradients given in 16 bits, moments in float32, predicted",
        lambda: kept(stepped(partial(llama, LLAMA_65B), lambda p: tm.optim.Adam(p, state_dtype=tm.float32), dtype="bfloat16")),
        "12 bytes a parameter; activations come on top.", seconds=2,
    ),
    Claim(
        "lomo", paper("2306.09782", "Lv et al., Full parameter fine-tuning for LLMs with limited resources, 2023, abstract"),
        "SGD that steps in backward, in memory of AdamW in mixed precision.", Figure("10.8 %"),
        "two steps of one token of Llama with 7 billion parameters, predicted, each way: the ratio of the peaks", lomo,
        "With float16 gradients the baseline has 16 bytes a parameter. A baseline with float32 gradients as well has 20.",
        seconds=6,
    ),
]  # fmt: skip
