"""Tips about the batch: fewer samples, smaller samples, a batch in parts."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..models.names import Named
from ..nn import functional as F
from ..techniques import accumulate
from .tip import RESNET, Case, Scene, SlimVGG, Tip, Training, classify, momentum, plain

NORMLESS = Scene(Named(lambda: SlimVGG(norm=None), (3, 64, 64), 10), 16)
"""A network without batch norm, so that the parts of a batch have the gradient of the whole batch."""


def batch_times(scene: Scene, factor: float) -> Training:
    return classify(scene, batch_size=int(factor * scene.batch_size))


def half_the_size(scene: Scene) -> Training:
    x, y = scene.data()
    if scene.network.tokens:
        return classify(scene, data=(x[:, ::2].clone(), y[:, ::2].clone()))
    return classify(scene, data=(F.avg_pool2d(x, 2), y))


def in_four(scene: Scene, each: bool) -> Training:
    """Four parts, with a backward for each or one for all."""
    model, (x, y) = scene.model(), scene.data()
    rule = momentum(model.parameters())

    def step() -> float:
        rule.zero_grad()
        total: Any = 0.0
        for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = scene.loss(model(xs), ys) * (len(xs) / len(x))
            if each:
                loss.backward()
            total = total + (loss.detach() if each else loss)
        del loss
        if not each:
            total.backward()
        rule.step()
        return total.item()

    return Training(step, model)


def accumulated(scene: Scene) -> Training:
    model, (x, y) = scene.model(), scene.data()
    window = accumulate(model, momentum(model.parameters()), steps=4)
    return Training(lambda: window.split(x, y, scene.loss).item(), model)


TIPS = (
    Tip(
        "smaller_batch", "Use a smaller batch: memory is linear in it.",
        (Case(plain, partial(batch_times, factor=0.5)),), RESNET, free=True,
    ),
    Tip("smaller_images", "Use smaller images.", (Case(plain, half_the_size),), RESNET, free=True),
    Tip(
        "split_batch", "Split the batch and add up the losses.",
        (Case(plain, partial(in_four, each=False), "losses summed, one backward"),
         Case(plain, partial(in_four, each=True), "a backward for each part")),
        NORMLESS, free=True,
    ),
    Tip("accumulation", "Accumulate gradients over parts of the batch.", (Case(plain, accumulated),), NORMLESS, free=True),
)  # fmt: skip
