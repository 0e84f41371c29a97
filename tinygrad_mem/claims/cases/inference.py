"""Memory for generating text: keys and values of the tokens so far."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import memory

from ...models.configuration import configuration
from ...models.key_values import Cache
from ...models.precision import Step
from ...models.published import PUBLISHED
from ..claim import Claim, Counted, Figure, Publication, paper
from .parameters import count
from .states import llama_of

LLAMA_7B = llama_of("llama-2-7b")


def keys_and_values(tokens: int) -> Counted:
    """The cache of ``tokens`` tokens, of 40 layers of width 5,120 in float16."""
    config = configuration(PUBLISHED["llama-2-13b"])

    def run() -> None:
        cache = Cache(config, 1, tokens, dtype=tm.float16)
        memory.mark("made")
        del cache

    track = memory.predict(run)
    return Counted(sum(block.requested for block in track.live("made")), track=track)


def beside_weights() -> Counted:
    """The peak of reading 2,048 tokens, over the weights of Llama with 7 billion parameters in float16, less these."""

    def run() -> None:
        model: Any = Step("float16", "cpu").make(LLAMA_7B)
        memory.mark("loaded")
        with tm.no_grad():
            model(tm.zeros(1, 2048, dtype=tm.int64), Cache(model.config, 1, 2048, dtype=tm.float16), last=1)

    track = memory.predict(run)
    return Counted(Fraction(track.at_peak("loaded").used, 2 * count(LLAMA_7B)) - 1, track=track)


_PAGED = paper("2309.06180", "Kwon et al., Efficient memory management for LLM serving with PagedAttention, 2023, section 3")
_MADE = "the cache of a model with these sizes is made on meta"

CLAIMS = [
    Claim(
        "eleuther-inference", Publication("EleutherAI, Transformer Math 101", "https://blog.eleuther.ai/transformer-math/"),
        "What a forward takes in addition to the weights, in inference.", Figure("at most 20 %"),
        "Llama with 7 billion parameters reads 2,048 tokens into a cache in float16, predicted; the peak", beside_weights,
        "Of one sequence. Keys and values are most of it, 8 % for each sequence: three take more than the bound.",
    ),
    Claim(
        "vllm-token",
        _PAGED, "Keys and values of one token: 40 layers of width 5,120 in float16. The paper writes KB for 1,024 bytes.",
        Figure("800 KiB"), _MADE, partial(keys_and_values, 1),
    ),
    Claim(
        "vllm-request", _PAGED, "Keys and values of 2,048 tokens of the same model. The paper writes GB for 2**30 bytes.",
        Figure("1.6 GiB"), _MADE, partial(keys_and_values, 2048),
    ),
]  # fmt: skip
