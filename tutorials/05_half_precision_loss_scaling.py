# %% [markdown]
# # 5. Half precision I: storage, underflow, loss scaling
#
# ## Question
#
# A number takes two bytes in float16 and four in float32. What does a training step save if everything is in float16, and
# what happens to gradients that are too small or too large for it?
#
# Source: Micikevicius et al., *Mixed precision training*, 2018.

# %%
import numpy as np
from lesson import DEVICE, Result, block, figure, picture, samples

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.memory import Category
from tinygrad_mem.models.digits import DigitsCNN
from tinygrad_mem.nn import functional as F

RESULT = Result()

# %% [markdown]
# ## By hand
#
# Storage: parameters, activations and gradients need half the bytes, apart from the rounding of blocks to 512 bytes.
#
# Range: float16 has 5 bits of exponent and 10 of fraction. Its largest number is `(2 - 2**-10) * 2**15`, its smallest one
# `2**-24`. Numbers up to half of the smallest round to 0; numbers beyond the largest become inf.

# %%
LARGEST, SMALLEST = (2 - 2**-10) * 2**15, 2.0**-24
half = tm.tensor([LARGEST, LARGEST + 16, SMALLEST, SMALLEST / 2, 0.51 * SMALLEST]).half()
print(half.tolist())
assert half.tolist() == [LARGEST, float("inf"), SMALLEST, 0, SMALLEST]
assert tm.finfo(tm.float16).max == LARGEST
del half

BATCH, WIDTH, LAYERS = 256, 256, 4


def by_hand(each: int) -> dict[str, int]:
    """Bytes of a chain of linear layers and ReLUs whose numbers have ``each`` bytes."""
    return {
        "parameters": LAYERS * (block(each * WIDTH * WIDTH) + block(each * WIDTH)),
        "activations": (LAYERS - 1) * block(each * BATCH * WIDTH),
    }


# %% [markdown]
# ## Predicted


# %%
def step(dtype) -> None:
    tm.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))][:-1]
    model = nn.Sequential(*layers).to(dtype)
    x = tm.randn(BATCH, WIDTH, dtype=dtype)
    y = model(x)
    memory.mark("forward ends")
    y.backward(tm.ones_like(y))


predicted = {dtype: memory.predict(step, dtype) for dtype in (tm.float32, tm.float16)}

# %% [markdown]
# ## Measured

# %%
tracks = {}
for dtype, each in ((tm.float32, 4), (tm.float16, 2)):
    with memory.track() as tracks[dtype]:
        step(dtype)
    for category in (Category.PARAMETER, Category.ACTIVATION):
        found = [track.by_category("forward ends")[category] for track in (predicted[dtype], tracks[dtype])]
        name, hand = f"{dtype}: {category.value}", by_hand(each)[category.value]
        RESULT.agree(name, by_hand=hand, predicted=found[0], measured=found[1])
    RESULT.agree(f"{dtype}: peak", predicted=predicted[dtype].peak, measured=tracks[dtype].peak)

# %% [markdown]
# Next we look at the gradients of a small CNN on real handwritten digits, including gradients of activations. We compute them
# in float32, and count the share that would be 0 in float16. Multiplying the *loss* by a scale multiplies every gradient by it,
# which shifts the whole histogram. After backward the gradients are divided by the scale again, in float32.

# %%
SCALE = 2.0**14
images, labels = (array[:256] for array in load_digits()[:2])


def gradient_exponents(scale: float) -> np.ndarray:
    """log2 of the sizes of all gradients that are not 0, of a loss times ``scale``."""
    tm.manual_seed(0)
    model, found = DigitsCNN(), []

    def look(grad: tm.Tensor) -> None:
        found.append(grad.flatten().cpu().numpy().copy())

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, inputs, out: out.register_hook(look) and None)
    some = samples(256)
    loss = F.cross_entropy(model(tm.tensor(images[:some])), tm.tensor(labels[:some]))
    (loss * scale).backward()
    sizes = np.abs(np.concatenate(found))
    return np.log2(sizes[sizes > 0])


exponents = {scale: gradient_exponents(scale) for scale in (1.0, SCALE)}
for scale, found in exponents.items():
    RESULT[f"scale {scale:.0f}: lost"] = lost = float((found < -25).mean())
    print(
        f"loss times {scale:6,.0f}: {lost:.2%} of {len(found):,} gradients are 0 in float16, the largest {2 ** found.max():.2g}"
    )
moved = float(np.median(exponents[SCALE]) - np.median(exponents[1.0]))
RESULT.agree("the histogram moves by", by_hand=14, measured=round(moved, 3), within=0.01, unit="powers of 2")

# %% [markdown]
# If all gradients are tiny, near `2**-27`, the network learns nothing in float16. With a scale it learns as in float32.


# %%
def faint_task(scale: float, dtype=tm.float16, steps: int = 60) -> list[float]:
    """The losses of a linear layer, times 2**26, trained with a loss multiplied by ``scale``."""
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
        weight.grad /= scale  # in float32, so that gradients do not underflow again
        optimizer.step()
        losses.append(float(loss) * 2**26)
    return losses


