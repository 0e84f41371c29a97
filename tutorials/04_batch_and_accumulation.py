# %% [markdown]
# # 4. The batch, and gradient accumulation
#
# ## Question
#
# Which bytes grow with the batch, and how? A batch that does not fit can be split into parts, each with its own backward. Then
# one step uses the sum of their gradients. What does that save, and is it the same step?

# %%
from lesson import Result, block, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import LINES
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import accumulate

RESULT = Result()
CHANNELS, SIDE, CLASSES = 32, 16, 10

# %% [markdown]
# ## By hand
#
# For each image, the network below keeps the image, the outputs of two convolutions and of the pooling layer, a byte for each
# maximum, and the arrays of the loss: scores, a label, a logarithm. Nothing else depends on the batch. If the batch is a
# multiple of 128, no block is rounded up, so activations are exactly linear:

# %%
NUMBERS = 3 * SIDE**2 + 2 * CHANNELS * SIDE**2 + CHANNELS * (SIDE // 2) ** 2 + CLASSES + 1
AN_IMAGE = 4 * NUMBERS + CHANNELS * (SIDE // 2) ** 2 + 8
print(f"an image keeps {AN_IMAGE:,} bytes")


def network(batch_norm: bool = False) -> nn.Sequential:
    tm.manual_seed(0)
    norms = [nn.BatchNorm2d(CHANNELS)] if batch_norm else []
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1), *norms, nn.ReLU(inplace=True),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(CHANNELS * (SIDE // 2) ** 2, CLASSES),
    )  # fmt: skip


def data(batch: int) -> tuple[tm.Tensor, tm.Tensor]:
    tm.manual_seed(1)
    return tm.randn(batch, 3, SIDE, SIDE), tm.randint(0, CLASSES, (batch,))


def whole(batch: int) -> None:
    """One step on one batch."""
    model = network()
    optimizer, (x, y) = tm.optim.SGD(model.parameters(), lr=0.1), data(batch)
    loss = F.cross_entropy(model(x), y)
    memory.mark("forward ends")
    loss.backward()
    optimizer.step()


def parts(batch: int, steps: int) -> None:
    """The same step, in ``steps`` parts."""
    model = network()
    window = accumulate(model, tm.optim.SGD(model.parameters(), lr=0.1), steps)
    window.split(*data(batch), F.cross_entropy)


def losses_first(batch: int, steps: int) -> None:
    """The wrong way: sum the losses of the parts, then call backward once."""
    model = network()
    optimizer, (x, y) = tm.optim.SGD(model.parameters(), lr=0.1), data(batch)
    loss = sum(F.cross_entropy(model(a), b) for a, b in zip(x.chunk(steps), y.chunk(steps), strict=True)) / steps
    memory.mark("forward ends")
    loss.backward()
    optimizer.step()


# %% [markdown]
# ## Predicted


# %%
def kept(track: memory.Track) -> int:
    """Bytes that the batch and its graph keep at the end of the forward pass."""
    now = track.by_category("forward ends")
    return now[Category.ACTIVATION] + now[Category.INPUT]


ONE_NUMBER = block(4)  # the loss function's divisor
predicted = {batch: memory.predict(whole, batch) for batch in (128, 256, 512)}
for batch, track in predicted.items():
    RESULT.agree(f"batch {batch}: kept", by_hand=batch * AN_IMAGE + ONE_NUMBER, predicted=kept(track))

# %% [markdown]
# ## Measured
#
# A batch of 256 images, whole, in two parts of 128, and with the losses summed first:

# %%
BATCH, STEPS = 256, 2
runs = {}
for run, arguments in ((whole, (BATCH,)), (parts, (BATCH, STEPS)), (losses_first, (BATCH, STEPS))):
    with memory.track() as runs[run]:
        run(*arguments)
    RESULT.agree(f"{run.__name__}: peak", predicted=memory.predict(run, *arguments).peak, measured=runs[run].peak)
change = runs[whole].compare(runs[parts])
made = AN_IMAGE - 4 * 3 * SIDE**2 - 8  # without the image and its label, which are given to split() all at once
RESULT.agree("whole: activations", by_hand=BATCH * made + ONE_NUMBER, measured=change.saved.before)
RESULT.agree("parts: activations", by_hand=BATCH // STEPS * made + ONE_NUMBER, measured=change.saved.after)
by_hand = BATCH * AN_IMAGE + STEPS * ONE_NUMBER
RESULT.agree("kept when losses are summed first", by_hand=by_hand, measured=kept(runs[losses_first]))
print(change)

# %% [markdown]
# Summing the losses first keeps as much as the whole batch, because only `backward()` frees a graph. Now the numbers. The mean
# of the means of equal parts is the mean of all, so the gradient differs only by the rounding of sums. If the last part is
# smaller, the mean of means is wrong: parts must be weighted by their number of samples, as `accumulate` does.


# %%
def gradients(run) -> tm.Tensor:
    model = network()
    run(model)
    return nn.utils.parameters_to_vector([p.grad for p in model.parameters()]).detach()


def apart(a: tm.Tensor, b: tm.Tensor) -> float:
    """The distance of ``a`` and ``b``, relative to the size of ``b``."""
    return ((a - b).norm() / b.norm()).item()


x, y = data(20)
truth = gradients(lambda model: F.cross_entropy(model(x), y).backward())


def in_parts(weight):
    """The gradient from parts of 8, 8 and 4 samples, with the ``weight`` of each."""
    return lambda model: [
        (F.cross_entropy(model(a), b) * weight(len(a))).backward() for a, b in zip(x.split(8), y.split(8), strict=True)
    ]


weights = {"weighted by samples": lambda n: n / len(x), "mean of means": lambda n: 1 / 3}
errors = {name: apart(gradients(in_parts(weight)), truth) for name, weight in weights.items()}
for name, error in errors.items():
    print(f"{name}: the gradient is {error:.1e} of its size away from the large batch's")
assert errors["weighted by samples"] < 1e-5 < 0.01 < errors["mean of means"]
RESULT["weighted"], RESULT["mean of means"] = errors.values()

# %% [markdown]
# Batch norm is different. It normalizes by the statistics of each part, so a network with batch norm computes another function
# of a batch in parts, and updates its running statistics once for each part.

# %%
x, y = data(64)
outputs, updates = [], []
for pieces in (1, 4):
    model = network(batch_norm=True)
    outputs.append(tm.cat([model(part).detach() for part in x.chunk(pieces)]))
    updates.append(int(model[1].num_batches_tracked))
difference = apart(outputs[1], outputs[0])
print(f"outputs differ by {difference:.1%} of their size; running statistics moved {updates[0]} and {updates[1]} times")
assert difference > 0.001
RESULT["batch norm"] = difference
RESULT.say("batch norm's updates in four parts", updates[1], "")

# %% [markdown]
# ## Picture

# %%
picture(runs[parts], "04_parts", f"A batch of {BATCH} in {STEPS} parts, and one step")
drawn, (lines, bars) = figure(2, height=3.6)
sizes = list(predicted)
lines.plot(sizes, [kept(t) / 2**20 for t in predicted.values()], "o-", label="kept for backward")
lines.plot(sizes, [t.peak / 2**20 for t in predicted.values()], "s--", label="peak")
lines.set(xlabel="batch", ylabel="MiB", xlim=(0, None), ylim=(0, None))
lines.set_title("Linear in the batch", loc="left")
lines.legend(frameon=False)
counts = [1, 2, 4, 8, 16]
bars.bar([str(n) for n in counts], [memory.predict(parts, 512, n).peak / 2**20 for n in counts], color=LINES[4])
bars.set(xlabel="parts", ylabel="peak, MiB")
bars.set_title("A batch of 512 in parts", loc="left")
picture(drawn, "04_batch")

# %% [markdown]
# ## Mechanism
#
# The bytes at the two peaks by category. With two parts, activations and temporaries are half as large. The workspace of a
# convolution, which depends less on the batch, is smaller too. The batch itself and the parameters are the same; the
# gradients of all parameters exist at the peak, because they are those of the first part.

# %%
print(runs[whole].table("category"))
print(runs[parts].table("category"))
at_peak, in_parts = (runs[run].by_category() for run in (whole, parts))
assert in_parts[Category.ACTIVATION] == at_peak[Category.ACTIVATION] // STEPS
assert in_parts[Category.WORKSPACE] < at_peak[Category.WORKSPACE]
assert in_parts[Category.GRADIENT] == in_parts[Category.PARAMETER] > at_peak[Category.GRADIENT]

# %% [markdown]
# ## Exercise
#
# From the second part on, all gradients exist while activations are at their peak. With a whole batch, gradients appear one by
# one while activations are freed. Make a network whose step needs *more* memory in parts than as a whole.

# %% [markdown]
# ## Solution
#
# Weights must be larger than activations: wide layers, and a few samples.


# %%
def heavy(steps: int) -> None:
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
    window = accumulate(model, tm.optim.SGD(model.parameters(), lr=0.1), steps)
    window.split(tm.randn(16, 1024), tm.randn(16, 1024), F.mse_loss)


RESULT.say("heavy, whole", memory.predict(heavy, 1).peak)
RESULT.say("heavy, in four parts", memory.predict(heavy, 4).peak)
assert RESULT["heavy, in four parts"] > RESULT["heavy, whole"]
RESULT.ends(f"256 images in two parts peak at {RESULT['parts: peak']:,} bytes instead of {RESULT['whole: peak']:,}.")
