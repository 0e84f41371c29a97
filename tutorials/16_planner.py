# %% [markdown]
# # 16. The planner: set a budget, get a plan
#
# ## Question
#
# The earlier lessons explain many techniques. For a given network, batch and number of bytes: which of them should be used,
# where, and at what price? And conversely: how large may the batch be?
#
# Source: Beaumont et al., *Optimal checkpointing for heterogeneous chains*, 2019, for the choice of recomputed stages.

# %%
from lesson import DEVICE, Result, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import BudgetError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Plan, plan
from tinygrad_mem.plan.times import Times

RESULT = Result()
CHANNELS, SIDE, MIB = 16, 32, 1 << 20

# %% [markdown]
# ## By hand
#
# Each layer is a convolution, batch norm and ReLU, and keeps two results. The budget is four fifths of the plain step's peak.
# The results that exceed it must be recomputed instead of kept; their number is rounded up.
#
# On cuda a running convolution also needs a workspace of columns, as large as nine results, which no technique makes smaller.
# So the network is twice as deep there, so that the kept results are larger than the columns, and the batch has half the
# images.
#
# A step's bytes are linear in its batch: a constant for the network, and a number of bytes per image. Two predictions determine
# the line. It reaches the budget at the largest batch that fits without techniques.

# %%
LAYERS, BATCH = (6, 16) if DEVICE == "cpu" else (12, 8)
ONE = 4 * BATCH * CHANNELS * SIDE * SIDE  # bytes of a result


def network() -> nn.Sequential:
    tm.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(LAYERS):
        layers += [nn.Conv2d(CHANNELS if i else 3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))


def batch(n: int = BATCH) -> tuple[tm.Tensor, tm.Tensor]:
    return tm.randn(n, 3, SIDE, SIDE), tm.randint(0, 10, (n,))


