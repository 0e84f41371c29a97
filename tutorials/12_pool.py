# %% [markdown]
# # 12. The pool: bytes that nobody uses
#
# ## Question
#
# The card has 8 MiB, 4 are in use, 2 are asked for, and it is out of memory. How? What does `empty_cache` do about it, and
# what does it not do?
#
# Source: CuPy 14, `cupy/cuda/memory.pyx`, whose rules the pool follows on every device.

# %%
import contextlib

from lesson import DEVICE, Result, block, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import COLOURS

RESULT = Result()
MIB = 1 << 20

# %% [markdown]
# ## By hand
#
# Asking the machine for memory is slow, so a pool asks for large pieces (segments) and keeps what is freed for the next
# request. Its rules:
#
# 1. A request is rounded up to a multiple of 512 bytes.
# 2. It gets the smallest free chunk that is large enough (best fit); what is left of the chunk stays free.
# 3. A chunk that is freed is joined with its free neighbours.
# 4. Where no chunk is large enough, a new segment of exactly the size is taken from the machine.
# 5. Where the machine, or a limit, does not allow that, segments that are wholly free are given back first.
#
# So there are four numbers: bytes *asked for*, *rounded*, *in use* (what is alive, rounded), and *reserved* (what the pool
# has from the machine). A chunk cannot move: an array knows its address.
#
# Take 8 MiB at once and free them: one segment. Ask for eight arrays of 1 MiB, which fill it, and free every second one. In
# use: 4. Reserved: 8. Free: 4, in pieces of 1, that have no free neighbours. A request for 2 fits into none of them, and no
# segment is wholly free. With a limit of 8 it fails.

# %%
by_hand = {"in use": 4 * MIB, "reserved": 8 * MIB, "free": 4 * MIB, "largest piece": MIB}
asked = [1, 512, 513, 1000]
print([(n, block(n)) for n in asked])

# %% [markdown]
# ## Predicted
#
# The pool of `meta` follows the same rules with addresses that are never used.


