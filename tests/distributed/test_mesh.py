"""A transformer on meshes of ranks: numbers of one process, published formulas measured, many ranks predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tinygrad_mem import int64, memory, zeros
from tinygrad_mem.memory import Category
from tinygrad_mem.models.parallel import Mesh, MeshTraining, TransformerSize, layers_of, train

SMALL = TransformerSize(4, 64, 4, 4, 256, 128, 32)


def test_every_block_has_one_stage():
    for layers in range(1, 40):
        for stages in range(1, layers + 1):
            each = [layers_of(layers, stage, stages) for stage in range(stages)]
            assert sum(each) == layers
            assert max(each) - min(each) <= 1
    assert [layers_of(126, stage, 16) for stage in range(16)] == [7, *[8] * 14, 7]  # Llama 3's: one less at both ends


def step(size: TransformerSize, mesh: Mesh) -> None:
    MeshTraining(size, mesh).step()


def test_ranks_differ_by_their_stage_alone():
    for mesh in (Mesh(2, 2, 2, 2, count=4), Mesh(1, 2, 2, 4, count=4, chunks=2), Mesh(4, 4, 1, 1, count=4, gpipe=True)):
        found = memory.predict(step, SMALL, mesh, world_size=mesh.ranks(), ranks="all")
        each = mesh.ranks() // mesh.pipeline
        assert [f.ranks for f in found] == [tuple(range(i * each, i * each + each)) for i in range(mesh.pipeline)]


def test_seventy_billion_parameters_on_a_thousand_ranks():
    """Eight predictions, one for each stage."""
    mesh = Mesh(data=16, pipeline=8, tensor=8, count=4)
    found = memory.predict(train, "llama-3-70b", mesh, world_size=1024, ranks="all")
    assert [len(f.ranks) for f in found] == [128] * 8
    kept = [int(f.track.timeline().bytes(Category.ACTIVATION).max()) for f in found]
    # stage i keeps min(8 - i, 4) micro-batches, each of ten blocks
    assert kept[1] == kept[2] == kept[3] == kept[4]
    assert kept[4] - kept[5] == kept[5] - kept[6] > 0


def test_scores_of_tokens_on_other_ranks_are_refused():
    with pytest.raises(ValueError, match="scores of all pairs of tokens need all tokens on a rank, found context=2: use 1"):
        memory.predict(step, replace(SMALL, scores=True), Mesh(context=2), world_size=2)


# --- Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, table 2

TOKENS, BATCH, WIDTH, HEADS = 256, 2, 256, 4
SBH, SB, PAIRS = TOKENS * BATCH * WIDTH, TOKENS * BATCH, HEADS * TOKENS * TOKENS * BATCH
PAPER = TransformerSize(1, WIDTH, HEADS, HEADS, 4 * WIDTH, 512, TOKENS, dropout=0.1, scores=True)


def forward(size: TransformerSize, mesh: Mesh) -> None:
    training = MeshTraining(size, mesh)
    logits = training.stages[0](zeros(BATCH, TOKENS, dtype=int64))
    memory.mark("forward")
    del logits


def per_block(mesh: Mesh, **changes: Any) -> int:
    """The bytes that one more block keeps for backward, on a rank: measured."""
    kept = []
    for layers in (1, 2):
        size = replace(PAPER, layers=layers, **changes)
        said = memory.predict(forward, size, mesh, world_size=mesh.ranks()).by_category("forward")
        kept.append(sum(bytes for category, bytes in said.items() if category is not Category.PARAMETER))
    return kept[1] - kept[0]


@pytest.mark.parametrize("t", [2, 4])
def test_activations_of_a_block_are_the_published_ones(t: int):
    """The paper's sbh (34 + 5as/h), and its forms, in bytes of 16-bit numbers.

    Two things differ, both exactly. The paper keeps masks of dropout, one byte an element: after attention and the MLP (2 sbh)
    and of the attention's weights (as^2 b); here a counter gives them again. The paper leaves out the mean and the deviation of
    each norm: 4 bytes each, of two norms for each token (16 sb).
    """
    masks, weights_mask, norms = 2 * SBH, PAIRS, 16 * SB
    parallel, sequence = Mesh(tensor=t, sequence=False), Mesh(tensor=t)
    assert per_block(Mesh()) == 34 * SBH + 5 * PAIRS - masks - weights_mask + norms
    assert per_block(parallel) == 10 * SBH + 24 * SBH // t + 5 * PAIRS // t - masks - weights_mask // t + norms
    assert per_block(sequence) == (34 * SBH + 5 * PAIRS - masks - weights_mask + norms) // t
    assert per_block(sequence, recompute="selective") == (34 * SBH - masks + norms) // t
    assert per_block(parallel, recompute="selective") == 10 * SBH + 24 * SBH // t - masks + norms
    assert per_block(parallel, recompute="full") == 2 * SBH
    assert per_block(sequence, recompute="full") == 2 * SBH // t


def test_attention_that_keeps_no_scores():
    """In place of 5as^2 b, one number per row and head (4 asb), in tensor and in context parallel alike."""
    lse = 4 * HEADS * SB
    assert per_block(Mesh(), scores=False) == 32 * SBH + 16 * SB + lse
    assert per_block(Mesh(tensor=2), scores=False) == (32 * SBH + 16 * SB + lse) // 2
