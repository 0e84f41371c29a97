# %% [markdown]
# # 9. Recompute II: chains of unequal layers
#
# ## Question
#
# `checkpoint_sequential` divides a network into segments with the same number of layers. But the first layers of a
# convolutional network have much larger results than the last ones. Which layers should run again, how often, and what is the
# shortest time for a given number of bytes?
#
# Source: Beaumont et al., *Optimal checkpointing for heterogeneous chains*, 2019; Griewank and Walther, *revolve*, 2000.

# %%
import math
from collections.abc import Iterator

from lesson import DEVICE, Result, figure, picture, samples

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import LINES
from tinygrad_mem.nn import functional as F
from tinygrad_mem.recompute import Stage
from tinygrad_mem.utils.checkpoint import checkpoint_sequential

RESULT = Result()

# %% [markdown]
# ## By hand
#
# A schedule lists the stages in order. Stages in brackets keep only their input until backward reaches them: `[0 1] 2` runs
# 0 and 1 without keeping their results, then 2; after the backward of 2 it runs 0 and 1 again. Brackets may be nested.
#
# Let `a` be the size of a stage's result, of its gradient, and of the bytes that it keeps. Go from the last stage to the first,
# and let `rest` be the peak of the later stages:
#
# * a recorded stage needs `a` while it runs, `a + rest` while the rest runs, and `2 a` in its backward: the largest counts;
# * a bracket needs the bytes of its forward (a result and the one before it); then its last result and `rest`; then the bytes
#   of its inside, which runs again, and of the gradient that has arrived by then.
#
# A few stages have few schedules, so we can list all of them. The best schedules for each number of bytes are called the front.


# %%
def schedules(first: int, last: int, inside: bool = False) -> Iterator[tuple]:
    """All schedules of the stages from ``first`` up to ``last``, without it.

    A bracket that contains only another bracket changes nothing, and is left out.
    """
    if first == last:
        yield ()
    for cut in range(first + 1, last + 1):
        for rest in schedules(cut, last):
            if cut == first + 1:
                yield (first, *rest)
            if not inside or cut < last:
                yield from ((part, *rest) for part in schedules(first, cut, inside=True))


def flat(items: tuple) -> list[int]:
    return [stage for item in items for stage in (flat(item) if isinstance(item, tuple) else [item])]


def peak(items: tuple, sizes: tuple, arriving: int = 0) -> int:
    """The peak by the rules above; ``arriving`` is the gradient that waits for the last stage."""
    most = rest = 0
    for item in reversed(items):
        stages = flat(item) if isinstance(item, tuple) else [item]
        a = [sizes[stage] for stage in stages]
        if isinstance(item, tuple):
            forward = max(x + y for x, y in zip([0, *a], a, strict=False))
            most = max(arriving + forward, a[-1] + rest, peak(item, sizes, a[-1]))
        else:
            most = max(arriving + a[0], a[0] + rest, 2 * a[0])
        rest = most
    return most


def forwards(items: tuple, times: int = 1) -> int:
    """The number of forwards of stages."""
    return sum(forwards(item, times + 1) if isinstance(item, tuple) else times for item in items)


SIZES = (4, 4, 4, 3, 3)
written = [(peak(each, SIZES), forwards(each), each) for each in schedules(0, len(SIZES))]
RESULT.say("schedules of five stages", len(written), "")
by_hand = {}
for most, times, each in sorted(written, key=lambda row: row[:2]):
    if times < min((n for n, _ in by_hand.values()), default=math.inf):
        by_hand[most] = times, each
for most, (times, each) in by_hand.items():
    print(f"in {most:3} units: {times} forwards, {recompute.Schedule(each)}")

# %% [markdown]
# `recompute.chain` finds the same schedules without listing all of them. The cheapest way through a part of the chain consists
# of the cheapest ways through its two parts, so each part is solved only once (dynamic programming).

# %%
stages = [Stage(1, 0, output=a, saved=a, forward_peak=a, gradient=a) for a in SIZES]
for most, (times, _) in by_hand.items():
    found = recompute.chain(stages, most)
    RESULT.agree(f"forwards within {most} units", unit="", by_hand=times, dynamic_program=found.forward_steps)
