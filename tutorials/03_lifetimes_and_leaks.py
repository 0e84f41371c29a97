# %% [markdown]
# # 3. Lifetimes and leaks
#
# ## Question
#
# A tensor is freed when the last reference to it goes, at that very moment. Which references does an ordinary training
# script hold without wanting to: variables of a forward pass, a running loss, the step before, a cycle?

# %%
import gc

from lesson import Result, block, figure, most, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F

RESULT = Result()
WIDTH, BATCH, STEPS = 256, 1024, 5
ONE = block(4 * BATCH * WIDTH)  # one activation

# %% [markdown]
# ## By hand
#
# **Variables.** Without gradients, a layer needs its input and its output: two arrays. `x = F.relu(layer(x))` needs three,
# because `x` is the old one until the whole line is done. A forward pass that gives each result a name holds all of them
# until it returns.
#
# **Graphs.** With gradients, the loss holds what backward needs. Here that is for each step
#
# - the images, and the outputs of two hidden layers: `3 * 4 * BATCH * WIDTH` bytes;
# - the loss function's own: scores, labels, a logarithm for each sample, and one number.
#
# `backward()` lets go of all this as it walks. What is never walked lives as long as somebody refers to the loss: `total =
# total + loss` refers to every loss there was.

# %%
GRAPH = 3 * ONE + block(4 * BATCH * 10) + block(8 * BATCH) + block(4 * BATCH) + block(4)
print(f"one activation {ONE:,} bytes, one graph {GRAPH:,} bytes")


# %%
class Named(nn.Module):
    """Each result has a name of its own."""

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
    """The same, and each result takes the name of the one before."""

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for layer in self.layers[:3]:
            x = layer(x)
            x = F.relu(x)
        return self.layers[3](x)


class Nested(Named):
    """The same, two layers a line."""

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
# First the variables: seven arrays against two, and with gradients seven against the four that backward needs anyway.

# %%
for (network, grad), predicted in foreseen.items():
    with memory.track() as track:
        once(network, grad)
    name = f"{network.__name__}, {'gradients' if grad else 'no_grad'}"
    arrays = {"Named": 7, "Nested": 4 if grad else 3, "Rebound": 4 if grad else 2}[network.__name__]
    now = highest(track, "forward ends")
    RESULT.agree(f"{name}: most", by_hand=arrays * ONE, predicted=highest(predicted, "forward ends"), measured=now)

# %% [markdown]
# Then the running loss, over five batches. The sum of losses is one number, and it holds five graphs. A Python number,
# which `item()` gives, holds nothing; nor does the sum after `backward()`, whose graphs are empty: that is a leak of names,
# not of bytes. Its parameters have gradients now, though.

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
# `item()` leaks nothing, and yet its peak is more than that of one graph: while the second step runs forward, the names
# `x`, `y` and `loss` still hold the first one's. `del loss` at the end of a step, or `no_grad`, where nothing shall be
# learned, ends that.


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
# Last the cycle. Two objects that refer to one another are freed by nobody but Python's collector, which comes when it
# likes: their bytes stay. `memory.reclaim()` runs it, and says how many bytes had waited for it.

# %%
gc.collect()
gc.disable()  # so that it does not like to come between the two lines
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
axes.barh(list(peaks), [peak / GRAPH for peak in peaks.values()], color="#009E73")
axes.invert_yaxis()
axes.set(xlabel="peak of the loop, in graphs of one step")
picture(drawn, "03_peaks")

# %% [markdown]
# ## Mechanism
#
# Who holds a hidden layer's output of a step long past? The tracker says it of a forward pass whose result has one name
# left, `total`:

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
# `hidden[0]` is a view: it shows the first row of memory that it shares, and holds all of it. `clone()` makes a row of its
# own.


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
RESULT.ends(f"Five losses that are summed without item() hold {RESULT['add: after the loop']:,} bytes, with it 0.")
