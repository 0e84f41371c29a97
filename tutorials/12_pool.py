# %% [markdown]
# # 12. The pool: bytes that are reserved but unused
#
# ## Question
#
# A card has 8 MiB, and 4 MiB are in use. A request for 2 MiB fails: out of memory. Why? What can `empty_cache` do about it, and
# what can it not do?
#
# Source: CuPy 14, `cupy/cuda/memory.pyx`, whose rules the pool follows on every device.

# %%
import contextlib

from lesson import DEVICE, Result, block, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory.render.palette import LINES

RESULT = Result()
MIB = 1 << 20

# %% [markdown]
# ## By hand
#
# Asking the machine for memory is slow. So a pool asks for large pieces (segments), and keeps freed memory for the next
# request. Its rules:
#
# 1. A request is rounded up to a multiple of 512 bytes.
# 2. It gets the smallest free chunk that is large enough (best fit); the rest of the chunk stays free.
# 3. A freed chunk is merged with its free neighbours.
# 4. If no chunk is large enough, the pool reserves a new segment of exactly that size.
# 5. If the machine or a limit does not allow that, it first returns segments that are completely free to the machine.
#
# So there are four numbers: bytes *requested*, *rounded*, *in use* (of live blocks, rounded), and *reserved* (all segments). A
# chunk cannot move, because arrays have its address.
#
# Allocate 8 MiB at once and free them: one segment. Allocate eight arrays of 1 MiB, which fill it, and free every second one.
# In use: 4 MiB. Reserved: 8. Free: 4, in pieces of 1, none of which has a free neighbour. A request for 2 fits into none of
# them, and the segment is not completely free. With a limit of 8 the request fails.

# %%
by_hand = {"in use": 4 * MIB, "reserved": 8 * MIB, "free": 4 * MIB, "largest piece": MIB}
asked = [1, 512, 513, 1000]
print([(n, block(n)) for n in asked])

# %% [markdown]
# ## Predicted
#
# The pool of `meta` follows the same rules, with addresses that are never used.


# %%
def mib(count: int) -> tm.Tensor:
    return tm.empty(count * MIB // 4)


def every_second() -> list[tm.Tensor]:
    """Eight arrays of 1 MiB in a segment of 8, every second one of which is freed."""
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
# Now on a device, with the same limit. The error says how much is free, how large the largest free piece is, and which tensors
# hold the rest. CuPy's pool, on cuda, does not report its largest piece: there we find it with larger and larger requests.

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
# `empty_cache` returns segments that are *completely* free to the machine, for other programs. It frees no tensor, moves none,
# and merges no pieces. It does not help a program that is out of memory either: the pool does the same before it raises the
# error. If each of the eight arrays has its own segment, the request succeeds without it:

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
    axes.broken_barh(spans, (row - 0.35, 0.7), facecolor=LINES[4], edgecolor="white")
axes.set(yticks=[0, 1], yticklabels=["full", "every second"], xlabel="MiB from where the segment begins", ylim=(1.6, -0.6))
picture(chart, "12_pieces", "Arrays in a segment: all, and every second one")

# %% [markdown]
# ## Mechanism
#
# In training this happens when sizes change. A batch of longer sequences does not fit into the free pieces of a shorter one,
# and needs new segments, while live arrays keep the old ones reserved. We run the same batches in growing order, and then with
# the largest first. (On cuda, reserved bytes depend on which of several equal pieces CuPy chooses; several choices are
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
for name, reserved in curves.items():
    axes.plot(range(1, len(reserved) + 1), reserved, "o-", label=f"reserved, {name}")
axes.axhline(RESULT["growing: peak in use"] / MIB, color="#555555", linestyle="--", linewidth=1, label="most in use")
axes.set(xlabel="batch", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False)
picture(chart, "12_order", "Reserved bytes, by the order of the batches")
print(memory.memory_summary())

# %% [markdown]
# ## Exercise
#
# What does rounding cost? A network has layers with 10 biases each. How many bytes does the pool count for such a bias vector,
# what share of them is used, and how many such layers waste a mebibyte?

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
    f"{by_hand['free'] // MIB} of 8 MiB are free, but a request for 2 fails: the largest piece is "
    f"{by_hand['largest piece'] // MIB}. Batches in growing order reserve {times:.1f} times as much as with the largest first."
)
