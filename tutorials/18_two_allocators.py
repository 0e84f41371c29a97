# %% [markdown]
# # 18. Two allocators: why a run fails late
#
# ## Question
#
# One program, the same requests: how much of the card does PyTorch's allocator reserve, and how much CuPy's pool (lesson 12)?
# Why is *reserved* more than *allocated*? A run with changing shapes works for hundreds of steps. Then it is out of memory,
# with more than a third of the card free. What has changed since step 1, and which setting helps?
#
# Source: PyTorch 2.13, `c10/cuda/CUDACachingAllocator.cpp`, and "CUDA semantics: Memory management" in its documentation.

# %%
import gzip
import json
from pathlib import Path

import lesson
import numpy as np
from lesson import DEVICE, Result, block, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, pytorch
from tinygrad_mem.memory.log import Kind
from tinygrad_mem.pytorch import CachingAllocator
from tinygrad_mem.pytorch.recording import EVENT, Action, RecordedBlock, RecordedSegment, Recording

RESULT = Result()
MIB = 1 << 20

# %% [markdown]
# ## By hand
#
# PyTorch's rules. The first two differ from CuPy's:
#
# 1. Requests up to 1 MiB are *small* and live in segments of 2 MiB. Larger ones, below 10 MiB, are cut from segments of 20 MiB;
#    from 10 MiB on a request has a segment of its own, of a multiple of 2 MiB.
# 2. A free block is cut only if more than 1 MiB is left (small ones: 512 bytes). Else the rest stays with the request, and is
#    counted as allocated.
# 3. If the driver has no memory left, segments that are completely free are released, and the driver is asked again.
#
# Take 1,000 bytes, 3 MiB, 12 MiB and 15 MiB. The first gets a segment of 2 MiB. The second is cut from a segment of 20 MiB, the
# third from the rest of it. That leaves 5 MiB, too little for the fourth: it gets a segment of 16 MiB, and keeps the last MiB.
# CuPy reserves what each request needs, rounded up to 512 bytes.

# %%
asked = [1000, 3 * MIB, 12 * MIB, 15 * MIB]
allocator = CachingAllocator()
for size in asked:
    allocator.malloc(size)
now = allocator.stats.current
RESULT.agree("PyTorch reserves", by_hand=(2 + 20 + 16) * MIB, predicted=now("reserved_bytes"))
RESULT.agree("PyTorch allocates", by_hand=1024 + (3 + 12 + 16) * MIB, predicted=now("allocated_bytes"))


def four() -> None:
    kept = [tm.empty(size, dtype=tm.uint8) for size in asked]
    memory.mark("four")
    del kept


state = memory.predict(four).pool("four")
RESULT.agree("CuPy reserves for the four", by_hand=sum(map(block, asked)), predicted=state.reserved)

# %% [markdown]
# What a setting does, by hand: allocate 30 MiB and free them; allocate 2 MiB and keep them; allocate 30 MiB again.
#
# - Default settings: the 2 MiB are cut from the free block of 30, and the rest is too small for 30. Two segments of 30.
# - `max_split_size_mb:24`: a block of 24 MiB or more is not cut for less. The 2 MiB get a segment of 20; the 30 stay free.
# - `expandable_segments:True`: one segment, made of pages of 20 MiB, that grows at its end. The 2 MiB lie at its beginning;
#   the 32 MiB fit into two pages.
# - `roundup_power2_divisions:4` rounds requests up to a quarter of a power of two, so that there are fewer different sizes:
#   15 MiB become 16, 17 become 20. It does not help against this hole.


# %%
def hole(settings: str) -> CachingAllocator:
    allocator = CachingAllocator(settings)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(2 * MIB)
    allocator.malloc(30 * MIB)
    return allocator


by_hand = {
    "": 2 * 30,
    "max_split_size_mb:24": 20 + 30,
    "expandable_segments:True": 2 * 20,
    "roundup_power2_divisions:4": 2 * 32,
}
for settings, mib in by_hand.items():
    reserved = hole(settings).stats.current("reserved_bytes")
    RESULT.agree(f"the hole, {settings or 'default settings'}", by_hand=mib * MIB, predicted=reserved)

# %% [markdown]
# ## Predicted
#
# A network gets a batch of another length in each step, with arrays of 4 to 16 MiB. Every tenth step keeps 2 MiB of its scores,
# for a plot. `pytorch.replay` sends the requests of a track through the model of PyTorch's allocator.

# %%
STEPS, CARD = 400, 256 * MIB
ROWS = np.random.default_rng(0).integers(4096, 16384, STEPS).tolist()


