"""Tips about lifetimes: sums of losses, graphs that are not needed, garbage, caches."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import tinygrad_mem as tm

from .. import memory, nn
from .optimizers import MLP
from .tip import RESNET, VGG, Case, Scene, Tip, Training, classify, mean_of, momentum, plain, varied

# --- the running sum of losses


def summed(scene: Scene, what: str, train: bool) -> Training:
    """The sum of the losses, or of what a method of theirs returns."""
    model, batches = scene.model(), [scene.data() for _ in range(4)]
    rule = momentum(model.parameters())

    def epoch() -> float:
        total: Any = 0.0
        for x, y in batches:
            loss = scene.loss(model(x), y)
            if train:
                rule.zero_grad()
                loss.backward()
                rule.step()
            total += loss if what == "loss" else getattr(loss, what)()
            del loss
        return total if isinstance(total, float) else total.item()

    return Training(epoch, model, steps=1)


# --- evaluation


def evaluated(scene: Scene, training: bool, grad: bool) -> Training:
    model, (x, _) = scene.model(), scene.data()
    model.train(training)

    def step() -> float:
        with tm.set_grad_enabled(grad):
            return mean_of(model(x))

    return Training(step, model)


# --- the collector, and the pool's cache


class Cyclic(nn.Module):
    """A model that makes a reference cycle, a list that holds itself. Only the garbage collector frees it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        seen: list = [x + 0.0]
        seen.append(seen)
        return self.model(seen[0])


def four_steps(scene: Scene, cyclic: bool = False, after_each: Any = None) -> Training:
    training = classify(scene, Cyclic(scene.model()), batch_size=8 * scene.batch_size) if cyclic else classify(scene)

    def step() -> float:
        loss = training.step()
        if after_each is not None:
            after_each()
        return loss

    return Training(step, training.model, steps=4)


# --- a second training in the same process


def again(scene: Scene, keep: bool) -> Training:
    first = classify(scene)
    first.step()
    left = first if keep else None
    del first
    tm.manual_seed(0)  # the second one begins as it would in a new process
    second = classify(scene)
    return Training(lambda: (second.step(), left)[0], second.model)  # the step knows the name


TIPS = (
    Tip(
        "restart", "Restart the program to free memory.",
        (Case(partial(again, keep=True), plain, "a name still holds the old training"),
         Case(partial(again, keep=False), plain, "no name holds it")),
        MLP, free=True,
    ),
    Tip(
        "item", "Add loss.item() to the running sum, not the loss.",
        (varied(summed, "after backward", what=("loss", "item"), train=True),
         varied(summed, "losses without a backward", what=("loss", "item"), train=False)),
        RESNET, free=True,
    ),
    Tip(
        "detach", "Add loss.detach() to the running sum, not the loss.",
        (varied(summed, what=("loss", "detach"), train=False),), RESNET, free=True,
    ),
    Tip(
        "eval", "Switch to model.eval() for validation: it saves memory.",
        (varied(evaluated, training=(True, False), grad=True),), VGG, free=True,
    ),
    Tip(
        "no_grad", "Validate under no_grad().",
        (varied(evaluated, training=False, grad=(True, False)),), VGG, free=True,
    ),
    Tip(
        "gc_collect", "Call gc.collect() after each step.",
        (Case(four_steps, partial(four_steps, after_each=gc.collect), "a plain step"),
         Case(partial(four_steps, cyclic=True), partial(four_steps, cyclic=True, after_each=gc.collect),
              "your own code makes cycles")),
        MLP, free=True,
    ),
    Tip(
        "empty_cache", "Call empty_cache() after each step.",
        (Case(four_steps, partial(four_steps, after_each=memory.empty_cache)),), MLP, free=True,
    ),
)  # fmt: skip
