"""What precision costs VGG16 and ResNet-50, to the byte: by formula, by category, block by block, and at the peak."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category

from . import costs as it

# bytes of a weight, a master, both moments, a gradient
FORMULA = {
    "float32": (4, 0, 4, 4),
    "autocast": (4, 0, 4, 4),
    "masters, float32 gradients": (2, 4, 4, 4),
    "masters": (2, 4, 4, 2),
    "float16 alone": (2, 0, 2, 2),
}


def blocks(size: int) -> int:
    return -(-size // 512) * 512


def casts(network: str) -> int:
    """Autocast's float16 copies: of the weights and biases of convolutions and linear layers."""
    with tm.device("meta"):
        model = it.NETWORKS[network]()
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return sum(blocks(2 * p.numel()) for layer in layers for p in layer.parameters())


@pytest.mark.parametrize(("network", "mode"), pairs([*it.NETWORKS], [*it.MODES]))
def test_what_a_parameter_costs(network: str, mode: str):
    sizes = it.parameters(network)
    weight, master, moment, grad = FORMULA[mode]
    found = {batch: it.figures(network, batch, mode) for batch in it.BATCHES}
    for batch in it.BATCHES:
        kept = found[batch]
        assert kept["parameters"] == sum(blocks(weight * n) for n in sizes)
        assert kept["master weights"] == sum(blocks(master * n) for n in sizes)
        assert kept["optimizer state"] == 2 * sum(blocks(moment * n) for n in sizes)
        assert kept["gradients"] == sum(blocks(grad * n) for n in sizes)
        assert kept["casts"] == (casts(network) if mode == "autocast" else 0)
        # the peak: what is kept and the activations, and of gradients and temporaries at most what backward has at once
        standing = sum(kept[name] for name in ("parameters", "master weights", "optimizer state"))
        assert standing + kept["activations"] <= kept["peak"] <= 1.35 * (standing + kept["gradients"] + kept["activations"])
    small, large = (found[batch]["activations"] for batch in it.BATCHES)
    assert 3.9 < large / small < 4.01  # four times the images; statistics and weights that are kept do not grow


@pytest.mark.parametrize("network", it.NETWORKS)
def test_activations_are_halved_block_by_block(network: str):
    def kept(mode: str) -> list[int]:
        track = memory.predict(it.train, network, 4, mode)
        live = [b for b in track.live("forward ends") if b.category is Category.ACTIVATION]
        return [b.requested for b in sorted(live, key=lambda b: b.born)]

    whole, half = kept("float32"), kept("masters")
    assert len(whole) == len(half)
    same = 0
    for a, b in zip(whole, half, strict=True):
        assert b in (a, a // 2)
        same += a if a == b else 0
    assert 0 < same < 0.04 * sum(whole)  # indices of pooling are bytes, classes int64, statistics float32
    assert sum(half) == (sum(whole) - same) // 2 + same
