"""Tips about the network: fewer channels, no large layers, norms or long skips; downsampling; dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..models.names import Named
from ..models.unet import UNet
from .tip import VGG, Case, Scene, SlimVGG, Tip, Training, classify, plain, varied


def slim(scene: Scene, **options: Any) -> Training:
    return classify(scene, SlimVGG(**options))


def fully_connected(scene: Scene) -> Training:
    wide = (nn.Linear(512, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 10))
    return classify(scene, nn.Sequential(SlimVGG().features, nn.Flatten(), *wide))


def averaged(scene: Scene) -> Training:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return classify(scene, nn.Sequential(SlimVGG().features, *head))


# --- long skips


class WithoutSkips(UNet):
    """A U-Net without the skip connections between its two halves."""

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__(channels, num_classes, width)
        self.join = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, a, 3, padding=1, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True),
                          nn.Conv2d(a, a, 3, padding=1, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True))
            for a in (width << i for i in reversed(range(len(self.down))))
        )  # fmt: skip

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        x = self.inc(x)
        for down in self.down:
            x = down(self.pool(x))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(up(x))
        return self.outc(x)


def segment(scene: Scene, network: Callable[..., UNet]) -> Training:
    model, (x, _) = network(3, 2, width=8), scene.data()
    return classify(scene, model, data=(x, tm.randint(0, 2, (len(x), *x.shape[2:]))))


# --- downsampling


def convolutions(scene: Scene, stride: int = 1, pool: bool = False) -> Training:
    """Four of them; ``stride`` and ``pool`` are of the first."""
    first = [nn.Conv2d(3, 16, 3, stride, 1), nn.ReLU(inplace=True), *[nn.MaxPool2d(2)] * pool]
    layers = [part for a, b in pairwise((16, 32, 32, 32)) for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(inplace=True))]
    return classify(scene, nn.Sequential(*first, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)))


# --- dropout


class MaskedDropout(nn.Module):
    """Dropout as it is often written by hand: the product saves the mask for backward."""

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        return x * ((tm.rand_like(x) > 0.5).float() * 2)


def dropping(scene: Scene, dropout: Callable[[], nn.Module]) -> Training:
    layers = [part for _ in range(6) for part in (nn.Linear(256, 256), nn.ReLU(inplace=True), dropout())]
    return classify(scene, nn.Sequential(*layers, nn.Linear(256, 10)))


IMAGES = Scene(Named(lambda: nn.Identity(), (3, 64, 64), 2), 8)
ROWS = Scene(Named(lambda: nn.Identity(), (256,), 10), 512)

TIPS = (
    Tip("fewer_channels", "Use fewer channels.", (Case(plain, partial(slim, divide=8)),), VGG),
    Tip("global_pooling", "Global average pooling instead of fully connected layers.", (Case(fully_connected, averaged),), VGG),
    Tip("no_norm", "Leave out normalisation layers.", (Case(plain, partial(slim, norm=None)),), VGG),
    Tip(
        "no_long_skips", "Avoid long skip connections: they keep maps alive.",
        (varied(segment, network=(UNet, WithoutSkips)),), IMAGES,
    ),
    Tip(
        "downsample", "Make maps smaller early, by strided convolutions or pooling.",
        (Case(convolutions, partial(convolutions, pool=True), "pooling"),
         Case(convolutions, partial(convolutions, stride=2), "a strided convolution"),
         Case(partial(convolutions, pool=True), partial(convolutions, stride=2), "a stride instead of pooling")),
        Scene(VGG.network, 32),
    ),
    Tip(
        "more_dropout", "Drop more: what is dropped needs no memory.",
        (varied(dropping, dropout=(partial(nn.Dropout, p=0.1), nn.Dropout)),), ROWS,
    ),
    Tip(
        "dropout", "Draw dropout's mask again from a counter instead of keeping it.",
        (varied(dropping, dropout=(MaskedDropout, nn.Dropout)),), ROWS,
    ),
)  # fmt: skip
