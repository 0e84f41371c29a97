"""A small CNN on real handwritten digits: its training, and its accuracy, for tips that change the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import tinygrad_mem as tm

from ..data.digits import load_digits
from ..devices import apart
from ..models.digits import DigitsCNN
from ..models.precision import Step
from ..nn import functional as F
from .tip import Learner

EPOCHS, BATCH, SEED = 3, 64, 0
MOMENTUM = partial(tm.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(tm.optim.Adam, lr=2e-3)


class DigitsTraining:
    """A network for images, its optimizer, and what a precision changes of a step.

    Args:
        make_rule: makes the optimizer, of the parameters and of the precision's options.
        precision: see :class:`Step`.
        device: to which held-out batches are moved.
    """

    def __init__(self, model: Any, make_rule: Callable[..., Any], precision: str, device: tm.device) -> None:
        self.model, self.device, self.precise = model, device, Step(precision, device.type)
        self.rule = make_rule(self.precise.prepare(model).parameters(), **self.precise.options)

    def step(self, images: tm.Tensor, labels: tm.Tensor) -> float:
        """One step; returns the loss."""
        self.rule.zero_grad()  # before the forward, so that gradients and activations do not coexist
        with self.precise.region():
            loss = F.cross_entropy(self.precise.forward(self.model, images), labels)
        self.precise.backward(loss)
        self.precise.update(self.rule)
        return loss.item()

    @tm.no_grad()
    def accuracy(self, batches: Iterable[tuple[tm.Tensor, tm.Tensor]]) -> float:
        """The share of images that the model classifies correctly, in eval mode."""
        self.model.eval()
        right = total = 0
        for images, labels in batches:
            with self.precise.region():
                guess = self.precise.forward(self.model, images.to(self.device)).argmax(1)
            right += (guess == labels.to(self.device)).sum().item()
            total += len(labels)
        self.model.train()
        return right / total


@cache
def _accuracy(device: str, precision: str, make_rule: Callable[..., Any]) -> float:
    train_x, train_y, test_x, test_y = (tm.tensor(each, device=device) for each in load_digits())
    with apart():
        tm.manual_seed(SEED)
        with tm.device(device):
            model = DigitsCNN()
        training = DigitsTraining(model, make_rule, precision, tm.device(device))
        for _ in range(EPOCHS):
            for chosen in tm.randperm(len(train_y), device=device).split(BATCH):
                training.step(train_x[chosen], train_y[chosen])
        return training.accuracy([(test_x, test_y)])


def learner(make_rule: Callable[..., Any], precision: str = "float32") -> Learner:
    """A function of a device that trains with an optimizer, in a precision of :class:`Step`; results are cached."""
    return lambda device: _accuracy(device, precision, make_rule)
