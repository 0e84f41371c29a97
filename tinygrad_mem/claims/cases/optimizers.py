"""Optimizers that need little memory: the state that they keep, and the bytes that this saves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category, Track
from ...models.precision import Step
from ...models.resnet import resnet50
from ...techniques import optimizer_in_backward
from ..claim import Claim, Counted, Extra, Figure, Publication, paper
from .parameters import count
from .quantized import weights
from .states import GRADIENTS_GIVEN, a_parameter, bert_base_cased, kept, llama_of, stepped

LLAMA_7B = llama_of("llama-2-7b")


def state_over(make: Callable[[], nn.Module], rule: Callable[[Any], Any], other: Callable[[Any], Any]) -> Fraction:
    """The state that an optimizer keeps, over that of another."""
    return Fraction(*(kept(stepped(make, each), Category.OPTIMIZER_STATE) for each in (rule, other)))


def saved_state(make: Callable[[], nn.Module], rule: Callable[[Any], Any], other: Callable[[Any], Any]) -> Fraction:
    """The share of another optimizer's state that one saves."""
    return 1 - state_over(make, rule, other)


def with_masters(rule: Callable[..., tm.optim.Optimizer], **options: Any) -> Fraction:
    """Bytes of a parameter's float32 copy and state, of ResNet-50 in float16."""
    track = stepped(resnet50, partial(rule, master_weights=True, **options), dtype="float16")
    return Fraction(kept(track, Category.MASTER_WEIGHT, Category.OPTIMIZER_STATE), count(resnet50))


@cache
def _llama_step(in_backward: bool, tokens: int = 1, rule: Callable[[list[Any]], Any] | None = None) -> Track:
    """Two steps of one sequence with Llama's 7 billion parameters: AdamW with masters, or SGD or another rule in backward."""

    def steps() -> None:
        model: Any = Step("bfloat16", "cpu").make(LLAMA_7B)
        if in_backward:
            optimizer = (rule or partial(tm.optim.SGD, lr=1e-3))(list(model.parameters()))
            optimizer_in_backward(optimizer)
        else:
            optimizer = tm.optim.AdamW(model.parameters(), master_weights=True)
        for _ in range(2):
            model.loss(*(tm.zeros(1, tokens, dtype=tm.int64) for _ in range(2))).backward()
            if not in_backward:
                optimizer.step()
                optimizer.zero_grad()

    return memory.predict(steps)


def lomo() -> Counted:
    share = Fraction(_llama_step(True).peak, _llama_step(False).peak)
    baseline = _llama_step(False).peak
    larger = Fraction(_llama_step(True).peak, baseline + 4 * count(LLAMA_7B))
    return Counted(share, (Extra("float32 gradients in the baseline, up to 4 bytes a parameter more", larger - share, 0),))


def on_blocks(rule: Callable[..., tm.optim.Optimizer], rank: int) -> Callable[[list[Any]], tm.optim.Optimizer]:
    """``rule`` of this rank on the matrices of Llama's blocks; embedding and output are left to AdamW, as in the papers."""

    def made(parameters: list[Any]) -> tm.optim.Optimizer:
        outer = [p for p in parameters if 32_000 in p.shape]
        inner = [p for p in parameters if 32_000 not in p.shape]
        return rule([{"params": inner}, {"params": outer, "rank": 1 << 20}], rank=rank)

    return made


def galore_in_bytes() -> Fraction:
    """A byte for each number of GaLore's moments, two for those of its projections, over Adam's moments of two bytes each."""
    with tm.device("meta"):
        model = LLAMA_7B()
        optimizer = on_blocks(tm.optim.GaLore, 1024)(list(model.parameters()))
        numbers: Counter[str] = Counter()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                numbers.update({name: math.prod(array.shape) for name, array in optimizer.kept(group, parameter).items()})
        small = numbers["exp_avg"] + numbers["exp_avg_sq"] + 2 * numbers["projection"]
        return 1 - Fraction(small, 2 * 2 * sum(parameter.numel() for parameter in model.parameters()))


def block() -> nn.Module:
    """The matrices of a block of Llama with 350 million parameters, width 1,024 and 2,736 inside."""
    sizes = [(1024, 1024)] * 4 + [(1024, 2736)] * 2 + [(2736, 1024)]
    return nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)


def apollo_7b() -> Counted:
    """A step of one sequence that updates in backward; the linear layers' weights in 8 bits, as the paper keeps them."""
    track = _llama_step(True, 256, on_blocks(tm.optim.APOLLOMini, 1))
    whole, in_bytes = 2 * count(LLAMA_7B), weights("llama-2-7b", "int8")[0]
    return Counted(track.peak - whole + in_bytes)


_APOLLO = Publication("APOLLO, README", "https://github.com/zhuhanqing/APOLLO#readme")
_COOKBOOK = Publication(
    "EleutherAI, cookbook, calc_transformer_mem.py",
    "https://github.com/EleutherAI/cookbook/blob/main/calc/calc_transformer_mem.py",
)
_COPY = GRADIENTS_GIVEN + ", for ResNet-50 in float16: the float32 copy and the state"
_APOLLO_STATES = GRADIENTS_GIVEN + ", of AdamW and of {}, for the matrices of a block of Llama with 350 million parameters"