def train(steps: int, keep: bool = True, first: int = 0) -> None:
    layers = []
    for _ in range(3):
        layers += [nn.Linear(256, 256), nn.Tanh()]
    model, kept = nn.Sequential(*layers), []
    rule = tm.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        rule.zero_grad()
        y = model(tm.empty(ROWS[step], 256))
        if keep and step % 10 == 9:
            kept.append(y.detach()[:2048].clone())
        y.square().mean().backward()
        rule.step()
        del y
        memory.mark(f"step {step + 1}")


def cupy_on_the_card() -> None:
    with memory.limit(CARD):
        try:
            train(STEPS)
        except tm.OutOfMemoryError:
            memory.mark("out of memory")


track = memory.predict(train, STEPS)
limited = memory.predict(cupy_on_the_card)
RESULT.say("most in use", track.peak)
RESULT.say("CuPy reserves", track.pool("end").reserved)
RESULT.say("CuPy: out of memory on the card, step", len(limited.marks) if limited.marks[-1].text == "out of memory" else 0, "")

# %% [markdown]
# Without a limit CuPy's pool reserves more: it reserves a segment for each request that does not fit, while PyTorch's allocator
# cuts several requests below 10 MiB from one segment. On a card of 256 MiB both release completely free segments, and still
# fail. A request of the replay belongs to the step whose mark comes after it. Step 0 means that no step fails.

# %%
kind = track.log.column("kind")
events = np.cumsum((kind == Kind.MALLOC) + 2 * (kind == Kind.FREE))  # a free is requested, and completed
ends = [events[mark.index] for mark in track.marks if mark.text.startswith("step ")]


def fails(found: pytorch.Replay) -> int:
    """The step at which a replay first has no memory; 0 if it has enough for all."""
    return int(np.searchsorted(ends, found.out_of_memory[0], "right")) + 1 if found.out_of_memory else 0


SETTINGS = {
    "default settings": "",
    "max_split_size_mb:24": "max_split_size_mb:24",
    "roundup_power2_divisions:4": "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.8": "garbage_collection_threshold:0.8,per_process_memory_fraction:1.0",
    "expandable_segments:True": "expandable_segments:True",
}
free, small = {}, {}
for name, settings in SETTINGS.items():
    free[name], small[name] = pytorch.replay(track, settings), pytorch.replay(track, settings, CARD)
    RESULT.say(f"{name}: reserved", free[name].peak_reserved)
    RESULT.say(f"{name}: allocated", free[name].peak_allocated)
    RESULT.say(f"{name}: out of memory on the card, step", fails(small[name]), "")

# %% [markdown]
# `max_split_size_mb` changes nothing, because no block has 24 MiB; it is for a few large requests among small ones. With
# rounding there are fewer different sizes, and a card that never refuses has less reserved. But each block is larger, and on
# this card the run fails earlier. Garbage collection releases free segments earlier, but stuck bytes are not in free segments.
# Only expandable segments help: stuck bytes lie between the borders of segments, and an expandable segment has none.
#
# ## Measured
#
# The requests of a prediction are those of a run. This runs the first steps on the device:

# %%
FIRST = 12  # the tenth keeps its scores
memory.empty_cache()
with memory.track() as real:
    train(FIRST)
foreseen = memory.predict(train, FIRST)
RESULT.agree("first steps: most in use", predicted=foreseen.peak, measured=real.peak)
if DEVICE == "cpu":
    agreed = {"predicted": foreseen.pool("end").reserved, "measured": real.pool("end").reserved}
    RESULT.agree("first steps: CuPy reserves", **agreed)

# %% [markdown]
# The model of PyTorch's allocator is checked against a recording of a training step on a real GPU. In the replay each request
# must get the address that it had there.

# %%
RECORDINGS = Path(lesson.__file__).parents[1] / "tests" / "pytorch" / "recordings"


def recorded(name: str) -> Recording:
    """The facts of a snapshot that PyTorch wrote on a GPU."""
    facts = json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))
    made = np.zeros(len(facts["traces"]), EVENT)
    for row, (action, address, size, stream, _) in zip(made, facts["traces"], strict=True):
        row["action"], row["address"], row["size"], row["stream"] = Action[action.upper()], address, size, stream
    segments = [
        RecordedSegment(*head[:3], head[3] == "small", head[4], [RecordedBlock(*each) for each in blocks])
        for *head, blocks in facts["segments"]
    ]
    return Recording(0, made, segments)


training = recorded("lm-medium-128-train")
again = pytorch.replay(training)
RESULT.agree("requests of the recording", at_their_address=again.as_recorded, recorded=again.allocations, unit="")
RESULT.say("the recording: allocated", again.peak_allocated)
RESULT.say("the recording: reserved", again.peak_reserved)
for name in ("roundup_power2_divisions:4", "expandable_segments:True"):
    other = pytorch.replay(training, SETTINGS[name])
    RESULT.say(f"the recording, {name}: reserved", other.peak_reserved)

