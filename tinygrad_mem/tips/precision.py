"""Tips about float16: what it halves, what it breaks, and the solutions."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm

from .. import amp, nn
from ..models.names import Named
from .digits import MOMENTUM, learner
from .tip import Case, Scene, SlimVGG, Tip, Training, classify, plain, varied


def half(scene: Scene) -> Training:
    model: Any = scene.model().half()
    x, y = scene.data()
    return classify(scene, model, data=(x.half() if x.is_floating_point() else x, y))


def autocast(scene: Scene, model: Any = None) -> Training:
    model, data = model or scene.model(), scene.data()
    return classify(scene, model, data=data, region=partial(amp.autocast, data[0].device.type, dtype=tm.float16))


def _wide() -> nn.Module:
    """Parameters outweigh the activations of a batch."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 512), nn.ReLU(inplace=True), nn.Linear(512, 10))


def wide(scene: Scene, run: Any) -> Training:
    return run(scene, _wide())


# --- small updates


def small_updates(scene: Scene, dtype: Any, **options: Any) -> Training:
    """Forty steps; most updates are smaller than half of the smallest change of a float16 parameter."""
    model: Any = scene.model().to(dtype)
    x, y = scene.data()
    x = x.to(dtype)
    rule = tm.optim.SGD(model.parameters(), lr=2e-3, **options)

    def step() -> float:
        rule.zero_grad()
        loss = scene.loss(model(x).float(), y)
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model, steps=40)


# --- small gradients


def small_gradients(scene: Scene, dtype: Any, scale: float | None = None, growth_interval: int = 2000) -> Training:
    """Losses so small that gradients underflow in float16, and a rate that is larger by the same factor."""
    model, (x, y) = scene.model(), scene.data()
    rule = tm.optim.SGD(model.parameters(), lr=0.01 * 2.0**20)
    scaler = amp.GradScaler(x.device.type, init_scale=scale or 1.0, growth_interval=growth_interval, enabled=scale is not None)

    def step() -> float:
        rule.zero_grad()
        with amp.autocast(x.device.type, dtype=tm.float16, enabled=dtype is tm.float16):
            loss = scene.loss(model(x), y) * 2.0**-20
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        return loss.item()

    return Training(step, model, steps=4)


# --- long sums


def long_sum(scene: Scene, gradients: Any, parameters: Any = tm.float16) -> Training:
    """The gradient of a batch of 2,048 and of 200 single samples, accumulated; the step returns its sum over the parameters."""
    layer = nn.Linear(64, 64, bias=False).to(parameters)
    layer.weight.grad_dtype = gradients
    many, one = (tm.ones(n, 64, dtype=parameters) for n in (2048, 1))

    def step() -> float:
        for x in (many, *[one] * 200):
            layer(x).sum().backward()
        grad: Any = layer.weight.grad
        return grad.float().sum().item()

    return Training(step, steps=1)


SMALL = Scene(Named(lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,), 10), 64)
NORMLESS = Scene(Named(lambda: SlimVGG(norm=None), (3, 32, 32), 10), 16)
_UNSCALED, _IN_FLOAT32 = (partial(small_gradients, dtype=dtype) for dtype in (tm.float16, tm.float32))
TIPS = (
    Tip(
        "half", "Train in float16: everything is half as large.",
        (Case(plain, half, learners=(learner(MOMENTUM), learner(MOMENTUM, "float16"))),), NORMLESS, free=True,
    ),
    Tip(
        "autocast", "Train in mixed precision: it halves the memory.",
        (Case(plain, autocast, "activations outweigh parameters", learners=(learner(MOMENTUM), learner(MOMENTUM, "autocast"))),
         varied(wide, "parameters outweigh activations", run=(classify, autocast))),
        NORMLESS,
    ),
    Tip(
        "master_weights", "Keep float32 copies of float16 parameters.",
        (Case(partial(small_updates, dtype=tm.float16), partial(small_updates, dtype=tm.float16, master_weights=True),
              ideal=partial(small_updates, dtype=tm.float32),
              learners=(learner(MOMENTUM, "float16"), learner(MOMENTUM, "half"))),),
        SMALL,
    ),
    Tip(
        "static_loss_scale", "Multiply the loss by a constant.",
        (Case(_UNSCALED, partial(_UNSCALED, scale=2.0**16, growth_interval=1 << 30), ideal=_IN_FLOAT32),), SMALL,
    ),
    Tip(
        "dynamic_loss_scale", "Multiply the loss by the largest number that fits.",
        (Case(_UNSCALED, partial(_UNSCALED, scale=2.0**16, growth_interval=2), ideal=_IN_FLOAT32),), SMALL,
    ),
    Tip(
        "float32_sums", "Accumulate in float32.",
        (Case(partial(long_sum, gradients=tm.float16), partial(long_sum, gradients=tm.float32),
              ideal=partial(long_sum, gradients=tm.float32, parameters=tm.float32)),),
        SMALL,
    ),
)  # fmt: skip
