"""A transformer on meshes of ranks: numbers of one process, published formulas measured, many ranks predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.distributed.ranks import passes
from tinygrad_mem import memory
from tinygrad_mem.models.parallel import Mesh, MeshTraining, TransformerSize, layers_of

SMALL = TransformerSize(4, 64, 4, 4, 256, 128, 32)


@pytest.mark.parametrize("ranks", [2, 4])
def test_meshes_on_real_ranks(ranks: int):
    said = passes(ranks, "mesh", timeout=300)
    assert sorted(said.split("\n")) == ["", *(f"rank {i} of {ranks}: done" for i in range(ranks))]


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


def test_scores_of_tokens_on_other_ranks_are_refused():
    with pytest.raises(ValueError, match="scores of all pairs of tokens need all tokens on a rank, found context=2: use 1"):
        memory.predict(step, replace(SMALL, scores=True), Mesh(context=2), world_size=2)
