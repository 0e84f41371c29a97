"""``ZeroRedundancyOptimizer``: on real ranks the numbers of one process; PyTorch's rule; ranks that are alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer, in_parts
from tinygrad_mem.memory import Category


@pytest.mark.parametrize("ranks", [1, 3, 4, 7])
def test_a_parameter_belongs_to_the_rank_that_pytorch_gives_it(ranks: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer as Theirs
        from torch.testing._internal.distributed.fake_pg import FakeStore

    rng = np.random.default_rng(ranks)
    groups = [rng.integers(1, 30, 9).tolist(), rng.integers(1, 30, 5).tolist()]
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        theirs = [[torch.nn.Parameter(torch.zeros(n)) for n in sizes] for sizes in groups]
        optimizer = Theirs([{"params": each} for each in theirs], torch.optim.SGD, lr=0.1)
        wanted = optimizer._partition_parameters()
    finally:
        torch.distributed.destroy_process_group()
    held = [0] * ranks
    for number, each in enumerate(theirs):
        ours: list = [nn.Parameter(tm.zeros(p.numel())) for p in each]
        at = {id(p): i for i, p in enumerate(ours)}
        found = [[at[id(p)] for p in part] for part in in_parts(ours, held)]
        places = {id(p): i for i, p in enumerate(each)}
        assert found == [[places[id(p)] for p in rank[number]["params"]] for rank in wanted]


def state(widths: list[int]) -> None:
    dist.init_process_group()
    model = nn.Sequential(*[nn.Linear(n, n, bias=False) for n in widths])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam)
    for p in model.parameters():
        p.grad = tm.ones_like(p)
    optimizer.step()
    memory.mark("after the step")


def test_ranks_with_parameters_of_the_same_shapes_are_alike():
    found = memory.predict(state, [64, 64, 64, 32, 16], world_size=5, ranks="all")
    assert [each.ranks for each in found] == [(0, 1, 2), (3,), (4,)]
    sizes = [each.track.by_category("after the step")[Category.OPTIMIZER_STATE] for each in found]
    assert sizes == [2 * 4 * n * n for n in (64, 32, 16)]  # Adam's two moments
    (found,) = memory.predict(state, [64] * 8, world_size=4, ranks="all")
    assert found.ranks == (0, 1, 2, 3)


def test_a_rank_without_parameters():
    found = memory.predict(state, [8], world_size=2, rank=1)
    assert Category.OPTIMIZER_STATE not in found.by_category()


def test_a_prediction_has_no_values_to_gather():
    def run():
        dist.init_process_group()
        ZeroRedundancyOptimizer([nn.Parameter(tm.ones(2))], tm.optim.Adam).consolidate_state_dict()

    with pytest.raises(tm.errors.DataDependenceError, match="consolidate_state_dict: tensors on meta have no values to send"):
        memory.predict(run, world_size=2)
