"""VGG16, ResNet-50, U-Net and a GPT with each technique that PyTorch has: never above its peak, measured in the same run."""

from __future__ import annotations

import itertools

import pytest

from tests.profiles import some
from tests.techniques import beside_pytorch as beside
from tests.techniques.beside_pytorch import SMALL, peaks

TECHNIQUES = {
    "plain, ReLUs in place": beside.plain,
    "ReLUs out of place": beside.out_of_place,
    "checkpoint, every block": beside.every_block,
    "checkpoint, the whole": beside.whole,
    "checkpoint_sequential": beside.sequential,
    "accumulation": beside.accumulated,
    "in backward": beside.in_backward,
    "offload": beside.offloaded,
}
NOT_THERE = {("gpt", "ReLUs out of place"), ("gpt", "checkpoint_sequential")}  # it has neither ReLUs nor a Sequential
CASES = [case for case in itertools.product(SMALL, TECHNIQUES) if case not in NOT_THERE]
USUAL = [*zip(itertools.cycle(SMALL), TECHNIQUES)]  # each technique on a network


@pytest.mark.parametrize(("network", "technique"), some(CASES, USUAL))
def test_never_above_pytorch_with_the_same_technique(network: str, technique: str):
    ours, theirs = peaks(network, TECHNIQUES[technique])
    assert 0.7 * theirs <= ours <= theirs, f"ours {ours:,}, PyTorch {theirs:,}"
