"""Recompute, as one of the techniques: bit for bit a plain step, and its bytes by formula; more is in ``tests/recompute``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tests.techniques.training import Plan
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import round_up
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.recompute import checkpoint_wrapper
from tinygrad_mem.utils.checkpoint import checkpoint, checkpoint_sequential


@given(training.plans(), st.integers(1, 4))
@settings(max_examples=examples(40))
def test_identical_to_a_plain_step(plan: Plan, segments: int):
    """Losses, gradients, parameters, buffers, optimizer state, generators."""

    def train(recomputed: bool) -> list:
        model = plan.model()
        optimizer, losses = plan.rule(model), []
        assert isinstance(model, nn.Sequential)
        cut = min(segments, len(model))
        for x, y in plan.batches():
            optimizer.zero_grad()
            out = checkpoint_sequential(model, cut, x) if recomputed else model(x)
            loss = nn.functional.mse_loss(checkpoint(nn.Tanh(), out) if recomputed else nn.Tanh()(out), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        return [*training.outcome(model, optimizer, losses), *[p.grad.numpy() for p in model.parameters()]]

    training.assert_identical(train(True), train(False))


# --- bytes

LAYERS, WIDTH, BATCH = 12, 64, 128
A = BATCH * WIDTH * 4
WEIGHT = WIDTH * WIDTH * 4


def chain(segments: int) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS)])
    out = checkpoint_sequential(model, segments, tm.ones(BATCH, WIDTH)).sum()
    memory.mark("forward")
    out.backward()


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 6, 12])
def test_bytes_of_a_chain_by_formula(segments: int):
    """Kept: the input of each segment but the first, whose it is the batch, and all results of the last one.

    The peak is at the last layer of a segment, in its recomputation or, of the last segment, in its backward.
    """
    length = LAYERS // segments
    track = training.assert_predicted(partial(chain, segments))
    kept = track.by_category("forward")[memory.Category.ACTIVATION]
    assert kept == (segments - 1 + length) * A

    last = segments - 1 + length - 1 + 2  # inputs of segments, inner results, the gradients of a layer's output and input

    def again(segment: int) -> tuple[int, int]:
        """(results, weights) while it runs again: at its end a layer's two results, and the gradient that has come to it."""
        return segment + length - 1 + 2 + 1, (segments - 1 - segment) * length

    highest = max(
        [(last * A + WEIGHT), *(results * A + weights * WEIGHT for results, weights in map(again, range(segments - 1)))]
    )
    assert track.peak == A + LAYERS * WEIGHT + highest + 2 * 512


