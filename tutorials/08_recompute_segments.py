# %% [markdown]
# # 8. Recompute I: segments
#
# ## Question
#
# Backward needs results of the forward, so the forward keeps them. A checkpoint keeps only the input of a segment, and runs the
# segment again when backward reaches it. If a network of n equal layers is divided into k segments, how much is kept, and which
# k is best?
#
# Source: Chen et al., *Training deep nets with sublinear memory cost*, 2016.

# %%
import math

from lesson import Result, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.memory import Category
from tinygrad_mem.utils.checkpoint import checkpoint_sequential

RESULT = Result()
LAYERS, SIDE = 144, 256
ONE = 4 * SIDE * SIDE  # bytes that a layer keeps

# %% [markdown]
# ## By hand
#
# The layers are sigmoids: each keeps its result and nothing else. Between forward and backward, the inputs of the segments are
# kept, and all results of the last segment, which is not checkpointed because its backward comes first. In backward, all
# results of one segment of n / k layers exist at a time.
#
# We count results at the peak: the network's input, which the caller keeps (1); the inputs of the segments after the first,
# except the last one's, which is freed before the first segment is recomputed (k - 2); a whole segment (n / k); the gradient
# that is being passed on (1). The loss and its gradient are one number each, so they add one block each:
#
# **peak = (1 + max(k - 2, 0) + n / k + 1) results + 2 blocks**
#
# The sum k + n / k is smallest if both terms are equal: k = sqrt(n). The price is the forward of all segments but the last.


# %%
def by_hand(segments: int) -> int:
    return (1 + max(segments - 2, 0) + LAYERS // segments + 1) * ONE + 2 * 512


CUTS = [k for k in range(1, LAYERS + 1) if LAYERS % k == 0]
best = min(CUTS, key=by_hand)
assert best == math.isqrt(LAYERS)
RESULT.say("best number of segments", best, f"of {LAYERS // best} layers")

# %% [markdown]
# ## Predicted


# %%
def step(segments: int) -> None:
    chain = [nn.Sigmoid() for _ in range(LAYERS)]
    x = tm.randn(SIDE, SIDE)
    x.requires_grad_()
    loss = checkpoint_sequential(chain, segments, x).sum()
    memory.mark("forward ends")
    loss.backward()


predicted = {k: memory.predict(step, k).peak for k in CUTS}
for k, peak in predicted.items():
    RESULT.agree(f"peak in {k} segment{'s' * (k > 1)}", by_hand=by_hand(k), predicted=peak)

# %% [markdown]
# ## Measured
#
# `recompute.count_ops` counts the ops that run, and the ops that run again, which are the price.

# %%
with memory.track() as plain, recompute.count_ops() as plain_ops:
    step(1)
with memory.track() as track, recompute.count_ops() as ops:
    step(best)
RESULT.agree("peak without", predicted=predicted[1], measured=plain.peak)
RESULT.agree("peak with the best", predicted=predicted[best], measured=track.peak)
RESULT.agree("layers that run again", unit="layers", by_hand=LAYERS - LAYERS // best, measured=ops.recomputed["Sigmoid"])
assert not plain_ops.recomputed.total()
print(ops)

# %% [markdown]
# ## Picture
#
# Without checkpoints, memory rises in proportion to the depth of the network. With checkpoints it rises slowly, by one result
# per segment. In backward the curve looks like a saw: for each tooth, a segment is recomputed and then freed by its backward.

# %%
picture(plain, "08_plain", "A chain of sigmoids: every result is kept")
picture(track, "08_segments", "The same chain in sqrt(n) segments")
TICKS = [1, 2, 4, 6, 12, 24, 36, 72, 144]
chart, axes = figure(height=3.4)
axes.plot(CUTS, [size / 2**20 for size in predicted.values()], "o-", label="peak")
axes.plot(CUTS, [k * ONE / 2**20 for k in CUTS], "--", label="k results")
axes.plot(CUTS, [LAYERS / k * ONE / 2**20 for k in CUTS], ":", label="n / k results")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="segments k",
    ylabel="MiB",
    yticks=TICKS[:7],
    yticklabels=TICKS[:7],
    xticks=TICKS,
    xticklabels=TICKS,
)
axes.minorticks_off()
axes.legend(frameon=False)
picture(chart, "08_curve", "The peak by the number of segments, and its two parts")

# %% [markdown]
# ## Mechanism
#
# There are fewer *saved* bytes, and one result more of *temporary* ones: in a checkpointed segment the input of the running
# layer is not saved, so it is a temporary, as its output is. The peak is still in backward.

# %%
change = plain.compare(track)
print(change)
assert change.temporary.change == ONE
print(track.table("category", "forward ends"))
RESULT.agree(
    "kept when forward ends",
    by_hand=(best - 2 + LAYERS // best) * ONE,
    measured=track.by_category("forward ends")[Category.ACTIVATION],
)

# %% [markdown]
# In the list of saved tensors, a checkpoint has one row: its input.

# %%
x = tm.ones(SIDE, SIDE, requires_grad=True)
rows = memory.print_saved(lambda x: checkpoint_sequential([nn.Sigmoid() for _ in range(6)], 3, x), x)
assert [row.op for row in rows] == ["Checkpoint", "Checkpoint", "Sigmoid", "Sigmoid"]

# %% [markdown]
# ## Exercise
#
# Many lists of tips have this example: a hundred layers `Linear(10, 10)` in 2 segments. Which share of the bytes kept by
# forward does it save? And with 10 segments?

# %% [markdown]
# ## Solution
#
# A linear layer keeps its input; the network's input belongs to the caller. With 2 segments, the layers of the second one keep
# their inputs: half. With 10 segments, the inputs of the last segment's layers are kept, and the inputs of the eight segments
# between the first and the last.


# %%
def listing(segments: int) -> None:
    model = nn.Sequential(*[nn.Linear(10, 10) for _ in range(100)])
    out = checkpoint_sequential(model, segments, tm.randn(64, 10))
    memory.mark("forward ends")
    del out


def kept(segments: int) -> int:
    return memory.predict(listing, segments).by_category("forward ends")[Category.ACTIVATION]


result = 64 * 10 * 4
for k, hand in ((1, 99), (2, 50), (10, 8 + 10)):
    RESULT.agree(f"a hundred linear layers in {k} segment{'s' * (k > 1)} keep", by_hand=hand * result, predicted=kept(k))
RESULT.ends(
    f"{LAYERS} layers in {best} segments: the peak falls from {plain.peak / 2**20:.1f} MiB to {track.peak / 2**20:.1f} MiB, "
    f"{ops.recomputed.total() / LAYERS:.0%} of the forward runs again."
)
