# %% [markdown]
# # 10. Recompute III: the same numbers
#
# ## Question
#
# A block that runs twice draws its dropout masks twice, and its batch norm counts each batch twice. What must a checkpoint do
# so that the results stay the same? And must the whole block run again if only some of its results are large?
#
# Source: Korthikanti et al., *Reducing activation recomputation in large transformer models*, 2022.

# %%
from functools import partial
from typing import Any

import numpy as np
from lesson import DEVICE, Result, figure, picture, samples

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import LINES
from tinygrad_mem.nn import functional as F
from tinygrad_mem.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

RESULT = Result()
BLOCKS, CHANNELS, BATCH = 6, 16, samples(256, 16)
ONE = 4 * BATCH * CHANNELS * 8 * 8  # bytes of one result
images, labels, _, _ = load_digits()


class Net(nn.Module):
    """Blocks of convolution, batch norm, dropout and GELU on digits; ``call(block, x)`` runs a block."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call
        self.blocks = nn.ModuleList(self.block(CHANNELS if i else 1) for i in range(BLOCKS))
        self.head = nn.Linear(CHANNELS * 64, 10)

    def block(self, channels: int) -> nn.Sequential:
        conv = nn.Conv2d(channels, CHANNELS, 3, padding=1)
        return nn.Sequential(conv, nn.BatchNorm2d(CHANNELS), nn.Dropout(0.2), nn.GELU())

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x.flatten(1))


def keeping(*ops: str) -> Any:
    """A checkpoint that keeps the results of these ops."""
    return lambda block, x: checkpoint(block, x, context_fn=partial(create_selective_checkpoint_contexts, ops))


# %% [markdown]
# ## By hand
#
# Each block keeps 3 arrays: its input (for the convolution), the convolution's result (for batch norm), and dropout's result
# (for GELU). Dropout keeps no mask: the mask is drawn from a counter, and drawn again in backward. The first block's input, the
# images, belongs to the caller; but the linear layer keeps the last block's result. So it is 3 arrays per block.
#
# With a checkpoint for each block, only its input is kept, 1 array per block, and its ops run again. A *policy* may keep the
# result of an op, so that this op does not run again: with the convolution's result that makes 2 arrays per block. Keeping
# dropout's result too makes 3, as many as without checkpoints, so it gains nothing.
#
# A convolution needs 9 multiplications for each channel of its input and each number of its result; the other ops need only
# a few operations for each number. So a policy that keeps the convolution's result costs almost no time.

# %%
WAYS: dict[str, Any] = {
    "plain": lambda block, x: block(x),
    "checkpoint": lambda block, x: checkpoint(block, x),
    "keep Conv": keeping("Conv"),
    "keep Conv, Dropout": keeping("Conv", "Dropout"),
}
by_hand = {"plain": 3, "checkpoint": 1, "keep Conv": 2, "keep Conv, Dropout": 3}  # arrays a block

# %% [markdown]
# ## Predicted


# %%
def train(call: Any, steps: int = 2) -> tuple[list[float], Net, recompute.count_ops]:
    tm.manual_seed(0)
    net, losses = Net(call), []
    optimizer = tm.optim.SGD(net.parameters(), lr=0.1)
    x, y = tm.tensor(images[:BATCH]), tm.tensor(labels[:BATCH])
    with recompute.count_ops() as ops:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            memory.mark("forward ends")
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, net, ops


predicted = {way: memory.predict(train, call) for way, call in WAYS.items()}
for way, track in predicted.items():
    arrays = track.by_category("forward ends")[Category.ACTIVATION] // ONE
    RESULT.agree(f"{way}: arrays kept", unit="arrays", by_hand=by_hand[way] * BLOCKS, predicted=arrays)

# %% [markdown]
# ## Measured
#
# We compare bytes and numbers. The losses, all parameters after two steps, the running statistics, the count of batches and the
# state of the random numbers must be the same as in the plain run, bit for bit.

# %%
runs = {}
for way, call in WAYS.items():
    with memory.track() as track:
        losses, net, ops = train(call)
    state = [losses, *[t.cpu().numpy().copy() for t in net.state_dict().values()], tm.get_rng_state(DEVICE).numpy().copy()]
    RESULT.agree(f"{way}: peak", predicted=predicted[way].peak, measured=track.peak)
    runs[way] = state, ops, track
    assert all(np.array_equal(a, b) for a, b in zip(state, runs["plain"][0], strict=True))
    counted = {name: n for name, n in ops.recomputed.items() if n}
    print(f"{'':4}losses {losses}, batches seen {net.blocks[0][1].num_batches_tracked.item()}, runs again {counted}")
    RESULT.say(f"{way}: convolutions that run again", ops.recomputed["Conv"], "")
    del net

# %% [markdown]
# Without this care a run is wrong, and no error says so. With `preserve_rng_state=False`, dropout draws other masks in backward
# than in forward. And a forward that is simply called twice counts each batch twice.

# %%
careless, _, _ = train(lambda block, x: checkpoint(block, x, preserve_rng_state=False))
right = runs["plain"][0][0]
print(f"losses with other masks: {careless}, right: {right}")
assert careless[0] == right[0]  # the forward is the same one
assert careless[1] != right[1]  # the gradients were not
block = Net(WAYS["plain"]).blocks[0]
for _ in range(2):
    block(tm.tensor(images[:BATCH]))
RESULT.agree(
    "batches counted by a forward that is called twice", unit="", by_hand=2, measured=block[1].num_batches_tracked.item()
)

# %% [markdown]
# ## Picture

# %%
chart, axes = figure(height=3.2)
for way, (_, ops, track) in runs.items():
    again = ops.recomputed.total() / ops.forward.total()
    axes.plot(again, track.peak / 2**20, "o", color=LINES[0])
    axes.annotate(way, (again, track.peak / 2**20), xytext=(6, 4), textcoords="offset points")
axes.set(
    xlabel="ops that run again, as a share of the ops of the forward", ylabel="peak, MiB", ylim=(0, 23), xlim=(-0.03, 0.65)
)
picture(chart, "10_policies", "The peak, by the share of ops that run again")
picture(runs["plain"][2], "10_plain", "Two steps, everything kept")
picture(runs["checkpoint"][2], "10_checkpoint", "The same, each block checkpointed")

# %% [markdown]
# ## Mechanism
#
# The list of kept arrays, op by op. A checkpoint has rows for its inputs, and for the results that its policy keeps.

# %%
print(runs["plain"][2].compare(runs["checkpoint"][2]))
rows = memory.print_saved(Net(keeping("Conv")), tm.tensor(images[:BATCH]))
assert [row.op for row in rows][:4] == ["Checkpoint", "Conv", "Checkpoint", "Conv"]

# %% [markdown]
# ## Exercise
#
# The result of one of the four ops can be kept without any additional bytes. Which one, why, and what does it save?

# %% [markdown]
# ## Solution
#
# The result of GELU: it is the next block's input, which that block's checkpoint keeps in any case. But it also saves nothing:
# the recomputation stops at the last op that keeps something, and GELU keeps its input.

# %%
kept = memory.predict(train, keeping("GELU")).by_category("forward ends")[Category.ACTIVATION] // ONE
RESULT.agree("arrays with GELU's results kept", unit="arrays", by_hand=BLOCKS, predicted=kept)
assert not runs["checkpoint"][1].recomputed["GELU"]
less, none = (runs[way][2].peak / runs["plain"][2].peak for way in ("checkpoint", "keep Conv"))
RESULT.ends(
    f"With each block checkpointed the peak is {less:.0%} of the plain one, and the same training bit for bit; with the "
    f"results of convolutions kept it is {none:.0%}, and no convolution runs again."
)