faint = {"float16": faint_task(1.0), "float16, scaled": faint_task(SCALE), "float32": faint_task(1.0, tm.float32)}
for name, losses in faint.items():
    print(f"{name:15}: the loss goes from {losses[0]:.2f} to {losses[-1]:.2f}")
assert faint["float16"][-1] == faint["float16"][0]
assert faint["float32"][-1] < 0.9 * faint["float32"][0]
np.testing.assert_allclose(faint["float16, scaled"], faint["float32"], rtol=0.02)

# %% [markdown]
# Which scale is best? The largest one for which no gradient is inf. `GradScaler` searches for it during training. If a gradient
# is inf, it skips the step and halves the scale. After a number of good steps, here 25, it doubles the scale. Here it begins
# too high on purpose.


# %%
def scale_history(steps: int = 120) -> list[tuple[float, bool, float]]:
    """(scale, whether the step was made, loss) of a float16 network on the digits."""
    x, y = tm.tensor(images).flatten(1).half(), tm.tensor(labels)
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).half()
    for p in model.parameters():
        p.grad_dtype = tm.float32
    optimizer = tm.optim.SGD(model.parameters(), lr=0.5, master_weights=True)
    scaler, history = tm.amp.GradScaler(DEVICE, init_scale=2.0**24, growth_interval=25), []
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


history = scale_history()
scales, made = [scale for scale, _, _ in history], [m for _, m, _ in history]
first = made.index(True)
print(f"steps skipped: {made.count(False)} of {len(made)}, {first} of them before the first step that was made")
print(f"the scale goes from 2**24 to 2**{np.log2(scales[-1]):.0f}, the loss from {history[0][2]:.2f} to {history[-1][2]:.2f}")
assert scales[: first + 1] == [2.0 ** (24 - i) for i in range(first + 1)]
assert all(b == a / 2 if not m else b in (a, 2 * a) for a, b, m in zip(scales, scales[1:], made, strict=False))
assert 0 < first < made.count(False) < 0.2 * len(made)
assert history[-1][2] < 0.3 * history[0][2]
RESULT["steps"], RESULT["skipped"], RESULT["skipped first"] = len(made), made.count(False), first

# %% [markdown]
# ## Picture

# %%
drawn, (gradients, learning, dynamic) = figure(3, height=3.8)
for scale, found in exponents.items():
    label = f"loss times {scale:,.0f}: {(found < -25).mean():.1%} are 0"
    gradients.hist(found, bins=np.arange(-48, 17), alpha=0.6, label=label)
for limit in (-24, 16):
    gradients.axvline(limit, color="black", linestyle="--", linewidth=1)
top = 1.4 * gradients.get_ylim()[1]
gradients.text(-25, 0.6 * top, "0 in float16", ha="right", fontsize=8)
gradients.text(17, 0.6 * top, "inf", fontsize=8)
gradients.set_title("Gradients of a CNN", loc="left")
gradients.set(xlabel="log2 of their size", ylabel="how many", xlim=(-48, 30), ylim=(0, top))
gradients.yaxis.set_major_formatter("{x:,.0f}")
gradients.legend(loc="upper left", fontsize=8, framealpha=1, edgecolor="none")
for (name, losses), style in zip(faint.items(), ("-", "-", ":"), strict=True):
    learning.plot(losses, style, label=name)
learning.set_title("Faint gradients", loc="left")
learning.set(xlabel="step", ylabel="loss, times 2**26", ylim=(0, 1.3))
learning.legend(loc="lower left", fontsize=8, frameon=False)
skipped = [i for i, m in enumerate(made) if not m]
dynamic.step(range(len(scales)), scales, where="post", label="scale")
dynamic.plot(skipped, [scales[i] for i in skipped], "x", label="step skipped: inf")
dynamic.set_yscale("log", base=2)
dynamic.set_title("GradScaler", loc="left")
dynamic.set(xlabel="step", ylabel="scale")
dynamic.legend(fontsize=8, frameon=False)
picture(drawn, "05_loss_scaling")

# %% [markdown]
# ## Mechanism
#
# In float16, everything that the step above keeps needs half the bytes. The peak is more than half. CPUs do not multiply in
# float16, so a product needs a workspace for its operands in float32, which is part of the peak. GPUs multiply in float16: on
# cuda the peak is half.

# %%
print(tracks[tm.float32].compare(tracks[tm.float16]))

# %% [markdown]
# ## Exercise
#
# A static scale does not change. From which power of two on does the first step on the digits have a gradient that is inf?
# Compare it with the scale at which the dynamic scaler made its first step.

# %% [markdown]
# ## Solution


# %%
def overflows(scale: float) -> bool:
    x, y = tm.tensor(images).flatten(1).half(), tm.tensor(labels)
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).half()
    (F.cross_entropy(model(x).float(), y) * scale).backward()
    return any(not bool(tm.isfinite(p.grad).all()) for p in model.parameters())


largest = max(power for power in range(25) if not overflows(2.0**power))
print(f"a static scale may be 2**{largest}; the dynamic one made its first step with 2**{np.log2(scales[first]):.0f}")
RESULT["static"], RESULT["dynamic"] = largest, float(np.log2(scales[first]))
RESULT.ends(f"float16 peaks at {tracks[tm.float16].peak:,} bytes, float32 at {tracks[tm.float32].peak:,}.")