# %% [markdown]
# Its shapes are the same in every step. So little is stuck that no setting changes much.
#
# ## Picture


# %%
def at_ends(found: pytorch.Replay, column: int) -> np.ndarray:
    """A column of a replay's timeline at the end of each step, in MiB."""
    line = found.timeline
    return line[np.searchsorted(line[:, 0], ends) - 1, column] / MIB


chart, axes = figure(height=3.4)
for name in ("default settings", "expandable_segments:True"):
    axes.plot(range(1, STEPS + 1), at_ends(free[name], 2), label=f"PyTorch reserves, {name}")
cupy = [track.pool(mark).reserved / MIB for mark in track.marks if mark.text.startswith("step ")]
axes.plot(range(1, STEPS + 1), cupy, label="CuPy reserves")
line = track.timeline()
tops = [line.used[: np.searchsorted(line.event, mark.index)].max() / MIB for mark in track.marks]
axes.plot(range(1, STEPS + 1), tops[:STEPS], color="#555555", linestyle="--", linewidth=1, label="most in use so far")
axes.axhline(CARD / MIB, color="#222222", linestyle=":", linewidth=1, label="the card")
axes.set(xlabel="step", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False, fontsize=8)
picture(chart, "18_reserved", "Reserved bytes of two allocators, step by step")

# %% [markdown]
# ## Mechanism
#
# Free bytes are of two kinds: those that can be released, because their whole segment is free, and those that are *stuck*
# beside a live block. At the failing step the first kind was released before the driver was asked again. The second kind came
# with the kept scores: each was cut from a segment of its step's arrays, so that the rest of the segment can neither be
# released nor serve a larger request. In step 1 the same batch would have fitted more than twice.

# %%
failed = small["default settings"]
row = failed.fragmentation[failed.fragmentation[:, 0] == failed.out_of_memory[0]][0]
allocated = int(failed.timeline[failed.timeline[:, 0] == failed.out_of_memory[0]][0, 1])
RESULT.say("allocated when it fails", allocated)
RESULT.say("releasable when it fails", int(row[1]))
RESULT.say("stuck when it fails", int(row[2]))
alone = pytorch.replay(memory.predict(train, 1, first=fails(failed) - 1), "")
RESULT.say("the step that fails, as the first: reserved", alone.peak_reserved)
without = memory.predict(train, STEPS, keep=False)
clean = pytorch.replay(without, "")
RESULT.say("without kept scores: reserved", clean.peak_reserved)
RESULT.say("without kept scores: most in use", without.peak)
half = pytorch.replay(without, "", CARD // 2)
RESULT.agree("without kept scores: failures", by_hand=0, on_half_the_card=len(half.out_of_memory), unit="")

# %% [markdown]
# Without kept scores, reserved bytes are hardly more than those in use, and half of the card is enough, although the shapes
# change as before: free blocks merge, and whole segments are released. Changing shapes do harm if something small stays between
# them.
#
# ## Exercise
#
# Keep the scores elsewhere: move them to the CPU, or allocate one array for all of them before the first step. What does
# PyTorch reserve then, and does the run finish on the card?

# %% [markdown]
# ## Solution


# %%
def in_one_place(steps: int) -> None:
    layers = []
    for _ in range(3):
        layers += [nn.Linear(256, 256), nn.Tanh()]
    model = nn.Sequential(*layers)
    rule = tm.optim.SGD(model.parameters(), lr=0.1)
    kept = tm.empty(steps // 10, 2048, 256)
    for step in range(steps):
        rule.zero_grad()
        y = model(tm.empty(ROWS[step], 256))
        if step % 10 == 9:
            kept[step // 10] = y.detach()[:2048]
        y.square().mean().backward()
        rule.step()
        del y


placed = memory.predict(in_one_place, STEPS)
fixed = pytorch.replay(placed, "", CARD)
RESULT.say("in one place: reserved on the card", fixed.peak_reserved)
RESULT.agree("in one place: failures", by_hand=0, predicted=len(fixed.out_of_memory), unit="")
RESULT.ends(
    f"The most in use is {track.peak / MIB:.0f} MiB, and on a card of {CARD // MIB} PyTorch's allocator fails at step "
    f"{fails(failed)} with {row[2] / MIB:.0f} MiB stuck; with expandable segments it reserves "
    f"{free['expandable_segments:True'].peak_reserved // MIB} and never fails. CuPy's pool reserves "
    f"{track.pool('end').reserved / MIB:.0f}."
)
