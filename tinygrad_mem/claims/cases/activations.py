"""Activations: all that a forward keeps for backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from functools import cache, partial

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category
from ...memory.accounting import account, watch
from ...models.precision import Step
from ...models.resnet import resnet50
from ...models.vgg import vgg16
from ...nn import functional as F
from ...techniques import InPlaceABN, compressed
from ..claim import Claim, Counted, Extra, Figure, Publication, bytes_at, paper, thread

VGG16 = [
    ("features.0", 224 * 224 * 64, 1_728), ("features.2", 224 * 224 * 64, 36_864), ("features.4", 112 * 112 * 64, 0),
    ("features.5", 112 * 112 * 128, 73_728), ("features.7", 112 * 112 * 128, 147_456), ("features.9", 56 * 56 * 128, 0),
    ("features.10", 56 * 56 * 256, 294_912), ("features.12", 56 * 56 * 256, 589_824), ("features.14", 56 * 56 * 256, 589_824),
    ("features.16", 28 * 28 * 256, 0), ("features.17", 28 * 28 * 512, 1_179_648), ("features.19", 28 * 28 * 512, 2_359_296),
    ("features.21", 28 * 28 * 512, 2_359_296), ("features.23", 14 * 14 * 512, 0), ("features.24", 14 * 14 * 512, 2_359_296),
    ("features.26", 14 * 14 * 512, 2_359_296), ("features.28", 14 * 14 * 512, 2_359_296), ("features.30", 7 * 7 * 512, 0),
    ("classifier.0", 4_096, 102_760_448), ("classifier.3", 4_096, 16_777_216), ("classifier.6", 1_000, 4_096_000),
]  # fmt: skip
"""What the course's notes print: (layer here, numbers of its output, weights without biases)."""


@cache
def vgg16_rows() -> list[tuple[str, int, int]]:
    """The same rows, of a run for one image."""
    layers, biases = [], {}

    def run() -> None:
        model = vgg16()
        biases.update({name: module.bias.numel() for name, module in model.named_modules() if hasattr(module, "bias")})
        layers.extend(watch(model))
        out = model(tm.randn(1, 3, 224, 224))
        memory.mark("forward ends")
        out.sum().backward()

    found = {layer.name: layer for layer in account(memory.predict(run), layers, "forward ends")}
    return [(n, math.prod(found[n].output), found[n].parameters - biases.get(n, 0)) for n, _, _ in VGG16]


def vgg16_numbers() -> int:
    return 4 * (3 * 224 * 224 + sum(numbers for _, numbers, _ in vgg16_rows()))


@cache
def one_layer_often() -> Counted:
    """All bytes after a layer of 1,024 inputs and outputs was applied a hundred times."""

    def run() -> None:
        layer, x = nn.Linear(1024, 1024), tm.randn(10240, 1024)
        for _ in range(100):
            x = layer(x)
        memory.mark("forward ends")

    track = memory.predict(run)
    return Counted(bytes_at("forward ends", track, Category), track=track)


def _kept(model: Callable[[], nn.Module], shape: tuple[int, ...], bits: int | None = None) -> int:
    """Activations of a forward, saved in ``bits`` bits."""

    def run() -> None:
        network, x = model(), tm.randn(*shape)
        with nullcontext() if bits is None else compressed(bits):
            y = network(x)
        memory.mark("forward ends")
        y.sum().backward()

    return bytes_at("forward ends", memory.predict(run), [Category.ACTIVATION])


def inplace_abn() -> Fraction:
    """The share that activated batch norm in place saves, of sixteen convolutions with batch norm and leaky ReLU."""

    def chain(inplace: bool) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(16):
            layers.append(nn.Conv2d(64, 64, 3, padding=1, bias=False))
            layers += [InPlaceABN(64)] if inplace else [nn.BatchNorm2d(64), nn.LeakyReLU(0.01)]
        return nn.Sequential(*layers)

    shape = (16, 64, 56, 56)
    return 1 - Fraction(_kept(partial(chain, True), shape), _kept(partial(chain, False), shape))


IMAGES = (32, 3, 224, 224)


