# %% [markdown]
# # 3. Lifetimes and leaks
#
# ## Question
#
# A tensor is freed as soon as its last reference is dropped. Which references does an ordinary training script keep by
# accident? Variables of a forward pass, a running loss, results of the step before, a cycle?

# %%
import gc

from lesson import Result, block, figure, most, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory.render.palette import LINES
from tinygrad_mem.nn import functional as F

RESULT = Result()
WIDTH, BATCH, STEPS = 256, 1024, 5
ONE = block(4 * BATCH * WIDTH)  # one activation

# %% [markdown]
# ## By hand
#
# **Variables.** Without gradients, a layer needs its input and its output: two arrays. `x = F.relu(layer(x))` needs three,
# because `x` refers to the old tensor until the whole line is done. A forward pass that gives each result its own name keeps
# all of them until it returns.
#
# **Graphs.** With gradients, the loss keeps everything that backward needs. Here that is, for each step:
#
# - the images, and the outputs of two hidden layers: `3 * 4 * BATCH * WIDTH` bytes;
# - the arrays of the loss function: scores, labels, a logarithm for each sample, and one number.
#
# `backward()` frees all of this as it runs. A graph without a backward lives as long as its loss: `total = total + loss` keeps
# a reference to every loss.

# %%
GRAPH = 3 * ONE + block(4 * BATCH * 10) + block(8 * BATCH) + block(4 * BATCH) + block(4)
print(f"one activation {ONE:,} bytes, one graph {GRAPH:,} bytes")


