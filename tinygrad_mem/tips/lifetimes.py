"""Tips about lifetimes: sums of losses, graphs that are not needed, garbage, caches."""

from __future__ import annotations

import gc
from typing import Any

import tinygrad_mem as tm

from .. import memory, nn
from .optimizers import MLP
from .tip import RESNET, VGG, Case, Scene, Tip, Training, classify, mean_of, momentum

# --- the running sum of losses


def _summed(scene: Scene, number: Any, train: bool) -> Training:
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
            total += number(loss)
            del loss
        return total if isinstance(total, float) else total.item()

    return Training(epoch, model, steps=1)


def summed_while_training(scene: Scene) -> Training:
    return _summed(scene, lambda loss: loss, train=True)


def items_while_training(scene: Scene) -> Training:
    return _summed(scene, lambda loss: loss.item(), train=True)


def summed_in_evaluation(scene: Scene) -> Training:
    return _summed(scene, lambda loss: loss, train=False)


def items_in_evaluation(scene: Scene) -> Training:
    return _summed(scene, lambda loss: loss.item(), train=False)


def detached_in_evaluation(scene: Scene) -> Training:
    return _summed(scene, lambda loss: loss.detach(), train=False)


# --- evaluation


def _evaluated(scene: Scene, mode: bool, grad: bool) -> Training:
    model, (x, _) = scene.model(), scene.data()
    model.train(mode)

    def step() -> float:
        with tm.set_grad_enabled(grad):
            return mean_of(model(x))

    return Training(step, model)


def in_training_mode(scene: Scene) -> Training:
    return _evaluated(scene, mode=True, grad=True)


def in_eval_mode(scene: Scene) -> Training:
    return _evaluated(scene, mode=False, grad=True)


def in_eval_mode_without_grad(scene: Scene) -> Training:
    return _evaluated(scene, mode=False, grad=False)


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


def _then(training: Training, what: Any) -> Training:
    """The same steps, each followed by ``what()``."""

    def step() -> float:
        loss = training.step()
        what()
        return loss

    return Training(step, training.model, steps=4)


def steps_uncollected(scene: Scene) -> Training:
    return _then(classify(scene), lambda: None)


def steps_collected(scene: Scene) -> Training:
    return _then(classify(scene), gc.collect)


def cycles_uncollected(scene: Scene) -> Training:
    return _then(classify(scene, Cyclic(scene.model()), batch_size=8 * scene.batch_size), lambda: None)


def cycles_collected(scene: Scene) -> Training:
    return _then(classify(scene, Cyclic(scene.model()), batch_size=8 * scene.batch_size), gc.collect)


def cache_kept(scene: Scene) -> Training:
    return _then(classify(scene), lambda: None)


def cache_emptied(scene: Scene) -> Training:
    return _then(classify(scene), memory.empty_cache)


# --- a second training in the same process


def _again(scene: Scene, keep: bool) -> Training:
    first = classify(scene)
    first.step()
    left = first if keep else None
    del first
    tm.manual_seed(0)  # the second one begins as it would in a new process
    second = classify(scene)
    return Training(lambda: (second.step(), left)[0], second.model)  # the step knows the name


def after_a_training_with_a_name(scene: Scene) -> Training:
    return _again(scene, keep=True)


def after_a_training_without_a_name(scene: Scene) -> Training:
    return _again(scene, keep=False)


def in_a_new_process(scene: Scene) -> Training:
    return classify(scene)


TIPS = (
    Tip(
        "restart",
        "Restart the program to free memory.",
        (Case(after_a_training_with_a_name, in_a_new_process, "a name still holds the old training"),
         Case(after_a_training_without_a_name, in_a_new_process, "no name holds it")),
        MLP,
        free=True,
    ),
    Tip(
        "item",
        "Add loss.item() to the running sum, not the loss.",
        (Case(summed_while_training, items_while_training, "after backward"),
         Case(summed_in_evaluation, items_in_evaluation, "losses without a backward")),
        RESNET,
        free=True,
    ),
    Tip(
        "detach",
        "Add loss.detach() to the running sum, not the loss.",
        (Case(summed_in_evaluation, detached_in_evaluation),),
        RESNET,
        free=True,
    ),
    Tip(
        "eval",
        "Switch to model.eval() for validation: it saves memory.",
        (Case(in_training_mode, in_eval_mode),),
        VGG,
        free=True,
    ),
    Tip("no_grad", "Validate under no_grad().", (Case(in_eval_mode, in_eval_mode_without_grad),), VGG, free=True),
    Tip(
        "gc_collect",
        "Call gc.collect() after each step.",
        (Case(steps_uncollected, steps_collected, "a plain step"),
         Case(cycles_uncollected, cycles_collected, "your own code makes cycles")),
        MLP,
        free=True,
    ),
    Tip("empty_cache", "Call empty_cache() after each step.", (Case(cache_kept, cache_emptied),), MLP, free=True),
)  # fmt: skip
