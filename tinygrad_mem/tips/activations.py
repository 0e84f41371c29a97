"""Tips about activations: in-place layers and operators, variable names, del, offload, compression."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..techniques import InPlaceABN, compressed, save_on_cpu
from .tip import RESNET, VGG, Case, Scene, Tip, Training, classify, inference, plain, varied

# --- in-place activations


def activations(scene: Scene, run: Any, in_place: bool) -> Training:
    model = scene.model()
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = in_place
    return run(scene, model)


# --- in-place operators


class Residual(nn.Module):
    """x + norm(conv(x)). In place, the sum overwrites the norm's output, which backward does not need."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32))
        self.in_place = in_place

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        y = self.inner(x)
        if self.in_place:
            y += x
        else:
            y = y + x
        return y


def sums(scene: Scene, run: Any, in_place: bool) -> Training:
    body = [layer for _ in range(4) for layer in (Residual(in_place), nn.ReLU(inplace=True))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return run(scene, nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *body, head))


# --- names of intermediate results


class Named(nn.Module):
    """A chain of layers. Each result has its own name, or all have the same name."""

    def __init__(self, own_names: bool, layers: nn.Sequential) -> None:
        super().__init__()
        self.own_names, self.layers = own_names, layers

    def forward(self, x: Any) -> Any:
        if not self.own_names:
            for layer in self.layers:
                x = layer(x)
            return x
        results = [x]  # x1, x2, x3, ...
        for layer in self.layers:
            results.append(layer(results[-1]))
        return results[-1]


def names(scene: Scene, run: Any, own_names: bool) -> Training:
    model = scene.model()
    layers = nn.Sequential(*model.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.classifier)
    return run(scene, Named(own_names, layers))


# --- del


class Steps(nn.Module):
    """A few ops in a row, whose results are saved for backward or only held by variables."""

    def __init__(self, kept: bool, delete: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)
        self.kept, self.delete = kept, delete

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = a.tanh() if self.kept else a + 1  # tanh keeps its result; a sum keeps nothing
        if self.delete:
            del a
        c = b.sigmoid()
        if self.delete:
            del b
        d = c.tanh() if self.kept else c * 2
        if self.delete:
            del c
        return self.head(d.mean((2, 3)))


def steps(scene: Scene, kept: bool, delete: bool) -> Training:
    return classify(scene, Steps(kept, delete))


# --- in-place activated batch norm


def norm_and_activation(scene: Scene) -> Training:
    model = scene.model()
    layers = (nn.LeakyReLU(0.01, inplace=True) if isinstance(layer, nn.ReLU) else layer for layer in model.features)
    model.features = nn.Sequential(*layers)
    return classify(scene, model)


def activated_norm(scene: Scene) -> Training:
    model = scene.model()
    layers = list(model.features)
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.BatchNorm2d):
            layers[i : i + 2] = [InPlaceABN(layer.num_features), nn.Identity()]
    model.features = nn.Sequential(*layers)
    return classify(scene, model)


def _in_both_modes(build: Any, **option: tuple[bool, bool]) -> tuple[Case, ...]:
    """Two cases of a tip that changes one option: one in training, one in inference."""
    return varied(build, "training", run=classify, **option), varied(build, "inference", run=inference, **option)


TIPS = (
    Tip(
        "inplace_activation", "Use inplace=True in activations: it saves the memory of their outputs.",
        _in_both_modes(activations, in_place=(False, True)), VGG, free=True,
    ),
    Tip("inplace_operators", "Write x += y instead of x = x + y.", _in_both_modes(sums, in_place=(False, True)), VGG),
    Tip(
        "one_name", "Avoid intermediate variables in forward: call every result x. It saves up to 90%.",
        _in_both_modes(names, own_names=(True, False)), VGG,
    ),
    Tip(
        "del", "del every intermediate result that is no longer needed.",
        (varied(steps, "no op saved it", kept=False, delete=(False, True)),
         varied(steps, "backward needs it", kept=True, delete=(False, True))),
        VGG,
    ),
    Tip("inplace", "Replace batch norm and activation by in-place ABN.", (Case(norm_and_activation, activated_norm),), VGG),
    Tip(
        "offload", "Keep activations in the host's memory until backward.",
        (Case(plain, partial(classify, region=save_on_cpu)),), RESNET, free=True,
    ),
    Tip(
        "compression", "Keep activations in 8 bits until backward.",
        (Case(plain, partial(classify, region=compressed)),), RESNET, free=True,
    ),
)  # fmt: skip
