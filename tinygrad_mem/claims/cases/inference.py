"""Memory for generating text: keys and values of the tokens so far."""

from __future__ import annotations

from functools import partial

import tinygrad_mem as tm
from tinygrad_mem import memory

from ...models.configuration import configuration
from ...models.key_values import Cache
from ...models.published import PUBLISHED
from ..claim import Claim, Counted, Figure, paper


def keys_and_values(tokens: int) -> Counted:
    """The cache of so many tokens, of 40 layers of width 5,120 in float16."""
    config = configuration(PUBLISHED["llama-2-13b"])

    def run() -> None:
        cache = Cache(config, 1, tokens, dtype=tm.float16)
        memory.mark("made")
        del cache

    track = memory.predict(run)
    return Counted(sum(block.requested for block in track.live("made")), track=track)


_PAGED = paper("2309.06180", "Kwon et al., Efficient memory management for LLM serving with PagedAttention, 2023, section 3")
_MADE = "the cache of a model with these sizes is made on meta"

CLAIMS = [
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
