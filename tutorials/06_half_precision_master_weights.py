# %% [markdown]
# # 6. Half precision II: master weights and sums in float32
#
# ## Question
#
# Gradients are in float16, scaled. Three things still go wrong where numbers are *added up*: updates of weights, long sums, and
# the moments of Adam. How does each fail, what helps, and how many bytes does that need?
#
# Source: Micikevicius et al., *Mixed precision training*, 2018; for the bytes, Rajbhandari et al., *ZeRO*, 2020.

# %%
import numpy as np
from lesson import Result, block, figure, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.backends import accumulate_in
from tinygrad_mem.memory import Category

RESULT = Result()

# %% [markdown]
# ## By hand
#
# float16 has 11 binary digits, including the one that is not stored. Between 1/2 and 1, neighbouring numbers are `2**-11`
# apart, so an update of less than `2**-12` to a weight just below 1 is always rounded away. From 2048 on they are 2 apart:
# 2048 + 1 is 2048 again. And 1e-8, the `eps` that keeps Adam from dividing 0 by 0, is 0.
#
# The solution is float32 for everything that is added up: a **master** copy of each weight for the optimizer, sums in float32,
# moments in float32. Without a master the moments have the weight's dtype, as in PyTorch. In bytes per parameter, with Adam:
#
# | | weight | master | moments | gradient | together |
# |---|---|---|---|---|---|
# | float32 | 4 | | 8 | 4 | 16 |
# | float16 with masters | 2 | 4 | 8 | 2 | 16 |
# | float16 alone | 2 | | 4 | 2 | 8 |
#
# Safe training in float16 needs as many bytes per parameter as float32. It only makes activations smaller.

# %%
half = tm.tensor([1 - 2.0**-11, 2048.0, 1e-8]).half()
below = (half + tm.tensor([2.0**-13, 1.0, 0.0]).half()).tolist()
print(f"just below 1, plus 2**-13: {below[0]:.6f}; 2048 + 1: {below[1]:.0f}; 1e-8: {below[2]}")
assert below == half.tolist() == [1 - 2.0**-11, 2048.0, 0.0]
del half

WIDTH, LAYERS, BATCH = 256, 4, 64
MODES = {"float32": (4, 0, 4, 4), "masters": (2, 4, 4, 2), "float16 alone": (2, 0, 2, 2)}  # weight, master, moment, gradient
KINDS = (Category.PARAMETER, Category.MASTER_WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)


def by_hand(mode: str) -> list[int]:
    """Bytes of all parameters, masters, moments and gradients."""
    weight, master, moment, gradient = MODES[mode]
    sizes = [WIDTH * WIDTH, WIDTH] * LAYERS
    return [sum(n * block(each * size) for size in sizes) for each, n in ((weight, 1), (master, 1), (moment, 2), (gradient, 1))]


# %% [markdown]
# ## Predicted


