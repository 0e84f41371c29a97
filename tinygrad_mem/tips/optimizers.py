"""Tips about optimizers: their state for each parameter, and when gradients are freed."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..models.names import Named
from ..techniques import lora, optimizer_in_backward, paged_optimizer, quantize_frozen
from .digits import ADAM, MOMENTUM, learner
from .tip import Build, Case, Scene, Tip, Training, classify, momentum


def _mlp() -> nn.Module:
    """A network whose parameters outweigh its activations, so that optimizer state matters."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


MUON = partial(tm.optim.Muon, lr=2e-3, adjust_lr_fn="match_rms_adamw", adamw=True)
MLP = Scene(Named(_mlp, (784,), 10), 64)


def adam(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Adam, lr=1e-3))


def with_momentum(scene: Scene) -> Training:
    return classify(scene, optimizer=momentum)


def sgd(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.SGD, lr=0.01))


def half_states(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Adam, lr=1e-3, state_dtype=tm.float16))


def eight_bit_states(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Adam8bit, lr=1e-3))


def adafactor(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Adafactor, lr=1e-3))


def four_bit_states(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Adam4bit, lr=1e-3))


def lion(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.Lion, lr=1e-4))


def adam_mini(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.AdamMini, lr=1e-3))


def galore(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.GaLore, lr=1e-3, rank=16))


def apollo_mini(scene: Scene) -> Training:
    return classify(scene, optimizer=partial(tm.optim.APOLLOMini, lr=1e-3))


def muon(scene: Scene) -> Training:
    return classify(scene, optimizer=MUON)


def _deep(scene: Scene) -> nn.Module:
    return nn.Sequential(
        nn.Linear(scene.network.sample[0], 256), *[m for _ in range(12) for m in (nn.ReLU(), nn.Linear(256, 256))]
    )


def adam_of_many_matrices(scene: Scene) -> Training:
    return classify(scene, _deep(scene), optimizer=partial(tm.optim.Adam, lr=1e-3))


def muon_of_many_matrices(scene: Scene) -> Training:
    return classify(scene, _deep(scene), optimizer=MUON)


def adapters(scene: Scene) -> Training:
    model = lora(scene.model(), r=8)
    return classify(scene, model, optimizer=lambda all: tm.optim.Adam([p for p in all if p.requires_grad], lr=1e-3))


def paged_adam(scene: Scene) -> Training:
    return classify(scene, optimizer=lambda all: paged_optimizer(tm.optim.Adam(all, lr=1e-3)))


def quantized_adapters(scene: Scene) -> Training:
    model = lora(quantize_frozen(scene.model(), "nf4"), r=8)
    return classify(scene, model, optimizer=lambda all: tm.optim.Adam([p for p in all if p.requires_grad], lr=1e-3))


def stepped_in_backward(scene: Scene, rule_of: Any = tm.optim.Adam) -> Training:
    model: Any = scene.model()
    x, y = scene.data()
    rule = rule_of(model.parameters(), lr=1e-3)
    optimizer_in_backward(rule)
    model.rule = rule  # the hooks refer to the optimizer weakly, so something must hold it

    def step() -> float:
        loss = scene.loss(model(x), y)
        loss.backward()
        return loss.item()

    return Training(step, model)


def adalomo(scene: Scene) -> Training:
    return stepped_in_backward(scene, tm.optim.AdaLomo)


def _zeroed(scene: Scene, to_none: bool, first: bool) -> Training:
    model: Any = scene.model()
    x, y = scene.data()
    rule = tm.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> float:
        if first:
            rule.zero_grad(set_to_none=to_none)
        loss = scene.loss(model(x), y)
        if not first:
            rule.zero_grad(set_to_none=to_none)
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model)


def zeros_before_forward(scene: Scene) -> Training:
    return _zeroed(scene, to_none=False, first=True)


def none_before_forward(scene: Scene) -> Training:
    return _zeroed(scene, to_none=True, first=True)


def zeros_after_forward(scene: Scene) -> Training:
    return _zeroed(scene, to_none=False, first=False)


def none_after_forward(scene: Scene) -> Training:
    return _zeroed(scene, to_none=True, first=False)


def _instead_of_adam(name: str, says: str, after: Build, rule: Any) -> Tip:
    """A tip about an optimizer: its bytes on a network of many parameters, and how well it learns digits."""
    return Tip(name, says, (Case(adam, after, learners=(learner(ADAM), learner(rule))),), MLP, free=True)


TIPS = (
    _instead_of_adam("momentum", "Use SGD with momentum instead of Adam.", with_momentum, MOMENTUM),
    _instead_of_adam("sgd", "Use plain SGD instead of Adam.", sgd, partial(tm.optim.SGD, lr=0.05)),
    _instead_of_adam("half_states", "Keep Adam's moments in float16.", half_states, partial(ADAM, state_dtype=tm.float16)),
    _instead_of_adam("eight_bit", "Use an 8-bit Adam.", eight_bit_states, partial(tm.optim.Adam8bit, lr=2e-3)),
    _instead_of_adam("adafactor", "Use Adafactor instead of Adam.", adafactor, tm.optim.Adafactor),
    _instead_of_adam("four_bit", "Use a 4-bit Adam.", four_bit_states, partial(tm.optim.Adam4bit, lr=2e-3)),
    _instead_of_adam("lion", "Use Lion instead of Adam.", lion, partial(tm.optim.Lion, lr=5e-4)),
    _instead_of_adam("adam_mini", "Use Adam-mini: one mean square a row.", adam_mini, partial(tm.optim.AdamMini, lr=2e-3)),
    _instead_of_adam(
        "galore", "Use GaLore: moments of a gradient of few rows.", galore, partial(tm.optim.GaLore, rank=8, lr=2e-3)
    ),
    _instead_of_adam("apollo_mini", "Use APOLLO-mini instead of Adam.", apollo_mini, partial(tm.optim.APOLLOMini, lr=2e-3)),
    _instead_of_adam("adalomo", "Use AdaLomo, which steps in backward.", adalomo, partial(tm.optim.AdaLomo, lr=0.02)),
    Tip(
        "muon",
        "Use Muon instead of Adam: one moment of each matrix.",
        (
            Case(adam, muon, "two matrices are most of the network", learners=(learner(ADAM), learner(MUON))),
            Case(adam_of_many_matrices, muon_of_many_matrices, "of many matrices", learners=(learner(ADAM), learner(MUON))),
        ),
        MLP,
    ),
    Tip("lora", "Train LoRA's thin matrices instead of the weights.", (Case(adam, adapters),), MLP, free=True),
    Tip("quantized", "With LoRA, keep the frozen weights in 4 bits.", (Case(adapters, quantized_adapters),), MLP, free=True),
    Tip("paged", "Keep the optimizer's state in host memory.", (Case(adam, paged_adam),), MLP, free=True),
    Tip("in_backward", "Step the optimizer inside backward.", (Case(adam, stepped_in_backward),), MLP, free=True),
    Tip(
        "zero_grad",
        "Call zero_grad(set_to_none=True) instead of writing zeros.",
        (
            Case(zeros_before_forward, none_before_forward, "before forward"),
            Case(zeros_after_forward, none_after_forward, "between forward and backward"),
        ),
        MLP,
        free=True,
    ),
)
