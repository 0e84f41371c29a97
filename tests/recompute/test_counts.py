"""``count_ops``: what ran, what ran again, and nothing that was skipped."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.recompute import checkpoint, checkpoint_blocks, count_ops


def test_it_counts_what_ran_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))
    x = tm.randn(3, 4)
    with count_ops() as ops:
        loss = checkpoint(model, x).sum()
        assert not ops.recomputed
        loss.backward()
    assert ops.forward == {"Linear": 2, "BatchNorm": 1, "Add": 1, "Tanh": 1, "Sum": 1}
    # the last Linear saves its input, so that it need not run; the batches are counted once
    assert +ops.recomputed == {"Linear": 1, "BatchNorm": 1, "Tanh": 1}
    assert str(ops).splitlines() == [
        "op          forward     again",
        "Linear            2         1",
        "BatchNorm         1         1",
        "Add               1         0",
        "Tanh              1         1",
        "Sum               1         0",
        "all ops           6         3",
    ]


def test_without_a_checkpoint_nothing_runs_again():
    with count_ops() as ops:
        nn.Linear(2, 2)(tm.ones(1, 2)).sum().backward()
    assert ops.recomputed.total() == 0
    assert ops.forward["Linear"] == 1


@pytest.mark.parametrize(("name", "how"), [("resnet20", "every-block"), ("vgg16_bn", 5), ("resnet50", "every-block")])
def test_full_recompute_is_at_most_one_more_forward(name: str, how: str | int):
    """Op by op, and not far below: seconds are in ``python -m tests.benchmarks.recompute``."""
    with tm.device("meta"):
        model, x = checkpoint_blocks(NETWORKS[name].make(), how), tm.randn(2, *NETWORKS[name].sample)
        with count_ops() as ops:
            model(x).sum().backward()
    assert all(ops.recomputed[op] <= ops.forward[op] for op in ops.recomputed)
    assert 0.5 <= ops.recomputed["Conv"] / ops.forward["Conv"] <= 1
