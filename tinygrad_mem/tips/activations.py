"""Tips about activations: in-place layers and operators, variable names, del, offload, compression."""

from __future__ import annotations

from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..techniques import InPlaceABN, compressed, save_on_cpu
from .tip import RESNET, VGG, Case, Scene, Tip, Training, classify, inference, momentum, plain

# --- in-place activations


def _written(model: Any, in_place: bool) -> Any:
    """The model with all its activations in place, or none."""
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = in_place
    return model


def activations_apart(scene: Scene) -> Training:
    return classify(scene, _written(scene.model(), in_place=False))


def activations_in_place(scene: Scene) -> Training:
    return classify(scene, _written(scene.model(), in_place=True))


def apart_in_inference(scene: Scene) -> Training:
    return inference(scene, _written(scene.model(), in_place=False))


def in_place_in_inference(scene: Scene) -> Training:
    return inference(scene, _written(scene.model(), in_place=True))


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


def _residual(in_place: bool) -> nn.Module:
    body = [layer for _ in range(4) for layer in (Residual(in_place), nn.ReLU(inplace=True))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *body, head)


def sum_apart(scene: Scene) -> Training:
    return classify(scene, _residual(in_place=False))


def sum_in_place(scene: Scene) -> Training:
    return classify(scene, _residual(in_place=True))


def sum_apart_in_inference(scene: Scene) -> Training:
    return inference(scene, _residual(in_place=False))


def sum_in_place_in_inference(scene: Scene) -> Training:
    return inference(scene, _residual(in_place=True))


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


def _chain(scene: Scene) -> nn.Sequential:
    model = scene.model()
    return nn.Sequential(*model.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.classifier)


def own_names(scene: Scene) -> Training:
    return classify(scene, Named(True, _chain(scene)))


def one_name(scene: Scene) -> Training:
    return classify(scene, Named(False, _chain(scene)))


def own_names_in_inference(scene: Scene) -> Training:
    return inference(scene, Named(True, _chain(scene)))


def one_name_in_inference(scene: Scene) -> Training:
    return inference(scene, Named(False, _chain(scene)))


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


def sums_stay(scene: Scene) -> Training:
    return classify(scene, Steps(kept=False, delete=False))


def sums_deleted(scene: Scene) -> Training:
    return classify(scene, Steps(kept=False, delete=True))


def saved_stay(scene: Scene) -> Training:
    return classify(scene, Steps(kept=True, delete=False))


def saved_deleted(scene: Scene) -> Training:
    return classify(scene, Steps(kept=True, delete=True))


# --- in-place activated batch norm


def abn(model: Any) -> Any:
    """The model whose pairs of batch norm and ReLU are layers of :class:`InPlaceABN`."""
    layers = list(model.features)
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.BatchNorm2d):
            layers[i : i + 2] = [InPlaceABN(layer.num_features), nn.Identity()]
    model.features = nn.Sequential(*layers)
    return model


def _leaky(model: Any) -> Any:
    model.features = nn.Sequential(*(nn.LeakyReLU(0.01, inplace=True) if isinstance(m, nn.ReLU) else m for m in model.features))
    return model


def norm_and_activation(scene: Scene) -> Training:
    return classify(scene, _leaky(scene.model()))


def activated_norm(scene: Scene) -> Training:
    return classify(scene, abn(scene.model()))


# --- elsewhere, and in fewer bits


def _around(scene: Scene, context: Any) -> Training:
    model, (x, y) = scene.model(), scene.data()
    rule = momentum(model.parameters())

    def step() -> float:
        rule.zero_grad()
        with context():
            loss = scene.loss(model(x), y)
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model)


def offloaded(scene: Scene) -> Training:
    return _around(scene, save_on_cpu)


def eight_bits(scene: Scene) -> Training:
    return _around(scene, compressed)


TIPS = (
    Tip(
        "inplace_activation",
        "Use inplace=True in activations: it saves the memory of their outputs.",
        (
            Case(activations_apart, activations_in_place, "training"),
            Case(apart_in_inference, in_place_in_inference, "inference"),
        ),
        VGG,
        free=True,
    ),
    Tip(
        "inplace_operators",
        "Write x += y instead of x = x + y.",
        (Case(sum_apart, sum_in_place, "training"), Case(sum_apart_in_inference, sum_in_place_in_inference, "inference")),
        VGG,
    ),
    Tip(
        "one_name",
        "Avoid intermediate variables in forward: call every result x. It saves up to 90%.",
        (Case(own_names, one_name, "training"), Case(own_names_in_inference, one_name_in_inference, "inference")),
        VGG,
    ),
    Tip(
        "del",
        "del every intermediate result that is no longer needed.",
        (Case(sums_stay, sums_deleted, "no op saved it"), Case(saved_stay, saved_deleted, "backward needs it")),
        VGG,
    ),
    Tip("inplace", "Replace batch norm and activation by in-place ABN.", (Case(norm_and_activation, activated_norm),), VGG),
    Tip("offload", "Keep activations in the host's memory until backward.", (Case(plain, offloaded),), RESNET, free=True),
    Tip("compression", "Keep activations in 8 bits until backward.", (Case(plain, eight_bits),), RESNET, free=True),
)