# %%
def mib(count: int) -> tm.Tensor:
    return tm.empty(count * MIB // 4)


def every_second() -> list[tm.Tensor]:
    """Eight arrays of 1 MiB in a segment of 8, of which every second one has been freed."""
    whole = mib(8)
    del whole
    parts = [mib(1) for _ in range(8)]
    memory.mark("full")
    del parts[::2]
    memory.mark("every second")
    return parts


def predict_pieces() -> None:
    with memory.limit("8 MiB"):
        parts = every_second()
        try:
            mib(2)
        except tm.OutOfMemoryError:
            memory.mark("out of memory")
        del parts
        mib(2)


track = memory.predict(predict_pieces)
state = track.pool("out of memory")
RESULT.agree("in use", by_hand=by_hand["in use"], predicted=state.used)
RESULT.agree("reserved", by_hand=by_hand["reserved"], predicted=state.reserved)

# %% [markdown]
# ## Measured
#
# On a device, under the same limit. The error names what is free, the largest piece of it, and who has the rest. CuPy's own
# pool, on cuda, does not tell its largest piece: there it is looked for, by asking for more and more.

# %%
pool = tm.device(DEVICE).pool
memory.empty_cache()


def largest_piece() -> int:
    """The largest free piece, under a limit that allows no new segment."""
    if DEVICE == "cpu":
        return pool.largest_free()
    most = 0
    with contextlib.suppress(tm.OutOfMemoryError):
        for size in range(MIB // 4, 8 * MIB + 1, MIB // 4):
            tm.empty(size // 4)
            most = size
    return most


with memory.limit("8 MiB"), memory.track() as pieces:
    parts = every_second()
    RESULT.agree("free", by_hand=by_hand["free"], measured=pool.free_bytes())
    RESULT.agree("largest piece", by_hand=by_hand["largest piece"], measured=largest_piece())
    try:
        mib(2)
    except tm.OutOfMemoryError as error:
        print(error)
    else:
        raise AssertionError("2 MiB were found")
    before = pool.total_bytes()
    memory.empty_cache()
    RESULT.agree("given back by empty_cache with parts in use", by_hand=0, measured=before - pool.total_bytes())
    del parts[:]
    RESULT.agree("largest piece, all freed", by_hand=8 * MIB, measured=largest_piece())
    mib(2)
    memory.empty_cache()
    RESULT.agree("reserved after empty_cache with nothing in use", by_hand=0, measured=pool.total_bytes())

# %% [markdown]
# That is what `empty_cache` does: it gives segments that are *wholly* free back to the machine, for other programs. It
# frees no tensor, it moves none, and it joins no pieces. Nor does it help a program that is out of memory: the pool does
# the same by itself before it gives up. Where the eight arrays have a segment each, the request succeeds without it:

# %%
with memory.limit("8 MiB"):
    parts = [mib(1) for _ in range(8)]
    del parts[::2]
    two = mib(2)  # four segments went back, one of 2 MiB was taken
    RESULT.agree("reserved where each had a segment", by_hand=6 * MIB, measured=pool.total_bytes())
    del parts, two
memory.empty_cache()

# %% [markdown]
# ## Picture

# %%
chart, axes = figure(height=2.4)
start = min(b.address for b in pieces.live("full"))
for row, moment in enumerate(("full", "every second")):
    alive = [(b.address, b.rounded) for b in pieces.live(moment)]
    axes.broken_barh([(0, 8)], (row - 0.35, 0.7), facecolor="#eeeeee", edgecolor="#888888")
    spans = [((address - start) / MIB, size / MIB) for address, size in alive]
    axes.broken_barh(spans, (row - 0.35, 0.7), facecolor=COLOURS[Category.PARAMETER], edgecolor="white")
axes.set(yticks=[0, 1], yticklabels=["full", "every second"], xlabel="MiB from where the segment begins", ylim=(1.6, -0.6))
picture(chart, "12_pieces")

# %% [markdown]
# ## Mechanism
#
# Training meets this wherever sizes change. A batch of longer sequences does not fit into what a shorter one has left
# behind, and takes new segments, while the old ones are pinned by what lives in them. The same batches, once growing, once
# the largest first. (On cuda what is reserved depends on which of the free pieces of one size CuPy takes; several choices are
# predicted.)


# %%
def epochs(sizes: list[int], used: list[int] | None = None, reserved: list[int] | None = None) -> None:
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    for size in sizes:
        optimizer.zero_grad()
        model(tm.ones(size, 64)).square().mean().backward()
        optimizer.step()
        memory.mark(f"{size} rows")


growing = list(range(256, 2049, 256))
curves = {}
for name, sizes in (("growing", growing), ("largest first", growing[::-1])):
    predicted = memory.predict(epochs, sizes)
    memory.empty_cache()
    with memory.track() as real:
        epochs(sizes)
    RESULT.agree(f"{name}: peak in use", predicted=predicted.peak, measured=real.peak)
    now = real.pool("end").reserved
    if DEVICE == "cpu":
        RESULT.agree(f"{name}: reserved", predicted=predicted.pool("end").reserved, measured=now)
    else:
        some = predicted.replay()
        RESULT.agree(f"{name}: reserved", at_least=some.low, at_most=some.high, measured=now, within=some.high - some.low)
    curves[name] = [real.pool(mark).reserved / MIB for mark in real.marks]
assert RESULT["growing: peak in use"] == RESULT["largest first: peak in use"]
chart, axes = figure(height=3.2)
for colour, (name, reserved) in zip((Category.GRADIENT, Category.PARAMETER), curves.items(), strict=True):
    axes.plot(range(1, len(reserved) + 1), reserved, "o-", color=COLOURS[colour], label=f"reserved, {name}")
axes.axhline(RESULT["growing: peak in use"] / MIB, color="#555555", linestyle="--", linewidth=1, label="most in use")
axes.set(xlabel="batch", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False)
picture(chart, "12_order")
print(memory.memory_summary())

# %% [markdown]
# ## Exercise
#
# What does rounding cost? A network has layers with 10 biases each. How many bytes does the pool count for a bias, what
# part of it is used, and how many layers of that kind waste a mebibyte?

# %% [markdown]
# ## Solution

# %%
with memory.track() as track:
    biases = [tm.zeros(10) for _ in range(4)]
    state = track.pool("end")
RESULT.agree("four biases asked for", by_hand=4 * 10 * 4, measured=state.requested)
RESULT.agree("four biases in the pool", by_hand=4 * 512, measured=state.rounded)
RESULT.say("biases that waste a mebibyte", MIB // (512 - 40) + 1, "")
times = RESULT["growing: reserved"] / RESULT["largest first: reserved"]
RESULT.ends(
    f"{by_hand['free'] // MIB} of 8 MiB are free and 2 cannot be had: the largest piece is {by_hand['largest piece'] // MIB}. "
    f"Growing batches reserve {times:.1f} times what they do largest first."
)
