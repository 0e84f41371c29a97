# %% [markdown]
# # 11. Optimizers: bytes per parameter
#
# ## Question
#
# An optimizer can need more memory than the network itself. How many bytes per parameter does each optimizer keep? How can
# they be fewer? And when does a smaller optimizer lower the peak of the step?
#
# Source: Shazeer and Stern, *Adafactor*, 2018; Dettmers et al., *8-bit optimizers*, 2022; Lv et al., *LOMO*, 2023.

# %%
from collections.abc import Callable
from typing import Any

from lesson import Result, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, optim
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.memory import Category
from tinygrad_mem.models.vgg import vgg16_cifar
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import optimizer_in_backward

RESULT = Result()
LAYERS, WIDTH = 6, 512
P = LAYERS * WIDTH * WIDTH  # parameters
Rule = Callable[[Any], optim.Optimizer]

# %% [markdown]
# ## By hand
#
# SGD keeps nothing. Momentum is one number per parameter. Adam keeps two: the running means of the gradient and of its square.
# In float16 they take half the bytes. In 8 bits each number takes one byte, and each block of numbers one float32 scale. For an
# n by m matrix, Adafactor keeps only the means of the squares over rows and over columns: n + m numbers.

# %%
BLOCK = 2048  # numbers that share a scale
ADAFACTOR = 4 * 2 * WIDTH / WIDTH**2
RULES: dict[str, tuple[float, Rule]] = {  # bytes a parameter of a float32 matrix
    "SGD": (0, lambda p: optim.SGD(p, lr=0.5)),
    "SGD, momentum": (4, lambda p: optim.SGD(p, lr=0.1, momentum=0.9)),
    "SGD, momentum in float16": (2, lambda p: optim.SGD(p, lr=0.1, momentum=0.9, state_dtype=tm.float16)),
    "Adam": (8, lambda p: optim.Adam(p, lr=3e-3)),
    "Adam, state in float16": (4, lambda p: optim.Adam(p, lr=3e-3, state_dtype=tm.float16)),
    "AdamW8bit": (2 * (1 + 4 / BLOCK), lambda p: optim.AdamW8bit(p, lr=3e-3)),
    "Adafactor": (ADAFACTOR, lambda p: optim.Adafactor(p, lr=0.1)),
}

# %% [markdown]
# ## Predicted
#
# A few linear layers without biases, and few samples: nearly all of the memory is for weights.


# %%
def train(rule: Rule, in_backward: bool = False) -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    optimizer = rule(model.parameters())
    if in_backward:
        optimizer_in_backward(optimizer)
    for _ in range(2):
        model(tm.ones(8, WIDTH)).square().mean().backward()
        memory.mark("backward ends")
        if not in_backward:
            optimizer.step()
            optimizer.zero_grad()
    memory.mark("stepped")


predicted = {name: memory.predict(train, rule) for name, (_, rule) in RULES.items()}
for name, (hand, _) in RULES.items():
    state = predicted[name].by_category("stepped").get(Category.OPTIMIZER_STATE, 0)
    RESULT.agree(f"{name}: state", by_hand=round(hand * P), predicted=state)
for name, track in predicted.items():
    RESULT.say(f"{name}: peak", round(track.peak / P, 2), "bytes a parameter")

# %% [markdown]
# ## Measured

# %%
measured = {}
for name in ("SGD", "Adam", "AdamW8bit", "Adafactor"):
    with memory.track() as track:
        train(RULES[name][1])
    RESULT.agree(f"{name}: measured peak", predicted=predicted[name].peak, measured=track.peak)
    measured[name] = track

# %% [markdown]
# ### Stepping in backward
#
# All gradients exist at the same time only because `step()` comes after backward. `optimizer_in_backward` updates a parameter
# as soon as its gradient is complete, and frees the gradient. So one gradient exists at a time, which saves 4 bytes per
# parameter, except for the largest layer. The state stays.

# %%
early = memory.predict(train, RULES["Adam"][1], True)
saved = predicted["Adam"].peak - early.peak
one = 4 * WIDTH * WIDTH
RESULT.agree("stepping in backward saves", by_hand=4 * P - one, predicted=saved, within=one)
print(predicted["Adam"].compare(early))

# %% [markdown]
# A smaller state changes the update rule. Does the network still learn? We train it on the digits, thirty steps with each
# optimizer, from the same weights.


# %%
def losses(rule: Rule) -> list[float]:
    images, labels, _, _ = load_digits()
    tm.manual_seed(0)
    x, y = tm.tensor(images[:256]).flatten(1), tm.tensor(labels[:256])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer, found = rule(model.parameters()), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(float(loss.item()))
    return found


for name, (_, rule) in RULES.items():
    first, *_, last = losses(rule)
    print(f"{name:26} loss {first:.2f} -> {last:.2f}")
    assert last < first / 2

# %% [markdown]
# ## Picture

# %%
picture(stacked({name: track.by_category() for name, track in predicted.items()}, "Linear layers: the peak"), "11_rules")
picture(measured["Adam"], "11_adam", "Adam: two steps")

# %% [markdown]
# ## Mechanism
#
# The effect on the peak depends on the other memory. A convolutional network has large activations and few weights. Here are
# the same optimizers on VGG16, for images of 32 by 32, in batches of 8 and of 128.


# %%
def convolutions(rule: Rule, batch: int) -> None:
    model = vgg16_cifar()
    optimizer = rule(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(tm.randn(batch, 3, 32, 32)), tm.randint(0, 10, (batch,))).backward()
        optimizer.step()


grids = {
    f"{name}, batch {batch}": memory.predict(convolutions, RULES[name][1], batch)
    for batch in (8, 128)
    for name in ("Adam", "SGD")
}
picture(stacked({name: track.by_category() for name, track in grids.items()}, "VGG16, 32 x 32: the peak"), "11_vgg")
for batch in (8, 128):
    adam, sgd = (grids[f"{name}, batch {batch}"].peak for name in ("Adam", "SGD"))
    RESULT.say(f"batch {batch}: Adam's peak over SGD's", round(adam / sgd, 2), "")
print(grids["Adam, batch 128"].table())

# %% [markdown]
# ## Exercise
#
# The smallest GPT-2 has 124,439,808 parameters. How many bytes do Adam's two moments take, and how many in 8 bits? The moments
# of small parameters stay in float32: does that matter?

# %% [markdown]
# ## Solution


# %%
GPT2 = 124_439_808


def moments(rule: Rule) -> None:
    from tinygrad_mem.models.gpt import gpt

    model = gpt("gpt2")
    assert sum(p.numel() for p in model.parameters()) == GPT2
    optimizer = rule(model.parameters())
    for p in model.parameters():
        p.grad = tm.zeros(*p.shape)
    optimizer.step()
    memory.mark("stepped")


for name in ("Adam", "AdamW8bit"):
    state = memory.predict(moments, RULES[name][1]).by_category("stepped")[Category.OPTIMIZER_STATE]
    RESULT.agree(f"GPT-2, {name}", by_hand=round(RULES[name][0] * GPT2), predicted=state, within=GPT2 // 100)
RESULT.ends(
    f"Adam keeps {RULES['Adam'][0]} bytes per parameter, in 8 bits {RULES['AdamW8bit'][0]:.3f}, Adafactor {ADAFACTOR:.3f}; "
    f"GPT-2's moments of {RESULT['GPT-2, Adam'] / 2**20:,.0f} MiB become {RESULT['GPT-2, AdamW8bit'] / 2**20:,.0f}."
)
