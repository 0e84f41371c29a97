# %% [markdown]
# # 20. What each stage of ZeRO divides, and what none of them can
#
# ## Question
#
# Data-parallel training keeps parameters, gradients and optimizer state on every rank. ZeRO divides them among the ranks, stage
# by stage. What does a rank keep then? And why does a step need more than what is kept?
#
# Source: Rajbhandari et al., *ZeRO: Memory optimizations toward training trillion parameter models*, 2020.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ranks_20
from lesson import Result, block, picture, stacked
from ranks_20 import BATCH, LAYERS, STAGES, WIDTH, train

from tinygrad_mem import memory
from tinygrad_mem.memory import Category

RESULT = Result()
LAYER = 4 * WIDTH * WIDTH  # bytes of a layer's weight
MANY, FEW = 64, 2  # ranks: predicted, and run

# %% [markdown]
# The program is [`ranks_20.py`](ranks_20.py): a stack of 8 linear layers, each followed by tanh, and three steps under Adam.
# Each layer is a unit of `fully_shard`, and is divided as soon as it is made.
#
# ## By hand
#
# P bytes of parameters have P bytes of gradients, and Adam keeps 2 P. On N ranks a rank keeps, at the end of backward:
#
# | stage | divided | bytes of a rank |
# |---|---|---|
# | data parallel | nothing | 4 P |
# | ZeRO 1 | optimizer state | 2 P + 2 P / N, if it divides evenly |
# | ZeRO 2 | gradients too | P + 3 P / N |
# | ZeRO 3 | parameters too | 4 P / N |
#
# ZeRO 2 is PyTorch's `fully_shard(reshard_after_forward=False)`: a layer's parameters are whole from its forward to its
# backward. Between steps a rank has only its own rows, as with ZeRO 3. At the end of the forward it has the whole parameters
# beside its rows of parameters and optimizer state, and no gradients yet: P + 3 P / N as well.
#
# ZeRO 1 is `ZeroRedundancyOptimizer`. It does not cut parameters: of 64 ranks, 8 have the state of a layer, the others none.

# %%
P = LAYERS * LAYER
BY_HAND = {"data parallel": 4 * P, "ZeRO 1": 2 * P + 2 * LAYER, "ZeRO 2": P + 3 * P // MANY, "ZeRO 3": 4 * P // MANY}
WHEN = dict.fromkeys(STAGES, "backward ends") | {"ZeRO 2": "forward ends"}
KEPT = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.COMMUNICATION)

# %% [markdown]
# ## Predicted
#
# `world_size=64` predicts rank 0 of 64 in one process. `ranks="all"` predicts each different rank once.

# %%
tracks = {stage: memory.predict(train, stage, world_size=MANY) for stage in STAGES}
for stage, track in tracks.items():
    at = track.by_category(WHEN[stage])
    RESULT.agree(f"{stage}: kept", by_hand=BY_HAND[stage], predicted=sum(at.get(c, 0) for c in KEPT))
for stage, track in tracks.items():
    RESULT.say(f"{stage}: peak", track.peak)
(alike,) = memory.predict(train, "ZeRO 3", world_size=MANY, ranks="all")
RESULT.agree("ZeRO 3: ranks that are alike", by_hand=MANY, predicted=len(alike.ranks), unit="")
owners, others = memory.predict(train, "ZeRO 1", world_size=MANY, ranks="all")
RESULT.agree("ZeRO 1: ranks with a layer's state", by_hand=LAYERS, predicted=len(owners.ranks), unit="")
RESULT.say("ZeRO 1: peak of the others", others.track.peak)

# %% [markdown]
# The peak is above what is kept, by the largest factor in ZeRO 3. The rest exists only for a moment:
#
# * gathered layers: the one whose backward runs, and the next one, which is prefetched;
# * the whole gradient of a layer, which is sent to the ranks that keep its rows while the next gradient is computed;
# * activations. ZeRO does not divide them: each rank has its own samples.

