"""Tips about recomputation: checkpoints, where to put them, reversible blocks."""

from __future__ import annotations

from typing import Any

import tinygrad_mem as tm

from .. import nn, recompute
from ..models.names import Named
from ..nn import functional as F
from ..techniques import ReversibleSequential
from ..techniques.reversible import ReversibleBlock
from .tip import RESNET, VGG, Case, Scene, Tip, Training, classify, plain, varied


def in_segments(scene: Scene) -> Training:
    return classify(scene, recompute.checkpoint_blocks(scene.model(), "sqrt"))


# --- a hundred layers


def _hundred_layers() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(100) for layer in (nn.Linear(64, 64), nn.Tanh())], nn.Linear(64, 10))


class InTenSegments(nn.Module):
    """A Sequential, called by ``checkpoint_sequential``."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any) -> Any:
        return recompute.checkpoint_sequential(self.layers, 10, x, use_reentrant=False)


def ten_segments(scene: Scene) -> Training:
    return classify(scene, InTenSegments(scene.model()))


# --- the best schedule


def scheduled(scene: Scene, best: bool) -> Training:
    """A chain of stages of different sizes, in segments of equal length, or by the schedule with the lowest peak."""
    model = scene.model()
    chain = nn.Sequential(*model.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.classifier)
    x, y = scene.data()
    if best:
        costs = recompute.profile(chain, x, lambda output: F.cross_entropy(output, tm.randint(0, 10, (len(output),))))
        least = recompute.front(costs.stages)[0][0]
        chain = recompute.apply(chain, recompute.chain(costs.stages, least), costs.sizes)
    else:
        chain: Any = recompute.checkpoint_blocks(chain, "sqrt")
    return classify(scene, chain, data=(x, y))


# --- reversible blocks


def _half() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU())


def blocks(scene: Scene, join: Any) -> Training:
    body = join(*[ReversibleBlock(_half(), _half()) for _ in range(8)])
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return classify(scene, nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), body, *tail))


DEEP = Scene(Named(_hundred_layers, (64,), 10), 256)

TIPS = (
    Tip("checkpoint", "Checkpoint segments of the network.", (Case(plain, in_segments),), RESNET, free=True),
    Tip("checkpoint_sequential", "checkpoint_sequential on 100 linear layers.", (Case(plain, ten_segments),), DEEP),
    Tip("optimal_checkpoints", "Choose checkpoints by cost, not by count.", (varied(scheduled, best=(False, True)),), VGG),
    Tip(
        "reversible", "Use reversible blocks: activations are computed backwards.",
        (varied(blocks, join=(nn.Sequential, ReversibleSequential)),), RESNET,
    ),
)  # fmt: skip
