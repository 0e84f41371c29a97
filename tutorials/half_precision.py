"""Four ways in which training in float16 fails, and what cures each: shown, then cured.

- *Gradients* below 2**-25 are 0 in float16, and nothing learns: the loss is multiplied by a scale, its gradients divided by it
  again in float32 (loss scaling).
- *Updates* below half of the weight's last digit vanish: a float32 copy of the weights collects them (master weights).
- *Sums* of float16 ones end at 2,048, for 2,049 is no float16 number: sums are made in float32 (accumulation).
- *Adam's eps* of 1e-8 is 0 in float16, and 0 / 0 is nan: moments are float32 (optimizer state).

    python tutorials/half_precision.py [picture.png]

Source: Micikevicius et al., *Mixed precision training*, 2018.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import numpy as np

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.models.digits import DigitsCNN
from tinygrad_mem.nn import functional as F

SCALE = 2.0**14
SMALLEST = -24  # the exponent of float16's smallest number; what is below half of it is 0

# --- gradients -------------------------------------------------------------------------------------------------------------


@cache
def gradient_exponents(scale: float = 1.0) -> np.ndarray:
    """log2 of the sizes of all gradients, of activations too, of a small CNN on real digits, in float32, times ``scale``."""
    images, labels, _, _ = load_digits()
    tm.manual_seed(0)
    model, found = DigitsCNN(), []

    def look(grad: tm.Tensor) -> None:
        found.append(grad.flatten().numpy().copy())

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, inputs, out: out.register_hook(look) and None)
    loss = F.cross_entropy(model(tm.tensor(images[:256])), tm.tensor(labels[:256]))
    (loss * scale).backward()
    sizes = np.abs(np.concatenate(found))
    return np.log2(sizes[sizes > 0])


@cache
def faint_task(scale: float, dtype: tm.dtype = tm.float16, steps: int = 60) -> list[float]:
    """The losses of a linear layer whose gradients are near 2**-27, trained with a loss multiplied by ``scale``."""
    rng = np.random.default_rng(0)
    x = tm.tensor(2**-13 * rng.standard_normal((64, 16)), dtype=dtype)
    wanted = tm.tensor(2**-13 * rng.standard_normal((64, 16)), dtype=tm.float32)
    weight = tm.zeros(16, 16, dtype=dtype, requires_grad=True)
    weight.grad_dtype = tm.float32
    optimizer = tm.optim.SGD([weight], lr=2.0**27, master_weights=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        error = (x @ weight).float() - wanted
        loss = (error * error).mean()
        (loss * scale).backward()
        assert weight.grad is not None
        weight.grad /= scale  # in float32: what came through is not lost again
        optimizer.step()
        losses.append(float(loss) * 2**26)
    return losses


@cache
def scale_history(steps: int = 120) -> list[tuple[float, bool, float]]:
    """(scale, whether the step was made, loss) of a float16 network on the digits, under a dynamic scale that begins too high.

    A gradient that is inf says that the scale is too high: the step is skipped, the scale halved. Many good steps double it.
    """
    images, labels, _, _ = load_digits()
    x, y = tm.tensor(images[:256]).flatten(1).half(), tm.tensor(labels[:256])
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).half()
    for p in model.parameters():
        p.grad_dtype = tm.float32
    optimizer = tm.optim.SGD(model.parameters(), lr=0.5, master_weights=True)
    scaler, history = tm.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=25), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).float(), y)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        made = scaler.stepped(optimizer)
        scaler.update()
        history.append((scale, made, float(loss)))
    return history


# --- updates ---------------------------------------------------------------------------------------------------------------


@cache
def slow_task(master_weights: bool, dtype: tm.dtype = tm.float16, steps: int = 1500) -> list[float]:
    """A weight that should fall from 1 towards 0.9, in steps of at most 1e-4: less than half of its last digit, 2.4e-4."""
    weight = tm.ones(1, dtype=dtype, requires_grad=True)
    optimizer = tm.optim.SGD([weight], lr=1e-3, master_weights=master_weights)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        ((weight - 0.9) ** 2 * 0.5).sum().backward()
        optimizer.step()
        values.append(float(weight))
    return values


# --- sums ------------------------------------------------------------------------------------------------------------------


@cache
def running_sum(count: int = 5000) -> list[float]:
    """1 + 1 + 1 + ... kept in a float16 tensor."""
    total, one, seen = tm.zeros(1, dtype=tm.float16), tm.ones(1, dtype=tm.float16), []
    for _ in range(count):
        total += one
        seen.append(float(total))
    return seen


def our_sums(counts: list[int]) -> list[float]:
    """What ``sum`` makes of so many float16 ones."""
    return [float(tm.ones(n, dtype=tm.float16).sum()) for n in counts]


# --- Adam's eps ------------------------------------------------------------------------------------------------------------


class HalfAdam:
    """Adam as it is written in textbooks, on float16 tensors alone: do not use it."""

    def __init__(self, weight: tm.Tensor, lr: float = 1e-2, eps: float = 1e-8) -> None:
        self.weight, self.lr, self.eps, self.t = weight, lr, eps, 0
        self.m, self.v = tm.zeros_like(weight), tm.zeros_like(weight)

    def step(self) -> None:
        self.t += 1
        with tm.no_grad():
            g = self.weight.grad
            self.m = 0.9 * self.m + 0.1 * g
            self.v = 0.999 * self.v + 0.001 * g * g
            m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
            self.weight -= self.lr * m / (v.sqrt() + self.eps)


def unused_weight(make: Callable[[tm.Tensor], object], steps: int = 50) -> np.ndarray:
    """Four weights, step by step; the last has no part in the loss, so that its gradient is 0."""
    weight = tm.ones(4, dtype=tm.float16, requires_grad=True)
    optimizer, seen = make(weight), []
    for _ in range(steps):
        weight.grad = None
        (weight * tm.tensor([1.0, 0.5, 2.0, 0.0], dtype=tm.float16)).square().sum().backward()
        optimizer.step()  # type: ignore[attr-defined]
        seen.append(weight.detach().numpy().copy())
    return np.array(seen)


# --- the picture -----------------------------------------------------------------------------------------------------------


def draw(path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, ((gradients, faint, dynamic), (updates, sums, eps)) = plt.subplots(2, 3, figsize=(17, 8), layout="constrained")
    bins = np.arange(-48, 17)
    for scale, color in ((1.0, "#c0392b"), (SCALE, "#2471a3")):
        exponents = gradient_exponents(scale)
        lost = (exponents < SMALLEST - 1).mean()
        label = f"as they are: {lost:.1%} are 0" if scale == 1 else f"times 2^{int(np.log2(scale))}: {lost:.1%} are 0"
        gradients.hist(exponents, bins=bins, color=color, alpha=0.6, label=label)
    for limit in (SMALLEST, 16):
        gradients.axvline(limit, color="black", linestyle="--", linewidth=1)
    gradients.set_ylim(0, gradients.get_ylim()[1] * 1.25)
    gradients.text(SMALLEST - 0.5, gradients.get_ylim()[1] * 0.6, "0 in float16", ha="right", va="top")
    gradients.text(15.5, gradients.get_ylim()[1] * 0.6, "inf", ha="right", va="top")
    gradients.set(title="Gradients of a CNN on digits", xlabel="log2 of their size", ylabel="how many")
    gradients.legend(loc="upper center")

    for losses, label, style in (
        (faint_task(1.0), "float16, no scale", "-"),
        (faint_task(SCALE), "float16, loss times 2^14", "-"),
        (faint_task(1.0, tm.float32), "float32", ":"),
    ):
        faint.plot(losses, style, label=label)
    faint.set(title="Loss scaling: faint gradients", xlabel="step", ylabel="loss, times 2^26", ylim=(0, 1.3))
    faint.legend(loc="lower right")

    history = scale_history()
    scales, skipped = [h[0] for h in history], [i for i, h in enumerate(history) if not h[1]]
    dynamic.step(range(len(scales)), scales, where="post", label="scale")
    dynamic.plot(skipped, [scales[i] for i in skipped], "x", color="#c0392b", label="step skipped: a gradient was inf")
    dynamic.set_yscale("log", base=2)
    dynamic.set(title="GradScaler: the scale finds its place", xlabel="step", ylabel="scale")
    dynamic.legend(loc="upper right")

    for values, label, style in (
        (slow_task(False), "float16 alone", "-"),
        (slow_task(True), "float16 with master weights", "-"),
        (slow_task(False, tm.float32), "float32", ":"),
    ):
        updates.plot(values, style, label=label)
    updates.set(title="Master weights: small updates", xlabel="step", ylabel="a weight that should go to 0.9")
    updates.legend()

    seen, counts = running_sum(), list(range(0, 5001, 250))
    sums.plot(range(1, len(seen) + 1), seen, label="added up in float16")
    sums.plot(counts, our_sums(counts), "o", markersize=4, label="sum() of float16, made in float32")
    sums.axhline(2048, color="black", linestyle="--", linewidth=1)
    sums.text(0, 2100, "2048")
    sums.set(title="Accumulation: a sum of ones", xlabel="how many ones", ylabel="their sum")
    sums.legend(loc="upper left")

    naive, ours = unused_weight(HalfAdam), unused_weight(lambda w: tm.optim.Adam([w], lr=1e-2))
    eps.plot(ours[:, 0], "-", label="optim.Adam, a weight with a gradient")
    eps.plot(ours[:, 3], "-", label="optim.Adam, a weight without")
    eps.plot(naive[:, 0], ":", label="Adam in float16 alone, with a gradient")
    eps.plot([0], [1.0], "x", color="#c0392b", markersize=9, label="Adam in float16 alone, without: nan from step 0")
    eps.set(title="Adam's eps: 1e-8 is 0 in float16", xlabel="step", ylabel="weight", ylim=(0.4, 1.3))
    eps.legend(loc="upper right")
    figure.savefig(path, dpi=110)


def main(arguments: list[str]) -> None:
    print("Gradients that are 0 in float16:")
    for scale in (1.0, SCALE):
        print(f"  loss times {scale:7,.0f}: {(gradient_exponents(scale) < SMALLEST - 1).mean():6.1%} of the CNN's", end="; ")
        print(f"the faint task's loss goes from {faint_task(scale)[0]:.2f} to {faint_task(scale)[-1]:.2f}")
    history = scale_history()
    print(
        f"GradScaler: from 2^24 to 2^{int(np.log2(history[-1][0]))}, {sum(not h[1] for h in history)} steps skipped", end="; "
    )
    print(f"the loss goes from {history[0][2]:.2f} to {history[-1][2]:.2f}")
    print("Updates below half of a weight's last digit:")
    for masters in (False, True):
        print(
            f"  master weights {masters!s:5}: 1.0 -> {slow_task(masters)[-1]:.4f}",
            f"(float32: {slow_task(False, tm.float32)[-1]:.4f})",
        )
    print(f"5,000 ones: added up in float16 {running_sum()[-1]:,.0f}, sum() {our_sums([5000])[0]:,.0f}")
    naive = unused_weight(HalfAdam)[-1]
    ours = unused_weight(lambda w: tm.optim.Adam([w], lr=1e-2))[-1]
    print(f"Adam in float16 alone: {naive}; optim.Adam on float16: {ours}")
    if arguments:
        draw(arguments[0])
        print(f"wrote {arguments[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