def rule(parameters: list) -> tm.optim.Optimizer:
    return tm.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(n: int) -> None:
    """Two plain steps."""
    model = network()
    optimizer, (x, y) = rule(list(model.parameters())), batch(n)
    for _ in range(2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


small, large = (memory.predict(train, n).peak for n in (BATCH // 2, BATCH))
BYTES = large * 4 // 5 // MIB * MIB
BUDGET = f"{BYTES // MIB} MiB"
each = (large - small) / (BATCH // 2)
by_hand = int((BYTES - (large - each * BATCH)) // each)
RESULT.say("bytes of the plain step", large)
RESULT.say("bytes an image", each)
RESULT.say("results too many", -((BYTES - large) // ONE), "")

# %% [markdown]
# ## Predicted
#
# `plan` tries techniques on `meta`, where bytes are exact: recomputing stages of each chain, stepping in backward, and, if it
# may change the rounding of sums, splitting the batch. It returns the fastest choice that fits. Usually the time of each op is
# measured once. This lesson should print the same numbers on every machine, so its times are modelled (`Times("meta")`).
#
# In the plan, stages in brackets keep only their input, and run again in backward, as in lesson 9: `[0 1] 2` runs stages 0
# and 1 again, and keeps the results of stage 2.

# %%
TIMES = Times("meta")


def planned(n: int, budget: str | None = BUDGET) -> Plan:
    return plan(network, lambda: batch(n), F.cross_entropy, rule, budget, times=TIMES)


found = planned(BATCH)
print(found)
print(found.table())
RESULT.agree("plain: peak", planner=found.plain.peak, predicted=large)
assert found.peak <= BYTES < found.plain.peak
RESULT.say("planned: peak", found.peak)
RESULT.say("planned: reserved, where nothing limits the pool", found.point.reserved)
RESULT.say("planned: time, of the plain step's", round(found.point.time / found.plain.time, 3), "")

# %% [markdown]
# `reserved` in the table is the number of bytes that the pool reserves without a limit. On cuda that is far more than is in
# use: results are placed in the piece that a convolution's columns have left, so the next columns, which are as large, need a
# new segment. Within a budget the pool first returns segments that are completely unused. So a plan may fit although its
# `reserved` is above the budget. The planner has tried this on `meta`, with the budget as the limit.
#
# Next, the largest batch without techniques; and a plan for three times as many images, or on cuda, where the columns grow with
# the batch, for two more images.

# %%
plain_batch = memory.find_batch_size(train, limit=BUDGET)
assert memory.predict(train, by_hand).peak <= BYTES < memory.predict(train, by_hand + 1).peak
RESULT.agree("largest batch, plain", unit="images", by_hand=by_hand, found=plain_batch, within=2)  # see below
more = 3 * plain_batch if DEVICE == "cpu" else plain_batch + 2
print(f"{more} images: {planned(more)}")
RESULT.say("a batch that fits with a plan", more, "images")

# %% [markdown]
# The line by hand is right for bytes in use. But a budget limits reserved bytes, which include free pieces (lesson 12). So the
# largest batch is a few images smaller. `find_batch_size` and `plan` count reserved bytes.
#
# ## Measured
#
# The plan's training step, on a machine with only the bytes of the budget. The plain step runs out of memory. The planned step
# trains within the budget, and its loss is that of the plain step, bit for bit. (On cuda it gets the bytes of one more result:
# CuPy's pool may choose any of several pieces of one size, so it may place blocks differently than predicted.)


# %%
def losses(plan: Plan | None) -> list[float]:
    model = network()
    optimizer = rule(list(model.parameters()))
    x, y = batch()
    if plan is not None:
        step = plan.apply(model, optimizer)
        return [step(x, y).item() for _ in range(2)]
    seen = []
    for _ in range(2):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


with memory.track() as untouched:
    reference = losses(None)
with memory.limit(BYTES + (ONE if DEVICE != "cpu" else 0)):
    try:
        losses(None)
    except tm.OutOfMemoryError as error:
        print(error)
    else:
        raise AssertionError("the plain step fits")
    with memory.track() as inside:
        assert losses(found) == reference
print(f"losses {reference}")
RESULT.say("planned: reserved, inside the budget", inside.pool("end").reserved)
RESULT.agree("the planned step", predicted=found.peak, measured=inside.peak)

# %% [markdown]
# ## Picture

# %%
front = sorted(found.front, key=lambda point: point.time)
chart, axes = figure(height=3.4)
times, peaks = [p.time / found.plain.time for p in front], [p.peak / 2**20 for p in front]
axes.plot(times, peaks, "o-", drawstyle="steps-post", label="the fastest steps")
axes.plot(found.point.time / found.plain.time, found.peak / 2**20, "o", markersize=10, label="the plan")
axes.axhline(BYTES / 2**20, color="#555555", linestyle="--", linewidth=1)
axes.annotate(f"budget {BUDGET}", (max(times), BYTES / 2**20), xytext=(0, 4), textcoords="offset points", ha="right")
axes.set(xlabel="time of a step, plain = 1", ylabel="peak, MiB", ylim=(0, None))
axes.legend(frameon=False)
picture(chart, "16_front", "The peak by the time of a step")
picture(untouched, "16_plain", "The plain steps")
picture(inside, "16_planned", "The planned steps")

# %% [markdown]
# ## Mechanism
#
# The list of saved bytes: results that the plan recomputes are no longer in it.

# %%
print(untouched.compare(inside))
assert found.front[0].choice == found.plain.choice

# %% [markdown]
# ## Exercise
#
# What is the smallest number of bytes for this step? Find the end of the front, ask for one byte less, and read what the
# planner says. Then allow it to split the batch. (With batch norm this gives other numbers, because statistics are those of the
# parts.)

# %% [markdown]
# ## Solution


# %%
def refusal(budget: int) -> str:
    try:
        return f"it fits: {found.within(budget)}"
    except BudgetError as error:
        return str(error)


least = min(point.peak for point in found.front)
said = refusal(least // 2)
print(said)
assert "Allow accumulation" in said
split = plan(network, batch, F.cross_entropy, rule, least * 3 // 4, allow="close", times=TIMES)
print(split)
RESULT.say("the least without splitting", least)
RESULT.say("with the batch in parts", split.peak)
assert split.peak < least
RESULT.ends(
    f"The step of {found.plain.peak / 2**20:.1f} MiB trains within {BUDGET}, bit for bit the same. Without a plan "
    f"{plain_batch} images fit, with one {more}."
)
