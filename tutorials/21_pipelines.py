# %% [markdown]
# # 21. Pipelines, and why the first stage holds the most
#
# ## Question
#
# A network that is too deep for one card is cut into stages, one on each rank. A batch is cut into micro-batches, which pass
# through the stages one after another. Each rank has the same share of the layers. Why do some ranks need far more memory than
# others, and what does the schedule change?
#
# Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, 2021.

# %%
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import ranks_21
from lesson import Result, picture, stacked
from ranks_21 import LAYERS, ROWS, SCHEDULES, WIDTH, train

from tinygrad_mem import memory
from tinygrad_mem.memory import Category, Track

RESULT = Result()
MANY, FEW = 64, 2  # ranks: predicted, and run
COUNT = 96  # micro-batches of 64 ranks
ONE = 4 * ROWS * WIDTH  # bytes of an array of a micro-batch

# %% [markdown]
# The program is [`ranks_21.py`](ranks_21.py). Each rank has two layers. For each micro-batch a layer keeps two arrays: its
# input, and the result of SiLU. The first input of a stage comes from the previous rank, and is counted as a communication
# buffer.
#
# ## By hand
#
# A stage keeps the activations of a micro-batch from its forward to its backward. With p stages and m micro-batches:
#
# * GPipe runs all forwards, then all backwards: every stage keeps m micro-batches.
# * 1F1B runs a backward as soon as possible. The last stage computes the loss, so its backward follows at once: it keeps 1. The
#   stage before it begins another micro-batch while it waits for the gradient: 2. Stage i of p keeps min(p - i, m).
# * Interleaved 1F1B gives each rank v shorter stages. A micro-batch passes each rank v times, so more of them are in flight:
#   rank r keeps (v - 1) p + 2 (p - r - 1) + 1 times what one of its stages keeps, if m is large enough.


# %%
def under_way(schedule: str, rank: int, ranks: int, count: int) -> int:
    """Micro-batches of a stage whose backward is still to come."""
    if schedule == "GPipe":
        return count
    if schedule == "1F1B":
        return min(ranks - rank, count)
    return min((LAYERS - 1) * ranks + 2 * (ranks - rank - 1) + 1, LAYERS * count)


def by_hand(schedule: str, rank: int, ranks: int, count: int) -> int:
    """Of GPipe and 1F1B: what the layers keep, without received inputs."""
    return under_way(schedule, rank, ranks, count) * (2 * LAYERS - (rank > 0)) * ONE


# %% [markdown]
# ## Predicted
#
# One process predicts one of 64 ranks at a time. The track counts the activations.


# %%
@cache
def predicted(schedule: str, rank: int, ranks: int, count: int) -> Track:
    return memory.predict(train, schedule, count, world_size=ranks, rank=rank)


def kept(track: Track) -> int:
    return int(track.timeline().bytes(Category.ACTIVATION).max())