# %%
class Named(nn.Module):
    """Each result has its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        a = self.layers[0](x)
        b = F.relu(a)
        c = self.layers[1](b)
        d = F.relu(c)
        e = self.layers[2](d)
        f = F.relu(e)
        return self.layers[3](f)


class Rebound(Named):
    """The same network; each result is assigned to the same name."""

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for layer in self.layers[:3]:
            x = layer(x)
            x = F.relu(x)
        return self.layers[3](x)


class Nested(Named):
    """The same network, with two layers per line."""

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for layer in self.layers[:3]:
            x = F.relu(layer(x))
        return self.layers[3](x)


def once(network: type[nn.Module], grad: bool) -> None:
    tm.manual_seed(0)
    model, x = network(), tm.randn(BATCH, WIDTH)
    memory.mark("begin")
    with tm.set_grad_enabled(grad):
        y = model(x)
    memory.mark("forward ends")
    del y


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def loop(step) -> None:
    """Five batches through a classifier; ``step(total, loss)`` makes the running loss."""
    tm.manual_seed(0)
    model, total = classifier(), 0.0
    memory.mark("begin")
    for _ in range(STEPS):
        x, y = tm.randn(BATCH, WIDTH), tm.randint(0, 10, (BATCH,))
        loss = F.cross_entropy(model(x), y)
        total = step(total, loss)
        memory.mark("step ends")
    del x, y, loss
    memory.mark("loop ends")


def add(total, loss):
    return total + loss


def add_item(total, loss):
    return total + loss.item()


def add_after_backward(total, loss):
    loss.backward()
    return total + loss


# %% [markdown]
# ## Predicted


# %%
def after(track: memory.Track, mark: str) -> int:
    """Bytes in use at a mark beyond those at the beginning."""
    return sum(track.by_category(mark).values()) - sum(track.by_category("begin").values())


def highest(track: memory.Track, until: str) -> int:
    return most(track, "begin", until) - sum(track.by_category("begin").values())


foreseen = {
    (network, grad): memory.predict(once, network, grad) for network in (Named, Nested, Rebound) for grad in (False, True)
}
loops = {step: memory.predict(loop, step) for step in (add, add_item, add_after_backward)}

# %% [markdown]
# ## Measured
#
# First the variables: seven arrays instead of two; with gradients seven instead of the four that backward needs.

# %%
for (network, grad), predicted in foreseen.items():
    with memory.track() as track:
        once(network, grad)
    name = f"{network.__name__}, {'gradients' if grad else 'no_grad'}"
    arrays = {"Named": 7, "Nested": 4 if grad else 3, "Rebound": 4 if grad else 2}[network.__name__]
    now = highest(track, "forward ends")
    RESULT.agree(f"{name}: most", by_hand=arrays * ONE, predicted=highest(predicted, "forward ends"), measured=now)

# %% [markdown]
# Next the running loss, over five batches. The sum of the losses is one number, but it keeps five graphs alive. A Python number
# from `item()` keeps nothing alive. Neither does a sum of losses after `backward()`, because their graphs are empty. (But the
# parameters have gradients now.)

# %%
leaks = {}
for step, predicted in loops.items():
    with memory.track() as track:
        loop(step)
    leaks[step] = track
    gradients = track.by_category("loop ends").get(memory.Category.GRADIENT, 0)
    scalars = 0 if step is add_item else 512  # the total itself
    by_hand = (STEPS * GRAPH if step is add else 0) + scalars + gradients
    now = after(track, "loop ends")
    RESULT.agree(f"{step.__name__}: after the loop", by_hand=by_hand, predicted=after(predicted, "loop ends"), measured=now)

# %% [markdown]
# `item()` leaks nothing, but its peak is more than one graph: while the forward of the second step runs, `x`, `y` and `loss`
# still refer to tensors of the first. `del loss` at the end of a step avoids that. So does `no_grad`, if no gradient is needed.


# %%
def loop_del() -> None:
    tm.manual_seed(0)
    model, total = classifier(), 0.0
    memory.mark("begin")
    for _ in range(STEPS):
        x, y = tm.randn(BATCH, WIDTH), tm.randint(0, 10, (BATCH,))
        loss = F.cross_entropy(model(x), y)
        total += loss.item()
        del x, y, loss
    memory.mark("loop ends")


@tm.no_grad()
def loop_no_grad() -> None:
    loop(add_item)


peaks = {"sum of losses": highest(leaks[add], "loop ends"), "item()": highest(leaks[add_item], "loop ends")}
for name, run in (("item(), del", loop_del), ("item(), no_grad", loop_no_grad)):
    with memory.track() as track:
        run()
    foreseen_peak = highest(memory.predict(run), "loop ends")
    peaks[name] = highest(track, "loop ends")
    RESULT.agree(f"{name}: peak", predicted=foreseen_peak, measured=peaks[name])
RESULT.say("item(): peak", peaks["item()"])
RESULT.say("sum of losses: peak", peaks["sum of losses"])

# %% [markdown]
# Last the cycle. If two objects refer to each other, only Python's garbage collector frees them, at an unknown time. Until then
# their bytes stay in use. `memory.reclaim()` runs the collector, and returns how many bytes it freed.

# %%
gc.collect()
gc.disable()  # so that it does not run between the two lines
holder = {"hidden": tm.zeros(BATCH, WIDTH)}
holder["me"] = holder
del holder
RESULT.agree("cycle: waited for the collector", by_hand=ONE, measured=memory.reclaim().collected)
loop(add_after_backward)
RESULT.agree("training: waited for the collector", by_hand=0, measured=memory.reclaim().collected)
gc.enable()

# %% [markdown]
# ## Picture

# %%
picture(leaks[add], "03_leak", "total = total + loss, without backward: five steps")
drawn, axes = figure(height=3)
axes.barh(list(peaks), [peak / GRAPH for peak in peaks.values()], color=LINES[4])
axes.invert_yaxis()
axes.set(xlabel="peak, in graphs of one step")
picture(drawn, "03_peaks", "The peak of a loop, by how it sums its losses")

# %% [markdown]
# ## Mechanism
#
# Why is the output of a hidden layer alive long after its step? The tracker explains it for a forward pass after which only the
# variable `total` is left:

# %%
with memory.track() as track:
    model, seen = classifier(), []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    total = F.cross_entropy(model(tm.randn(BATCH, WIDTH)), tm.zeros(BATCH, dtype=tm.int64))
    hidden = seen.pop()
    print(track.explain(hidden))
    total = total.detach()
    print("\nAfter total = total.detach():\n" + track.explain(hidden))
print(leaks[add].table("op", "loop ends"))

# %% [markdown]
# ## Exercise
#
# Under `no_grad`, a loop collects the first row of a hidden layer for each of five batches: `rows.append(hidden[0])`, 1,024
# bytes each. How many bytes does the list hold? What is the least change that makes it five rows?

# %% [markdown]
# ## Solution
#
# `hidden[0]` is a view: it refers to the first row, and keeps all of the memory alive. `clone()` copies the row.


# %%
@tm.no_grad()
def rows(pick) -> int:
    tm.manual_seed(0)
    model, kept = classifier()[:2], []
    before = memory.memory_allocated()
    for _ in range(STEPS):
        hidden = model(tm.randn(BATCH, WIDTH))
        kept.append(pick(hidden))
    del hidden
    return memory.memory_allocated() - before


row = block(4 * WIDTH)
RESULT.say("a row", row)
RESULT.agree("list of views", by_hand=STEPS * ONE, measured=rows(lambda hidden: hidden[0]))
RESULT.agree("list of clones", by_hand=STEPS * row, measured=rows(lambda hidden: hidden[0].clone()))
RESULT.ends(f"Five losses summed without item() keep {RESULT['add: after the loop']:,} bytes, with it 0.")
