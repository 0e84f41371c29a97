"""Every tip on a network so small that an emulated GPU runs all of them in seconds; each goes through its own lines still."""

from __future__ import annotations

from dataclasses import replace

from tinygrad_mem import Tensor, nn
from tinygrad_mem.models.lstm import LSTMLanguageModel
from tinygrad_mem.models.names import Named
from tinygrad_mem.tips import Scene, Tip
from tinygrad_mem.tips.optimizers import MLP
from tinygrad_mem.tips.sequences import CHARACTERS, WORDS
from tinygrad_mem.tips.tip import RESNET

STAGES = ((16,), (16,), (32,), (32,), (512,))
"""Channels of VGG16's convolutions, in place of ``vgg.CONVOLUTIONS[16]``: the last has as many, linear layers expect them."""


class Block(nn.Module):
    """x + norm(conv(x)), and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.inner(x)).relu()


def _residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), *[Block() for _ in range(4)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 10))  # 8-bit states begin at 4,096 elements


def _language(tokens: int) -> Named:
    return Named(lambda: LSTMLanguageModel(tokens=tokens, width=8, hidden=8), (12,), tokens, tokens=tokens)


NETWORKS = {
    RESNET.network: Named(_residual, (3, 8, 8), 10),
    MLP.network: Named(_perceptron, (48,), 10),
    CHARACTERS.network: _language(20),
    WORDS.network: _language(40),
}
SIZES = {  # of a sample, where the tip brings its network along
    "inplace_operators": (3, 8, 8),
    "downsample": (3, 8, 8),
    "no_long_skips": (3, 16, 16),
    "attention": (40,),
    "tiled": (300,),
}


def small(tip: Tip) -> Tip:
    """The tip with a network of its kind and a few samples."""
    known = tip.scene.network
    network = NETWORKS.get(known) or replace(known, sample=SIZES.get(tip.name, known.sample))
    return replace(tip, scene=Scene(network, min(4, tip.scene.batch_size)))