assert len(recompute.front(stages)) == len(by_hand)

# %% [markdown]
# ## Predicted
#
# A convolutional network whose stages halve the side of the image: results of one stage are 4 times as large as those of the
# next. `recompute.profile` runs a copy of it on `meta`, and returns the bytes that each stage needs. `recompute.front` returns
# the least time for each number of bytes.

# %%
BATCH, WIDTH, DEPTHS = samples(16), 24, (3, 3, 5)


def network() -> nn.Sequential:
    tm.manual_seed(0)
    layers: list[nn.Module] = []
    for depth in DEPTHS:
        for _ in range(depth):
            layers += [nn.Conv2d(WIDTH if layers else 3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTH * 16, 10))


def by_plan(budget: int) -> nn.Sequential:
    schedule = recompute.chain(COSTS.stages, budget)
    return recompute.apply(network(), schedule, COSTS.sizes)


def step(segments: int = 0, budget: int = 0) -> nn.Sequential:
    """A step without checkpoints, with equal segments, or by the best schedule within a budget."""
    model = by_plan(budget) if budget else network()
    x, y = tm.randn(BATCH, 3, 32, 32), tm.randint(0, 10, (BATCH,))
    with recompute.count_ops() as ops:
        out = checkpoint_sequential(model, segments, x) if segments else model(x)
        F.cross_entropy(out, y).backward()
    SHARES.append(ops.recomputed.total() / ops.forward.total())
    return model


def predicted(**how: int) -> tuple[float, int]:
    """The share of the forward that runs again, and the peak."""
    track = memory.predict(step, **how)
    return SHARES[-1], track.peak


SHARES: list[float] = []
COSTS = recompute.profile(network(), tm.randn(BATCH, 3, 32, 32), lambda out: F.cross_entropy(out, tm.zeros(BATCH).long()))
plain = predicted()
equal = {k: predicted(segments=k) for k in (2, 4, 7, 10, 20, 38)}
budgets = [size for size, _ in recompute.front(COSTS.stages)]
planned = {size: predicted(budget=size) for size in budgets[::4]}
print(f"{'':>10} {'peak':>12}  runs again")
for name, (share, size) in {"plain": plain, **{f"{k} segments": found for k, found in equal.items()}}.items():
    print(f"{name:>11} {size:12,}  {share:9.0%}")
for budget, (share, size) in sorted(planned.items()):
    print(f"{'planned':>11} {size:12,}  {share:9.0%}  {recompute.chain(COSTS.stages, budget)}")

# %% [markdown]
# The peak of a schedule does not count tensors that exist before the chain begins: parameters, statistics, images and labels.
# With these added, a run needs what the schedule says, or less if an input is freed earlier than the schedule assumes.

# %%
base = plain[1] - budgets[-1]
by_category = memory.predict(step).by_category()
there = sum(by_category[c] for c in (Category.PARAMETER, Category.BUFFER, Category.INPUT))
RESULT.agree("there before the chain begins", by_hand=there, predicted=base, within=2 * 512)  # the loss and its gradient
assert all(size <= budget + base for budget, (_, size) in planned.items())

# %% [markdown]
# ## Measured
#
# The budget is the peak of the best equal segments. The plan within that budget must give the same gradients, bit for bit,
# because the same kernels run on the same numbers.

# %%
k = min(equal, key=lambda k: equal[k][1])
budget = max(size for size in budgets if size + base <= equal[k][1])
with memory.track() as untouched:
    reference = [p.grad.cpu().numpy().copy() for p in step().parameters()]
with memory.track() as cut:
    step(segments=k)
with memory.track() as best:
    model = step(budget=budget)