def actnn() -> Counted:
    """ResNet-50's saved activations, over the same in 2 bits."""
    plain, pressed = _kept(resnet50, IMAGES), _kept(resnet50, IMAGES, 2)
    share, with_signs = Fraction(plain, pressed), Fraction(plain, pressed + plain // 64)
    return Counted(share, (Extra("a bit more for each number that a ReLU keeps, at most half of them", with_signs - share, 0),))


def gact() -> Fraction:
    """ResNet-50's saved activations, over the same in 4 bits."""
    return Fraction(_kept(resnet50, IMAGES), _kept(resnet50, IMAGES, 4))


def in_half() -> Fraction:
    """The peak of a step of ResNet-50 on 256 images in half precision, with a float32 copy of the weights, over float32's."""

    def run(precision: str) -> None:
        step = Step(precision, "cpu")
        model = step.make(resnet50)
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **step.options)
        for _ in range(2):
            optimizer.zero_grad()
            with step.region():
                loss = F.cross_entropy(step.forward(model, tm.randn(256, 3, 224, 224)), tm.zeros(256, dtype=tm.int64))
            step.backward(loss)
            del loss
            step.update(optimizer)

    return Fraction(*(memory.predict(run, precision).peak for precision in ("half", "float32")))


_NOTES = Publication("CS231n, Convolutional neural networks, Stanford", "https://cs231n.github.io/convolutional-networks/")
CLAIMS = [
    Claim(
        "vgg16-rows", _NOTES, "The notes' table of VGG16: outputs and weights, layer by layer.", Figure("21 rows"),
        "a forward of one image, predicted; rows whose two numbers are those of the run",
        lambda: sum(found == said for found, said in zip(vgg16_rows(), VGG16, strict=True)),
    ),
    Claim(
        "vgg16-forward", _NOTES, "The outputs of VGG16's layers for one image, summed. The notes write MB for 2**20 bytes.",
        Figure("about 93 MiB"), "the image, and the output of each layer of the run", vgg16_numbers,
        "The notes' own rows add up to 15.2 million numbers, and not to their 24 million.",
    ),
    Claim(
        "torchinfo-144", thread("TylerYep/torchinfo", 144),
        "A layer of 1,024 inputs and outputs, applied 100 times to 10,240 rows: what the tool estimates.", Figure("130.03 MB"),
        "the forward is predicted; all bytes in use after it", one_layer_often,
        "The tool counts a layer once. Each call makes an output, and the next call keeps it for backward.",
    ),
    Claim(
        "torchinfo-144-measured", thread("TylerYep/torchinfo", 144),
        "A layer of 1,024 inputs and outputs, applied 100 times to 10,240 rows, as PyTorch measured it on a GPU.",
        Figure("4,044.004 MiB"), "the forward is predicted; all bytes in use after it", one_layer_often,
    ),
    Claim(
        "inplace-abn", paper("1712.02616", "Rota Bulo et al., In-place activated BatchNorm, 2018, abstract"),
        "What activated batch norm in place saves of a network's memory.", Figure("at most 50 %"),
        "sixteen convolutions with batch norm and leaky ReLU, predicted both ways; activations after the forward", inplace_abn,
        "Nearly one of the two buffers of each layer. Parameters, gradients and the convolutions' workspaces stay.",
    ),
    Claim(
        "actnn", paper("2104.14129", "Chen et al., ActNN, 2021, abstract"),
        "How many times smaller activations become in 2 bits.",
        Figure("12 times"), "ResNet-50 on 32 images, predicted both ways; activations after the forward", actnn,
        "Theirs keeps the signs of a ReLU in addition to the 2 bits; ours reads them from the 2 bits.",
    ),
    Claim(
        "gact", paper("2206.11357", "Liu et al., GACT, 2022, abstract"), "How many times smaller activations become in 4 bits.",
        Figure("at most 8.1 times"), "ResNet-50 on 32 images, predicted both ways; activations after the forward", gact,
        "4 bits alone are 8 times. Every 256 numbers also have two scales, and the statistics of batch norm stay.",
    ),
    Claim(
        "mixed-precision-half", paper("1710.03740", "Micikevicius et al., Mixed precision training, 2018, abstract"),
        "What mixed precision takes of the memory of float32: nearly half.", Figure("about 50 %"),
        "two steps of ResNet-50 on 256 images with SGD, predicted both ways: the ratio of the peaks", in_half,
        "Activations are halved. Weights, their gradients and the optimizer's state take as much, or more.", seconds=1,
    ),
]  # fmt: skip
