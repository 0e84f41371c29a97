"""Attention in a ring: numbers of one process, what a rank keeps, refusals."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory
from tinygrad_mem.distributed.context_parallel import ring_attention
from tinygrad_mem.memory import Category

HEADS, TOKENS, WIDTH = 4, 256, 32


def attend(causal: bool) -> None:
    dist.init_process_group()
    shape = (1, HEADS, TOKENS // dist.get_world_size(), WIDTH)
    q, k, v = (tm.zeros(shape, requires_grad=True) for _ in range(3))
    y = ring_attention(q, k, v, is_causal=causal)
    memory.mark("forward")
    y.sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_what_a_rank_keeps(causal: bool):
    """Its own tokens; beside them two blocks of keys and values, and in backward two of their gradients. Ranks are alike."""
    for ranks in (2, 4, 8):
        (found,) = memory.predict(attend, causal, world_size=ranks, ranks="all")  # type: ignore[call-overload]
        assert found.ranks == tuple(range(ranks))
        block = HEADS * TOKENS // ranks * WIDTH * 4
        kept = found.track.by_category("forward")
        assert kept[Category.INPUT] == 3 * block
        assert kept[Category.ACTIVATION] == block + block // WIDTH  # y and lse
        assert Category.COMMUNICATION not in kept
        assert found.track.timeline().bytes(Category.COMMUNICATION).max() == (4 if ranks == 2 else 8) * block
    assert memory.predict(attend, causal, world_size=1).by_category("forward")[Category.INPUT] == 3 * 8 * block


def test_what_does_not_fit_is_refused():
    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        q = tm.zeros(1, 4, 8, 16, device="meta")
        with pytest.raises(ValueError, match=r"expected query \(N, heads, T, E\), key and value .* of the same tokens, found"):
            ring_attention(q, q[:, :, :4], q[:, :, :4])
        with pytest.raises(TypeError, match="expected one dtype, found float32, float64, float32: cast them"):
            ring_attention(q, q.double(), q)
        with pytest.raises(RuntimeError, match=r"ring_attention: No backend .* type cpu: the group 'fake' serves meta"):
            ring_attention(tm.zeros(1, 4, 8, 16, device="cpu"), q, q)
        with pytest.raises(ValueError, match="key and value must have the same number of heads, a divisor of query's"):
            ring_attention(q, q[:, :3], q[:, :3])
    finally:
        dist.destroy_process_group()


def test_a_rank_outside_of_the_group_is_refused():
    """It computed the attention of its own tokens alone, without those of the group."""
    dist.init_process_group("fake", rank=0, world_size=4)
    try:
        q = tm.zeros(1, 4, 8, 16, device="meta")
        with pytest.raises(ValueError, match="ring_attention: this rank is not a member of the process group"):
            ring_attention(q, q, q, group=dist.new_group([1, 2]))
        alone = dist.new_group([0])
        assert ring_attention(q, q, q, group=alone).shape == q.shape
        with pytest.raises(ValueError, match="of the same tokens, found"):  # one rank refuses what four refuse
            ring_attention(q, q[:, :, :4], q[:, :, :4], group=alone)
    finally:
        dist.destroy_process_group()