CLAIMS = [
    Claim(
        "eight-bit-optimizers", Publication("bitsandbytes, 8-bit optimizers",
        "https://huggingface.co/docs/bitsandbytes/optimizers"),
        "What an 8-bit optimizer saves of the optimizer's state.", Figure("75 %"),
        GRADIENTS_GIVEN + ", of Adam and of Adam in 8 bits, for BERT",
        partial(saved_state, bert_base_cased, tm.optim.Adam8bit, tm.optim.Adam),
        "Each moment takes a byte, and 4 bytes for each block of 2,048; biases and norms stay in 32 bits.",
    ),
    Claim(
        "cookbook-adamw", _COOKBOOK, "What AdamW keeps in mixed precision, the float32 copy of the weight with it.",
        Figure("12 bytes a parameter"), _COPY, partial(with_masters, tm.optim.AdamW),
        "The weight and its gradient in 16 bits are 4 bytes more.",
    ),
    Claim(
        "cookbook-adam8bit", _COOKBOOK, "What Adam in 8 bits keeps in mixed precision, the float32 copy of the weight with it.",
        Figure("6 bytes a parameter"), _COPY, partial(with_masters, tm.optim.Adam8bit),
        "4 of the copy, and two bytes. The comment in the tool adds up 2 + 2 + 2.",
    ),
    Claim(
        "cookbook-momentum", _COOKBOOK, "What SGD with momentum keeps in mixed precision, the float32 copy with it.",
        Figure("8 bytes a parameter"), _COPY, partial(with_masters, tm.optim.SGD, lr=0.1, momentum=0.9),
    ),
    Claim(
        "adafactor-four-bytes",
        Publication("Hugging Face, GPU training guide", "https://huggingface.co/docs/transformers/v4.38.2/perf_train_gpu_one"),
        "Adafactor's state for a model of 3 billion parameters.", Figure("about 4 bytes a parameter"),
        GRADIENTS_GIVEN + ", for Llama 3.2 of 3 billion parameters",
        partial(a_parameter, llama_of("llama-3.2-3b"), tm.optim.Adafactor, Category.OPTIMIZER_STATE),
        "Without momentum it keeps a row and a column of each matrix. The guide's own reading with Adafactor, 12,295 MiB, "
        "is 8 bytes a parameter below AdamW's 14,949.", seconds=2,
    ),
    Claim(
        "galore", paper("2403.03507", "Zhao et al., GaLore, 2024, abstract"),
        "What GaLore saves of the optimizer's state: Llama of 7 billion parameters, rank 1,024.", Figure("at most 65.5 %"),
        GRADIENTS_GIVEN + ", of AdamW and of GaLore on the blocks' matrices",
        partial(saved_state, LLAMA_7B, on_blocks(tm.optim.GaLore, 1024), tm.optim.AdamW),
        "A matrix of n x m keeps 1,024 (n + 2 m) numbers instead of 2 n m.", seconds=2,
    ),
    Claim(
        "galore-8bit", paper("2403.03507", "Zhao et al., GaLore, 2024, abstract"),
        "What GaLore in 8 bits saves of the state of Adam in bfloat16: Llama of 7 billion parameters, rank 1,024.",
        Figure("at most 82.5 %"), "a byte for each number of the moments that GaLore keeps, two for each of its projections",
        galore_in_bytes, "82.5 % is reached if the projections, too, are kept in 8 bits.",
    ),
    Claim(
        "apollo", _APOLLO, "How many times less state than AdamW APOLLO of rank 128 keeps for Llama of 350 million parameters.",
        Figure("at most 8 times"), _APOLLO_STATES.format("APOLLO"),
        partial(state_over, block, tm.optim.AdamW, partial(tm.optim.APOLLO, rank=128)),
    ),
    Claim(
        "apollo-mini", _APOLLO, "How many times less state than AdamW APOLLO-Mini keeps for Llama of 350 million parameters.",
        Figure("at most 1,024 times"), _APOLLO_STATES.format("APOLLO-Mini"),
        partial(state_over, block, tm.optim.AdamW, partial(tm.optim.APOLLOMini, rank=1)),
        "It also keeps the length of each matrix's last update, here in a block of 512 bytes.",
    ),
    Claim(
        "apollo-7b", paper("2412.05270", "Zhu et al., APOLLO, 2024, abstract"),
        "Training Llama of 7 billion parameters by APOLLO-Mini with weights in 8 bits.", Figure("at most 12 GB"),
        "two steps in backward on 256 tokens, predicted; the peak, with the linear layers' weights in int8", apollo_7b,
        "AdamW keeps 32-bit moments of embedding and output here: 2.1 GB of it.", seconds=2,
    ),
    Claim(
        "adam-mini", Publication("Adam-mini, README", "https://github.com/zyushun/Adam-mini"),
        "What Adam-mini saves of the optimizer's state.", Figure("50 %"),
        GRADIENTS_GIVEN + ", of AdamW and of Adam-mini, for Llama of 7 billion parameters",
        partial(saved_state, LLAMA_7B, tm.optim.AdamMini, tm.optim.AdamW),
        "One of two moments goes; a number for each row stays.", seconds=2,
    ),
    Claim(
        "lomo", paper("2306.09782", "Lv et al., Full parameter fine-tuning for LLMs with limited resources, 2023, abstract"),
        "SGD that steps in backward, in memory of AdamW in mixed precision.", Figure("10.8 %"),
        "two steps of one token of Llama with 7 billion parameters, predicted, each way: the ratio of the peaks", lomo,
        "With float16 gradients the baseline has 16 bytes a parameter. A baseline with float32 gradients as well has 20.",
        seconds=6,
    ),
]  # fmt: skip