RESULT.agree("plain", predicted=plain[1], measured=untouched.peak)
RESULT.agree(f"{k} equal segments", predicted=equal[k][1], measured=cut.peak)
RESULT.agree("planned", predicted=predicted(budget=budget)[1], measured=best.peak)
assert all((p.grad.cpu().numpy() == grad).all() for p, grad in zip(model.parameters(), reference, strict=True))
RESULT.say("equal segments run again", round(equal[k][0], 3), "of the forward")
rerun = SHARES[-1]
RESULT.say("the plan runs again", round(rerun, 3), "of the forward")
assert rerun < equal[k][0] / 3
assert best.peak <= cut.peak

# %% [markdown]
# ## Picture

# %%
chart, axes = figure(height=3.8)
points = sorted([plain, *planned.values()])
axes.plot(*zip(*[(s, b / 2**20) for s, b in points], strict=True), "o-", label="planned")
for segments, (share, size) in equal.items():
    axes.plot(share, size / 2**20, "s", color=LINES[1], label="equal segments" if segments == 2 else None)
    axes.annotate(str(segments), (share, size / 2**20), xytext=(5, 3), textcoords="offset points", fontsize=8)
axes.axhline(plain[1] / 2**20, color="#555555", linestyle="--", linewidth=1)
axes.annotate("plain", (0.3, plain[1] / 2**20), xytext=(0, 3), textcoords="offset points", fontsize=8)
axes.set(xlabel="part of the forward that runs again", ylabel="peak, MiB", ylim=(0, None))
axes.legend(frameon=False)
picture(chart, "09_front", "Bytes against work: a plan, and equal segments")
picture(untouched, "09_plain", "Everything is kept")
picture(best, "09_planned", "By a plan: only large results are made again")

# %% [markdown]
# Many equal segments need *more* memory than none. A segment keeps its input, even if no op would have kept it. An example is
# the result of a batch norm: the ReLU after it keeps its own result only.
#
# ## Mechanism
#
# The plan recomputes large results and keeps small ones. With smaller budgets the peak moves from the middle of the network to
# its first, large layers, and finally to their recomputation. On cuda a convolution needs a workspace of columns, nine times
# its input, so all three peaks are in the backward of large layers.

# %%
print(untouched.compare(best))
least = memory.predict(step, budget=budgets[0])
PLACES = []
for name, track in (("plain", untouched), ("planned", best), ("the least", least)):
    event = track.log[track.at_peak().index]
    PLACES.append((event.phase, int(event.module.rpartition(".")[2])))
    print(f"{name}: a peak of {track.peak:,} bytes in {event.phase}, at {event.op} of layer {PLACES[-1][1]}")
if DEVICE == "cpu":
    assert [phase for phase, _ in PLACES] == ["backward", "backward", "recompute"]
    assert PLACES[0][1] > 3 * DEPTHS[0] > PLACES[1][1]  # three modules a layer
else:
    assert all(phase == "backward" and layer < 3 * DEPTHS[0] for phase, layer in PLACES)
assert max(size for _, size in equal.values()) == equal[38][1] > plain[1]

# %% [markdown]
# ## Exercise
#
# A chain has 1,000 equal stages, and there is memory for the inputs of 10 of them. How often must each stage run, on average?
# For nested brackets there is a formula: `n + r n - C(s + r, r - 1)` forwards for `n` stages and `s` inputs, where `r` is the
# smallest number with `C(s + r, r) >= n`. Compare with segments of equal length.

# %% [markdown]
# ## Solution

# %%
stages_, room = 1000, 10
r = next(r for r in range(stages_) if math.comb(room + r, r) >= stages_)
closed = stages_ + r * stages_ - math.comb(room + r, r - 1)
schedule = recompute.revolve(stages_, room)
RESULT.agree("forwards with 10 inputs", unit="", by_hand=closed, schedule=schedule.forward_steps)
RESULT.say("forwards a stage", closed / stages_, "")
segments = recompute.uniform(stages_, room)
RESULT.say("revolve's peak", schedule.peak, "results")
RESULT.say("equal segments' peak", segments.peak, "results")
assert schedule.peak < segments.peak / 5
RESULT.ends(
    f"Within the bytes of {k} equal segments, which run {equal[k][0]:.0%} of the forward again, the optimal schedule runs "
    f"{rerun:.0%} again."
)
