"""The accuracy of a small CNN on real handwritten digits, for tips that change the numbers."""

from __future__ import annotations

from collections.abc import Callable
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


@cache
def _accuracy(device: str, precision: str, make_rule: Callable[..., Any]) -> float:
    train_x, train_y, test_x, test_y = (tm.tensor(each, device=device) for each in load_digits())
    with apart():
        tm.manual_seed(SEED)
        step = Step(precision, tm.device(device).type)
        with tm.device(device):
            model: Any = step.prepare(DigitsCNN())
        rule = make_rule(model.parameters(), **step.options)
        for _ in range(EPOCHS):
            for chosen in tm.randperm(len(train_y), device=device).split(BATCH):
                rule.zero_grad()
                with step.region():
                    loss = F.cross_entropy(step.forward(model, train_x[chosen]), train_y[chosen])
                step.backward(loss)
                step.update(rule)
        model.eval()
        with tm.no_grad(), step.region():
            return (step.forward(model, test_x).argmax(1) == test_y).float().mean().item()


def learner(make_rule: Callable[..., Any], precision: str = "float32") -> Learner:
    """A function of a device that trains with an optimizer, in a precision of :class:`Step`; results are cached."""
    return lambda device: _accuracy(device, precision, make_rule)