def stages(model: Any) -> list[nn.Module]:
    """VGG's features, from pooling to pooling."""
    layers: list[Any] = list(model.features)
    ends = [i + 1 for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    model.features = nn.Sequential(*[nn.Sequential(*layers[a:b]) for a, b in itertools.pairwise([0, *ends])])
    return list(model.features)


def floats(*sizes: int) -> int:
    return round_up(4 * prod(sizes))


@dataclass(frozen=True)
class Network:
    """A network at its real size.

    Attributes:
        blocks: what is checkpointed.
        inputs: bytes of the blocks' inputs; the batch is the user's.
        outside: what is kept beside them.
        share: of the plain peak, between which two the peak is.
    """

    batch: int
    sample: tuple[int, ...]
    blocks: Callable[[Any], list[nn.Module]]
    inputs: int
    outside: int
    share: tuple[float, float]


def of_class(name: str) -> Callable[[Any], list[nn.Module]]:
    return lambda model: [m for m in model.modules() if type(m).__name__ == name]


def bottlenecks(n: int) -> int:
    """Inputs of ResNet-50's sixteen blocks."""
    first = [(64, 56), (256, 56), (512, 28), (1024, 14)]
    later = [(256, 56, 2), (512, 28, 3), (1024, 14, 5), (2048, 7, 2)]
    return sum(floats(n, c, side, side) for c, side in first) + sum(
        times * floats(n, c, side, side) for c, side, times in later
    )


def doubles(n: int) -> int:
    """Inputs of U-Net's nine pairs of convolutions but the first: on the way down half as large, on the way up joined."""
    down = [floats(n, 64 << i, 128 >> i, 128 >> i) for i in range(4)]
    up = [floats(n, 128 << i, 256 >> i, 256 >> i) for i in range(4)]
    return sum(down) + sum(up)


BIG = {
    "vgg16": Network(
        32,
        (3, 224, 224),
        stages,
        sum(floats(32, c, side, side) for c, side in ((64, 112), (128, 56), (256, 28), (512, 14))),
        # of the classifier: its input, two hidden layers with a bit an element for dropout, the scores, which the loss squares
        floats(32, 25088) + 2 * 2 * floats(32, 4096) + floats(32, 1000),
        (0.78, 0.82),
    ),
    "resnet50": Network(
        32,
        (3, 224, 224),
        of_class("Bottleneck"),
        bottlenecks(32),
        # the stem's convolution and ReLU, two numbers a channel, a byte for each place that pooling chose; the last layer's two
        2 * floats(32, 64, 112, 112) + 2 * floats(64) + 32 * 64 * 56 * 56 + floats(32, 2048) + floats(32, 1000),
        (0.4, 0.44),
    ),
    "unet": Network(
        4,
        (3, 256, 256),
        of_class("Sequential"),
        doubles(4),
        # a byte for each place that pooling chose; the inputs of the transposed convolutions and of the last one; its output
        sum(4 * (64 << i) * (128 >> i) ** 2 for i in range(4))
        + sum(floats(4, 128 << i, 128 >> i, 128 >> i) for i in range(4))
        + floats(4, 64, 256, 256)
        + floats(4, 2, 256, 256),
        (0.52, 0.56),
    ),
    "gpt2": Network(
        8,
        (1024,),
        of_class("Block"),
        12 * floats(8, 1024, 768),
        # the last norm's input, output and two numbers a token; where tokens stand; the logits
        2 * floats(8, 1024, 768) + 2 * floats(8, 1024) + 8 * 1024 + floats(8, 1024, 50257),
        (0.46, 0.5),
    ),
}


@pytest.mark.parametrize("name", BIG)
def test_bytes_of_the_big_networks(name: str):
    """At their real sizes: of each block its input is kept, once, and nothing else; what is outside keeps what it kept."""
    case = BIG[name]

    def step(recomputed: bool) -> None:
        model = NETWORKS[name].make()
        for block in case.blocks(model):
            if recomputed:
                checkpoint_wrapper(block)
        shape = case.batch, *case.sample
        x = tm.randint(0, 50257, shape) if NETWORKS[name].tokens else tm.randn(*shape)
        loss = model(x).square().mean()
        memory.mark("forward")
        loss.backward()

    plain, ours = (memory.predict(step, again) for again in (False, True))
    kept = ours.by_category("forward")[memory.Category.ACTIVATION]
    assert kept == case.inputs + case.outside
    assert kept < 0.36 * plain.by_category("forward")[memory.Category.ACTIVATION]
    low, high = case.share
    assert low <= ours.peak / plain.peak <= high


def test_never_above_pytorch_with_the_same_technique():
    """The chain; the four networks are in ``test_against_pytorch.py``, more ways to checkpoint in ``tests/recompute``."""

    def theirs(segments: int) -> Any:
        make = torch.nn
        model = make.Sequential(*[make.Sequential(make.Linear(WIDTH, WIDTH, bias=False), make.Tanh()) for _ in range(LAYERS)])
        x = torch.ones(BATCH, WIDTH)
        torch.utils.checkpoint.checkpoint_sequential(model, segments, x, use_reentrant=False).sum().backward()
        return model

    for segments in (2, 3, 4):
        bound, found = pytorch_peak(lambda k=segments: theirs(k)), training.requested(memory.predict(chain, segments))
        assert 0.7 * bound <= found <= bound, (found, bound)
