"""Tips about optimizers: their state for each parameter, and when gradients are freed."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..models.names import Named
from ..techniques import lora, optimizer_in_backward, paged_optimizer, quantize_frozen
from .digits import ADAM, MOMENTUM, learner
from .tip import Build, Case, Scene, Tip, Training, classify, momentum, varied


def _mlp() -> nn.Module:
    """A network whose parameters outweigh its activations, so that optimizer state matters."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


ADAM_OF_MLP = partial(tm.optim.Adam, lr=1e-3)
MUON = partial(tm.optim.Muon, lr=2e-3, adjust_lr_fn="match_rms_adamw", adamw=True)
MLP = Scene(Named(_mlp, (784,), 10), 64)
adam = partial(classify, optimizer=ADAM_OF_MLP)


def many_matrices(scene: Scene, optimizer: Any) -> Training:
    first = nn.Linear(scene.network.sample[0], 256)
    layers = [layer for _ in range(12) for layer in (nn.ReLU(), nn.Linear(256, 256))]
    return classify(scene, nn.Sequential(first, *layers), optimizer=optimizer)


def adapters(scene: Scene, quantized: bool = False) -> Training:
    model = lora(quantize_frozen(scene.model(), "nf4") if quantized else scene.model(), r=8)
    return classify(scene, model, optimizer=lambda all: ADAM_OF_MLP([p for p in all if p.requires_grad]))


def paged_adam(scene: Scene) -> Training:
    return classify(scene, optimizer=lambda all: paged_optimizer(ADAM_OF_MLP(all)))


def stepped_in_backward(scene: Scene, optimizer: Any = tm.optim.Adam) -> Training:
    model: Any = scene.model()
    x, y = scene.data()
    rule = optimizer(model.parameters(), lr=1e-3)
    optimizer_in_backward(rule)
    model.rule = rule  # the hooks refer to the optimizer weakly, so something must hold it

    def step() -> float:
        loss = scene.loss(model(x), y)
        loss.backward()
        return loss.item()

    return Training(step, model)


def zeroed(scene: Scene, to_none: bool, first: bool) -> Training:
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


def _with(rule: Any, **options: Any) -> Build:
    return partial(classify, optimizer=partial(rule, **options))


def _instead_of_adam(name: str, says: str, after: Build, rule: Any) -> Tip:
    """A tip about an optimizer: its bytes on a network of many parameters, and how well it learns digits."""
    return Tip(name, says, (Case(adam, after, learners=(learner(ADAM), learner(rule))),), MLP, free=True)


def _at_rates(name: str, says: str, rule: Any, lr: float, of_digits: float, **options: Any) -> Tip:
    """The same for an optimizer whose options, except the rate, are the same for both networks."""
    return _instead_of_adam(name, says, _with(rule, lr=lr, **options), partial(rule, lr=of_digits, **options))


_MUON_LEARNS = (learner(ADAM), learner(MUON))
TIPS = (
    _instead_of_adam("momentum", "Use SGD with momentum instead of Adam.", partial(classify, optimizer=momentum), MOMENTUM),
    _at_rates("sgd", "Use plain SGD instead of Adam.", tm.optim.SGD, 0.01, 0.05),
    _at_rates("half_states", "Keep Adam's moments in float16.", tm.optim.Adam, 1e-3, 2e-3, state_dtype=tm.float16),
    _at_rates("eight_bit", "Use an 8-bit Adam.", tm.optim.Adam8bit, 1e-3, 2e-3),
    _instead_of_adam(
        "adafactor", "Use Adafactor instead of Adam.", _with(tm.optim.Adafactor, lr=1e-3), tm.optim.Adafactor
    ),
    _at_rates("four_bit", "Use a 4-bit Adam.", tm.optim.Adam4bit, 1e-3, 2e-3),
    _at_rates("lion", "Use Lion instead of Adam.", tm.optim.Lion, 1e-4, 5e-4),
    _at_rates("adam_mini", "Use Adam-mini: one mean square a row.", tm.optim.AdamMini, 1e-3, 2e-3),
    _instead_of_adam(
        "galore", "Use GaLore: moments of a gradient of few rows.",
        _with(tm.optim.GaLore, lr=1e-3, rank=16), partial(tm.optim.GaLore, rank=8, lr=2e-3)
    ),
    _at_rates("apollo_mini", "Use APOLLO-mini instead of Adam.", tm.optim.APOLLOMini, 1e-3, 2e-3),
    _instead_of_adam(
        "adalomo", "Use AdaLomo, which steps in backward.",
        partial(stepped_in_backward, optimizer=tm.optim.AdaLomo), partial(tm.optim.AdaLomo, lr=0.02)
    ),
    Tip(
        "muon", "Use Muon instead of Adam: one moment of each matrix.",
        (Case(adam, partial(classify, optimizer=MUON), "two matrices are most of the network", learners=_MUON_LEARNS),
         Case(partial(many_matrices, optimizer=ADAM_OF_MLP), partial(many_matrices, optimizer=MUON), "of many matrices",
              learners=_MUON_LEARNS)),
        MLP,
    ),
    Tip("lora", "Train LoRA's thin matrices instead of the weights.", (Case(adam, adapters),), MLP, free=True),
    Tip(
        "quantized", "With LoRA, keep the frozen weights in 4 bits.",
        (Case(adapters, partial(adapters, quantized=True)),), MLP, free=True,
    ),
    Tip("paged", "Keep the optimizer's state in host memory.", (Case(adam, paged_adam),), MLP, free=True),
    Tip("in_backward", "Step the optimizer inside backward.", (Case(adam, stepped_in_backward),), MLP, free=True),
    Tip(
        "zero_grad", "Call zero_grad(set_to_none=True) instead of writing zeros.",
        (varied(zeroed, "before forward", to_none=(False, True), first=True),
         varied(zeroed, "between forward and backward", to_none=(False, True), first=False)),
        MLP, free=True,
    ),
)  # fmt: skip
