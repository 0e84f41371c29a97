"""ZeRO: what one rank holds of what is divided among all, found by running the rank on ``meta``."""

from __future__ import annotations

from functools import cache, partial

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn

from ...distributed.fsdp import fully_shard
from ...distributed.optim import ZeroRedundancyOptimizer
from ...memory import Category, Track
from ..claim import Claim, Counted, Extra, Figure, Publication, paper

BILLIONS_7_5 = (128, 9536, 6144)
"""Layers, and their two widths: 7.5 billion parameters, whose rows 64 ranks divide."""
T5_3B = (64, 6400, 6960)
"""2,851 million parameters, as T5 of 3 billion has, whose rows 8 ranks divide."""
MARKS = {"none": "backward ends", "states": "backward ends", "gradients": "forward ends", "parameters": "backward ends"}
"""What is divided, up to here -> where the run holds what the paper counts. Before backward a shard of the parameters exists
beside all of them, as large as one of the gradients."""


def train(divided: str, layers: int, wide: int, narrow: int) -> None:
    """Two steps of one token in float16; the second has the optimizer's state from the beginning."""
    dist.init_process_group()
    sharded = divided in ("gradients", "parameters")
    chain = []
    for i in range(layers):
        sizes = (wide, narrow) if i % 2 == 0 else (narrow, wide)
        chain.append(nn.Linear(*sizes, bias=False, dtype=tm.float16))
        if sharded:  # at once, so that no rank ever has all layers
            fully_shard(chain[-1], reshard_after_forward=divided == "parameters")
    model = called = nn.Sequential(*chain)
    if sharded:
        fully_shard(model)
    else:
        called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    options = {"lr": 1e-4, "master_weights": True}
    if divided == "states":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, **options)
    else:
        optimizer = tm.optim.Adam(model.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        loss = called(tm.zeros(1, wide, dtype=tm.float16)).sum()
        memory.mark("forward ends")
        loss.backward()
        del loss
        memory.mark("backward ends")
        optimizer.step()


@cache
def rank(divided: str, sizes: tuple[int, int, int], ranks: int) -> Track:
    """The track of one of ``ranks`` ranks."""
    return memory.predict(train, divided, *sizes, world_size=ranks)


def counted(divided: str, sizes: tuple[int, int, int] = BILLIONS_7_5, ranks: int = 64) -> Counted:
    """Parameters, gradients and states, as the paper counts them, without the memory that a step takes for a moment."""
    track = rank(divided, sizes, ranks)
    momentary = (Category.ACTIVATION, Category.INPUT, Category.TEMPORARY)
    held = track.by_category(MARKS[divided])
    return Counted(sum(size for category, size in held.items() if category not in momentary), track=track)


def estimated(divided: str) -> Counted:
    """The paper's count, and the parts that DeepSpeed keeps in addition."""
    layers, wide, narrow = T5_3B
    parameters = layers * wide * narrow
    found = counted(divided, T5_3B, 8)
    if divided == "gradients":
        parts = (Extra("a float32 copy of this rank's gradients", 0, 4 * parameters // 8),)
    else:
        whole = 4 * 32_128 * 1024
        parts = (Extra("the embedding, the largest layer, whole, and its gradient", whole, whole),)
        parts += (Extra("this rank's gradients in float32 instead of float16", 2 * parameters // 8, 2 * parameters // 8),)
    return Counted(found.value, parts, found.track)


_ZERO = paper("1910.02054", "Rajbhandari et al., ZeRO, 2020, figure 1")
_ESTIMATORS = Publication("DeepSpeed, Memory requirements", "https://deepspeed.readthedocs.io/en/latest/memory.html")
_RUN = "one rank of {} runs two steps on meta; what the paper counts, at its place in the step"
_PEAK = "A step needs more for a moment: gathered layers, buckets and activations."


def _zero(name: str, says: str, stated: str, divided: str) -> Claim:
    words = f"Per device, 7.5 billion parameters on 64 devices: {says}."
    return Claim(name, _ZERO, words, Figure(stated), _RUN.format(64), partial(counted, divided), _PEAK, seconds=2)


CLAIMS = [
    _zero("zero-none", "nothing is divided", "120 GB", "none"),
    _zero("zero-states", "the optimizer's state is divided", "31.4 GB", "states"),
    _zero("zero-gradients", "gradients are divided too", "16.6 GB", "gradients"),
    _zero("zero-parameters", "parameters are divided too", "1.9 GB", "parameters"),
    Claim(
        "deepspeed-zero2", _ESTIMATORS,
        "Per GPU, T5 with 2,851 million parameters on 8 GPUs, ZeRO stage 2. The tool writes GB for 2**30 bytes.",
        Figure("15.93 GiB"), _RUN.format(8), partial(estimated, "gradients"),
        "It counted gradients as not divided. DeepSpeed's pull request 5099 corrected that: 2 bytes, and 18 divided.",
        seconds=1,
    ),
    Claim(
        "deepspeed-zero3", _ESTIMATORS,
        "Per GPU, T5 with 2,851 million parameters on 8 GPUs, ZeRO stage 3. The tool writes GB for 2**30 bytes.",
        Figure("6.10 GiB"), _RUN.format(8), partial(estimated, "parameters"),
        "The tool adds the largest layer twice in float16, and divides 18 bytes a parameter. ZeRO's own count is 16.",
        seconds=1,
    ),
]  # fmt: skip