PLACES = (0, 1, MANY // 2, MANY - 1)
for schedule in ("GPipe", "1F1B"):
    for rank in PLACES:
        track = predicted(schedule, rank, MANY, COUNT)
        RESULT.agree(f"{schedule}, rank {rank}: kept", by_hand=by_hand(schedule, rank, MANY, COUNT), predicted=kept(track))
        RESULT.say(f"{schedule}, rank {rank}: peak", track.peak)

# %% [markdown]
# Under GPipe all ranks need nearly the same. Under 1F1B the first rank keeps one micro-batch for each stage, the last rank a
# single one, although each has the same layers: the first rank decides which card is needed. More micro-batches do not change
# that. So a batch may have as many as are needed to keep the pipeline busy.

# %%
for count in (COUNT, 2 * COUNT):
    RESULT.agree(
        f"1F1B, rank 0, {count} micro-batches: kept",
        by_hand=by_hand("1F1B", 0, MANY, count),
        predicted=kept(predicted("1F1B", 0, MANY, count)),
    )

# %% [markdown]
# ## Measured
#
# Two ranks run on this machine: `python -m tinygrad_mem launch -n 2 ranks_21.py`. That needs MPI: `pip install mpi4py mpich`.


# %%
def launched() -> dict[str, list]:
    """For each schedule: of each rank the peak, the bytes reserved, and the loss. Empty if ranks cannot run here."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.json"
        launch = [sys.executable, "-m", "tinygrad_mem", "launch", "-n", str(FEW), str(ranks_21.__file__), str(answers)]
        done = subprocess.run(launch, capture_output=True, text=True)
        if done.returncode:
            print(f"(no ranks run here: {(done.stderr or done.stdout).strip().splitlines()[-1]})")
            return {}
        return json.loads(answers.read_text())


measured = launched()
for schedule, ranks in measured.items():
    for rank, (peak, reserved, _) in enumerate(ranks):
        said = predicted(schedule, rank, FEW, 8)
        RESULT.agree(f"{schedule}, rank {rank} of {FEW}: peak", predicted=said.peak, measured=int(peak))
        RESULT.agree(f"{schedule}, rank {rank} of {FEW}: reserved", predicted=said.pool().reserved, measured=int(reserved))
    first, last = measured["GPipe"][-1][2], ranks[-1][2]
    RESULT.agree(f"{schedule}: the loss", unit="", within=1e-6 * abs(first), of_gpipe=first, of_this=last)

# %% [markdown]
# ## Picture

# %%
runs = {f"{schedule}, rank {r}": predicted(schedule, r, MANY, COUNT) for schedule in ("GPipe", "1F1B") for r in PLACES}
picture(stacked({name: track.by_category() for name, track in runs.items()}, "Ranks of 64, at their peaks"), "21_pipelines")

# %% [markdown]
# ## Mechanism
#
# A received input is kept as long as the layers' own arrays, one for each micro-batch in flight. An output is kept only until
# the next stage has received it: its graph stays, the array is freed. One or two more arrays are being sent or received. The
# first stage looks its input up in an embedding table, so there the input is an activation.

# %%
for rank in (1, MANY // 2, MANY - 1):
    most = int(predicted("1F1B", rank, MANY, COUNT).timeline().bytes(Category.COMMUNICATION).max())
    RESULT.agree(
        f"1F1B, rank {rank}: inputs", within=2 * ONE, by_hand=under_way("1F1B", rank, MANY, COUNT) * ONE, predicted=most
    )

# %% [markdown]
# ## Exercise
#
# 1. Interleaving fills and drains the pipeline faster. How much memory does it cost the first rank of 8, and how much the last?
# 2. Which schedule would you use on 8 ranks if a batch has only 4 micro-batches?

# %% [markdown]
# ## Solution
#
# 1. With v stages a rank, the first rank keeps (p - 1) / (p v) more than under 1F1B. The last rank, which kept the least, pays
#    the most.
# 2. 1F1B: the first ranks keep 4 micro-batches under both schedules, the last ranks keep fewer with 1F1B.

# %%
for rank in (0, 7):
    plain, turns = (predicted(schedule, rank, 8, 16) for schedule in ("1F1B", "interleaved"))
    for schedule, track, layers in (("1F1B", plain, LAYERS), ("interleaved", turns, 1)):
        every = track.timeline().bytes(Category.ACTIVATION) + track.timeline().bytes(Category.COMMUNICATION)
        hand = under_way(schedule, rank, 8, 16) * 2 * layers * ONE  # and what is sent or received at the moment
        RESULT.agree(f"{schedule}, rank {rank} of 8: kept", within=4 * ONE, by_hand=hand, predicted=int(every.max()))
for schedule in ("GPipe", "1F1B"):
    for rank in (0, 7):
        RESULT.agree(
            f"{schedule}, rank {rank} of 8, 4 micro-batches: kept",
            by_hand=by_hand(schedule, rank, 8, 4),
            predicted=kept(predicted(schedule, rank, 8, 4)),
        )
mib = 1 << 20
RESULT.ends(
    f"Of {MANY} ranks with the same layers, the first needs {predicted('1F1B', 0, MANY, COUNT).peak / mib:.1f} MiB under 1F1B "
    f"and the last {predicted('1F1B', MANY - 1, MANY, COUNT).peak / mib:.1f}; under GPipe "
    f"{predicted('GPipe', 0, MANY, COUNT).peak / mib:.1f} and {predicted('GPipe', MANY - 1, MANY, COUNT).peak / mib:.1f}."
)
assert list(SCHEDULES) == list(measured or SCHEDULES)
