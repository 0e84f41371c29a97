"""``count_ops``: what ran, what ran again, and nothing that was spared."""

from __future__ import annotations

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.recompute import checkpoint, count_ops


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