# %%
def train(mode: str) -> None:
    """Two steps of Adam; the second has the moments from the beginning."""
    tm.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    dtype = tm.float32 if mode == "float32" else tm.float16
    options = {"master_weights": True} if mode == "masters" else {}
    optimizer = tm.optim.Adam(model.to(dtype).parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        y = model(tm.randn(BATCH, WIDTH, dtype=dtype))
        y.backward(tm.ones_like(y))
        memory.mark("backward ends")
        optimizer.step()


predicted = {mode: memory.predict(train, mode).by_category("backward ends") for mode in MODES}

# %% [markdown]
# ## Measured

# %%
tracks = {}
for mode in MODES:
    with memory.track() as tracks[mode]:
        train(mode)
    measured = tracks[mode].by_category("backward ends")
    for category, hand in zip(KINDS, by_hand(mode), strict=True):
        foreseen, found = predicted[mode].get(category, 0), measured.get(category, 0)
        RESULT.agree(f"{mode}: {category.value}", by_hand=hand, predicted=foreseen, measured=found)
    each = sum(measured.get(category, 0) for category in KINDS) / (LAYERS * WIDTH * (WIDTH + 1))
    RESULT.agree(f"{mode}: a parameter", by_hand=sum(MODES[mode]) + MODES[mode][2], measured=each)

# %% [markdown]
# Why are these bytes needed? **Updates that vanish**: a weight should fall from 1 towards 0.9, in steps of at most 1e-4.


# %%
def slow_task(master_weights: bool, dtype=tm.float16, steps: int = 750) -> list[float]:
    weight = tm.ones(1, dtype=dtype, requires_grad=True)
    optimizer = tm.optim.SGD([weight], lr=2e-3, master_weights=master_weights)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        ((weight - 0.9) ** 2 * 0.5).sum().backward()
        optimizer.step()
        values.append(float(weight))
    return values


slow = {
    "float16 alone": slow_task(False),
    "float16 with masters": slow_task(True),
    "float32": slow_task(False, tm.float32),
}
for name, values in slow.items():
    print(f"{name:20}: 1 becomes {values[-1]:.4f}")
RESULT["float16 alone ends at"], RESULT["masters end at"], RESULT["float32 ends at"] = (v[-1] for v in slow.values())
np.testing.assert_allclose(slow["float16 with masters"], slow["float32"], atol=2**-11)

# %% [markdown]
# **Sums that stall**: 3000 ones, added one by one in a float16 tensor, stop growing. This engine computes every sum in
# float32 and rounds once, also in products and convolutions. `accumulate_in(float16)` shows what a product would be otherwise.


# %%
def running_sum(count: int) -> list[float]:
    """1 + 1 + 1 + ... kept in a float16 tensor."""
    total, one, seen = tm.zeros(1, dtype=tm.float16), tm.ones(1, dtype=tm.float16), []
    for _ in range(count):
        total += one
        seen.append(float(total))
    return seen


def product(count: int) -> float:
    """The same sum, as the product of a row and a column."""
    return float(tm.ones(1, count, dtype=tm.float16) @ tm.ones(count, 1, dtype=tm.float16))


COUNT = 3000
running, whole = running_sum(COUNT), float(tm.ones(COUNT, dtype=tm.float16).sum())
assert [float(tm.ones(n, dtype=tm.float16).sum()) for n in (2048, 2050, 60_000)] == [2048, 2050, 60_000]
with accumulate_in(tm.float16):
    stalled = product(COUNT)
RESULT.agree("one by one", by_hand=2048, measured=running[-1], unit="")
RESULT.agree("sum()", by_hand=COUNT, measured=whole, unit="")
RESULT.agree("a product", by_hand=COUNT, measured=product(COUNT), unit="")
RESULT.agree("a product, accumulated in float16", by_hand=2048, measured=stalled, unit="")

# %% [markdown]
# **Adam's eps**: a weight that does not affect the loss has gradient 0, and Adam divides 0 by `sqrt(0) + eps`. A textbook
# Adam on float16 tensors makes it nan in the first step. The optimizers here compute in float32, whatever the dtype of their
# state.


# %%
class HalfAdam:
    """Do not use it."""

    def __init__(self, weight: tm.Tensor, lr: float = 1e-2, eps: float = 1e-8) -> None:
        self.weight, self.lr, self.eps, self.t = weight, lr, eps, 0
        self.m, self.v = tm.zeros_like(weight), tm.zeros_like(weight)

    @tm.no_grad()
    def step(self) -> None:
        self.t += 1
        g = self.weight.grad
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        self.weight -= self.lr * m / (v.sqrt() + self.eps)


def unused_weight(make, steps: int = 50) -> np.ndarray:
    """Four weights at each step. The last one does not affect the loss."""
    weight = tm.ones(4, dtype=tm.float16, requires_grad=True)
    optimizer, seen = make(weight), []
    for _ in range(steps):
        weight.grad = None
        (weight * tm.tensor([1.0, 0.5, 2.0, 0.0], dtype=tm.float16)).square().sum().backward()
        optimizer.step()
        seen.append(weight.detach().cpu().numpy().copy())
    return np.array(seen)


naive, ours = unused_weight(HalfAdam), unused_weight(lambda w: tm.optim.Adam([w], lr=1e-2))
with_masters = unused_weight(lambda w: tm.optim.Adam([w], lr=1e-2, master_weights=True))
print(f"Adam in float16 alone: {naive[-1].tolist()}")
print(f"optim.Adam on float16: {ours[-1].tolist()}")
assert np.isnan(naive[0, 3])
for safe in (ours, with_masters):
    assert np.isfinite(safe).all()
    assert (safe[:, 3] == 1).all()
    assert (safe[-1, :3] < 0.6).all()
RESULT["naive is nan from step"], RESULT["unused weight"] = int(np.isnan(naive[:, 3]).argmax()), float(ours[-1, 3])

# %% [markdown]
# ## Picture

# %%
drawn, (updates, sums, moments) = figure(3, height=3.8)
for (name, values), style in zip(slow.items(), ("-", "-", ":"), strict=True):
    updates.plot(values, style, label=name)
updates.set_title("Master weights", loc="left")
updates.set(xlabel="step", ylabel="a weight that should go to 0.9")
sums.plot(range(1, COUNT + 1), running, label="one by one, in float16")
counts = list(range(0, COUNT + 1, 500))
sums.plot(counts, [float(tm.ones(n, dtype=tm.float16).sum()) for n in counts], "o", markersize=4, label="sum(), in float32")
sums.axhline(2048, color="black", linestyle="--", linewidth=1)
sums.text(0, 2120, "2048", fontsize=8)
sums.set_title("A sum of ones", loc="left")
sums.set(xlabel="how many ones", ylabel="their sum")
moments.plot(ours[:, 0], label="optim.Adam, with a gradient")
moments.plot(ours[:, 3], label="optim.Adam, without")
moments.plot(naive[:, 0], ":", label="float16 alone, with a gradient")
moments.plot([0], [1.0], "x", color="black", markersize=9, label="float16 alone, without: nan")
moments.set_title("Adam's eps", loc="left")
moments.set(xlabel="step", ylabel="weight", ylim=(0.4, 1.35))
for axes in (updates, sums, moments):
    axes.legend(fontsize=8, frameon=False, loc="best")
picture(drawn, "06_master_weights")
at_end = {mode: tracks[mode].by_category("backward ends") for mode in MODES}
picture(stacked(at_end, "After backward, under Adam"), "06_bytes")

# %% [markdown]
# ## Mechanism
#
# The changes from float32 to float16 with masters, by owner, and the bytes after backward:

# %%
print(tracks["float32"].compare(tracks["masters"]))
print(tracks["masters"].table("category", "backward ends"))

# %% [markdown]
# ## Exercise
#
# Gradients of float16 weights may be float32 (`parameter.grad_dtype`), so that nothing is rounded between backward and the
# master. How many bytes per parameter does that need with Adam? And how many with SGD without momentum, with masters and
# float16 gradients?

# %% [markdown]
# ## Solution


# %%
def exercise(gradients, rule) -> float:
    """Bytes a parameter."""

    def run() -> None:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).half()
        for p in model.parameters():
            p.grad_dtype = gradients
        optimizer = rule(model.parameters(), lr=0.1, master_weights=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(tm.randn(BATCH, WIDTH, dtype=tm.float16)).sum().backward()
            memory.mark("backward ends")
            optimizer.step()

    kept = memory.predict(run).by_category("backward ends")
    return sum(kept.get(category, 0) for category in KINDS) / (LAYERS * WIDTH * (WIDTH + 1))


RESULT.agree("Adam, float32 gradients", by_hand=2 + 4 + 8 + 4, predicted=exercise(tm.float32, tm.optim.Adam))
RESULT.agree("SGD, float16 gradients", by_hand=2 + 4 + 2, predicted=exercise(tm.float16, tm.optim.SGD))
each = {mode: f"{RESULT[f'{mode}: a parameter']:.0f} in {mode.replace('masters', 'float16 with masters')}" for mode in MODES}
RESULT.ends(f"Bytes per parameter with Adam: {', '.join(each.values())}.")
