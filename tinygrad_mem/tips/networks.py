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
from .tip import VGG, Case, Scene, SlimVGG, Tip, Training, classify, plain


def half_the_channels(scene: Scene) -> Training:
    return classify(scene, SlimVGG(divide=8))


def without_norm(scene: Scene) -> Training:
    return classify(scene, SlimVGG(norm=None))


def _headed(head: nn.Sequential) -> nn.Module:
    return nn.Sequential(SlimVGG().features, *head)


def fully_connected(scene: Scene) -> Training:
    wide = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024), nn.ReLU(inplace=True))
    return classify(scene, _headed(nn.Sequential(nn.Flatten(), *wide, nn.Linear(1024, 10))))


def averaged(scene: Scene) -> Training:
    return classify(scene, _headed(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))))


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


def _segment(scene: Scene, model: nn.Module) -> Training:
    x, _ = scene.data()
    y = tm.randint(0, 2, (len(x), *x.shape[2:]))
    return classify(scene, model, data=(x, y))


def with_skips(scene: Scene) -> Training:
    return _segment(scene, UNet(3, 2, width=8))


def without_skips(scene: Scene) -> Training:
    return _segment(scene, WithoutSkips(3, 2, width=8))


# --- downsampling


def _stem(*first: nn.Module) -> nn.Module:
    """Four stages of convolutions behind some first layers."""
    layers = [part for a, b in pairwise((16, 32, 32, 32)) for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(inplace=True))]
    return nn.Sequential(*first, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def full_size(scene: Scene) -> Training:
    return classify(scene, _stem(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True)))


def pooled(scene: Scene) -> Training:
    return classify(scene, _stem(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)))


def strided(scene: Scene) -> Training:
    return classify(scene, _stem(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(inplace=True)))


# --- dropout


class MaskedDropout(nn.Module):
    """Dropout as it is often written by hand: the product saves the mask for backward."""

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        return x * ((tm.rand_like(x) > 0.5).float() * 2)


def _dropping(drop: Callable[[], nn.Module]) -> nn.Module:
    layers = [part for _ in range(6) for part in (nn.Linear(256, 256), nn.ReLU(inplace=True), drop())]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def masks_kept(scene: Scene) -> Training:
    return classify(scene, _dropping(MaskedDropout))


def masks_counted(scene: Scene) -> Training:
    return classify(scene, _dropping(nn.Dropout))


def _rated(scene: Scene, rate: float) -> Training:
    return classify(scene, _dropping(partial(nn.Dropout, rate)))


def dropped_a_tenth(scene: Scene) -> Training:
    return _rated(scene, 0.1)


def dropped_half(scene: Scene) -> Training:
    return _rated(scene, 0.5)


IMAGES = Scene(Named(lambda: nn.Identity(), (3, 64, 64), 2), 8)
ROWS = Scene(Named(lambda: nn.Identity(), (256,), 10), 512)

TIPS = (
    Tip("fewer_channels", "Use fewer channels.", (Case(plain, half_the_channels),), VGG),
    Tip("global_pooling", "Global average pooling instead of fully connected layers.", (Case(fully_connected, averaged),), VGG),
    Tip("no_norm", "Leave out normalisation layers.", (Case(plain, without_norm),), VGG),
    Tip("no_long_skips", "Avoid long skip connections: they keep maps alive.", (Case(with_skips, without_skips),), IMAGES),
    Tip(
        "downsample",
        "Make maps smaller early, by strided convolutions or pooling.",
        (Case(full_size, pooled, "pooling"), Case(full_size, strided, "a strided convolution"),
         Case(pooled, strided, "a stride instead of pooling")),
        Scene(VGG.network, 32),
    ),
    Tip("more_dropout", "Drop more: what is dropped needs no memory.", (Case(dropped_a_tenth, dropped_half),), ROWS),
    Tip("dropout", "Draw dropout's mask again from a counter instead of keeping it.", (Case(masks_kept, masks_counted),), ROWS),
)  # fmt: skip