# %%
most = tracks["ZeRO 3"].by_category()
RESULT.agree("gathered or sent in ZeRO 3's peak", by_hand=3 * LAYER, predicted=most[Category.COMMUNICATION])
for stage, track in tracks.items():
    # of each layer the result of tanh, but for the last one's, whose square is averaged: that and its root
    saved = track.by_category("forward ends")[Category.ACTIVATION]
    RESULT.agree(f"{stage}: activations", by_hand=LAYERS * block(4 * BATCH * WIDTH), predicted=saved)

# %% [markdown]
# ## Measured
#
# Two ranks run on this machine: `python -m tinygrad_mem launch -n 2 ranks_20.py`. That needs MPI: `pip install mpi4py mpich`.


# %%
def launched() -> dict[str, list]:
    """For each stage: of each rank the peak, the bytes reserved, and the last loss. Empty if ranks cannot run here."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.json"
        launch = [sys.executable, "-m", "tinygrad_mem", "launch", "-n", str(FEW), str(ranks_20.__file__), str(answers)]
        done = subprocess.run(launch, capture_output=True, text=True)
        if done.returncode:
            print(f"(no ranks run here: {(done.stderr or done.stdout).strip().splitlines()[-1]})")
            return {}
        return json.loads(answers.read_text())


measured = launched()
for stage, ranks in measured.items():
    said = memory.predict(train, stage, world_size=FEW)
    for rank, (peak, reserved, _) in enumerate(ranks):
        RESULT.agree(f"{stage}, rank {rank}: peak", predicted=said.peak, measured=int(peak))
        RESULT.agree(f"{stage}, rank {rank}: reserved", predicted=said.pool().reserved, measured=int(reserved))
    first, last = measured["data parallel"][0][2], ranks[0][2]
    RESULT.agree(f"{stage}: the loss", within=1e-6 * first, unit="", nothing_divided=first, divided=last)

# %% [markdown]
# ## Picture

# %%
picture(stacked({stage: track.by_category() for stage, track in tracks.items()}, "One rank of 64, at its peak"), "20_zero")

# %% [markdown]
# ## Mechanism
#
# A unit's parameters are whole in its forward and in its backward. In between, the nodes of the graph keep placeholders, and
# the unit is gathered again when backward needs them. So the size of the units decides how much a step needs for a moment. If
# the network is one unit, all of it is gathered, and all gradients exist whole when the last one is complete.

# %%
whole = memory.predict(train, "ZeRO 3", False, world_size=MANY)
at = whole.by_category()
RESULT.agree("one unit: gathered at the peak", by_hand=P, predicted=at[Category.COMMUNICATION])
RESULT.agree("one unit: whole gradients", by_hand=(LAYERS - 1) * LAYER, predicted=at[Category.GRADIENT])

# %% [markdown]
# ## Exercise
#
# 1. `fully_shard` on the network alone makes one unit of it. How much of ZeRO 3's saving is left?
# 2. `ZeroRedundancyOptimizer` does not cut parameters: each belongs to one rank. On 3 ranks, who keeps how much state?

# %% [markdown]
# ## Solution
#
# 1. Optimizer state and shards are still divided, but P bytes of parameters and almost P of gradients are whole at the peak.
# 2. Of 8 layers, two ranks get three each, and the last one gets two.

# %%
RESULT.say("one unit: peak", whole.peak)
uneven = memory.predict(train, "ZeRO 1", world_size=3, ranks="all")
for each, layers in zip(uneven, (3, 2), strict=True):
    state = each.track.by_category("training ends")[Category.OPTIMIZER_STATE]
    RESULT.agree(f"state on ranks {each.ranks}", by_hand=2 * layers * LAYER, predicted=state)
mib = 1 << 20
RESULT.ends(
    f"Data parallel needs {tracks['data parallel'].peak / mib:.1f} MiB. With ZeRO 3 a rank of {MANY} keeps "
    f"{BY_HAND['ZeRO 3'] / mib:.1f}; its step needs {tracks['ZeRO 3'].peak / mib:.1f} with gathered layers, gradients on their "
    f"way and activations, and {whole.peak / mib:.1f} if the network is one unit."
)
