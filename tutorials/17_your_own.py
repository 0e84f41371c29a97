# %% [markdown]
# # 17. Your own op, your own technique
#
# ## Question
#
# All techniques are built from three hooks: an op that says what it saves, a hook on what is saved, a hook on a gradient.
# What does it take to write one of each, and does the tracker see that it works?
#
# Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023, for the
# last one.

# %%
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from lesson import Result, block, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.autograd import Function, gradcheck
from tinygrad_mem.autograd.graph import saved_tensors_hooks
from tinygrad_mem.memory import Category
from tinygrad_mem.techniques import compressed

RESULT = Result()
LAYERS, WIDTH, BATCH, LR = 6, 256, 1024, 0.5
ONE = 4 * BATCH * WIDTH  # bytes of a result
WEIGHT = block(4 * WIDTH * WIDTH)

# %% [markdown]
# ## By hand
#
# The network: linear layers with `x * sigmoid(x)`, SiLU, behind each. Written like that, the product keeps both factors, of
# which sigmoid keeps one too, the same array; and the next layer keeps the product: 3 arrays a layer.
#
# * *An op of our own* keeps x alone and makes the sigmoid again in backward: 2 arrays a layer.
# * *A hook on what is saved* keeps those in float16: half of it, 1 array a layer. The network's input is packed as well, which
#   its caller has anyway: half an array too much.
# * *A hook on gradients* makes the step of a parameter as soon as its gradient is complete, and frees it: of all gradients one
#   is there at a time.


# %%
class SiLU(Function):
    """x * sigmoid(x). Saves x."""

    @staticmethod
    def forward(ctx: Any, x: tm.Tensor) -> tm.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: tm.Tensor) -> tm.Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


def written_out(x: tm.Tensor) -> tm.Tensor:
    return x * x.sigmoid()


def pack(tensor: tm.Tensor) -> tm.Tensor:
    """What is kept instead: parameters are there anyway, and whole numbers are no activations."""
    if isinstance(tensor, nn.Parameter) or tensor.dtype != tm.float32:
        return tensor
    return tensor.half()


def unpack(kept: tm.Tensor) -> tm.Tensor:
    return kept.float() if kept.dtype == tm.float16 else kept


def step_and_free(parameter: tm.Tensor) -> None:
    with tm.no_grad():
        parameter.add_(parameter.grad, alpha=-LR)
    parameter.grad = None


assert gradcheck(SiLU.apply, (tm.randn(5, dtype=tm.float64, requires_grad=True),))
ARRAYS = {"written out": 3, "own op": 2, "and in float16": 1 + 0.5 / LAYERS}  # a layer

# %% [markdown]
# ## Predicted


# %%
class Net(nn.Module):
    def __init__(self, activation: Callable[[tm.Tensor], tm.Tensor]) -> None:
        super().__init__()
        tm.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.activation = activation

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def train(activation: Any, packing: Callable[[], Any] = nullcontext, in_backward: bool = False) -> list[np.ndarray]:
    """Two steps of plain gradient descent; the parameters after them."""
    net = Net(activation)
    for p in net.parameters() if in_backward else ():
        p.register_post_accumulate_grad_hook(step_and_free)
    x = tm.randn(BATCH, WIDTH)
    for _ in range(2):
        with packing():
            loss = net(x).square().mean()
        memory.mark("forward ends")
        loss.backward()
        for p in net.parameters() if not in_backward else ():
            step_and_free(p)
    return [p.detach().cpu().numpy().copy() for p in net.parameters()] if x.device.type != "meta" else []


def halves() -> saved_tensors_hooks:
    return saved_tensors_hooks(pack, unpack)


WAYS: dict[str, tuple] = {
    "written out": (written_out,),
    "own op": (SiLU.apply,),
    "and in float16": (SiLU.apply, halves),
    "and steps in backward": (SiLU.apply, halves, True),
}
predicted = {way: memory.predict(train, *how) for way, how in WAYS.items()}
for way, arrays in ARRAYS.items():
    kept = predicted[way].by_category("forward ends")[Category.ACTIVATION]
    RESULT.agree(f"{way}: kept", by_hand=round(arrays * LAYERS * ONE), predicted=kept)

# %% [markdown]
# ## Measured

# %%
tracks, found = {}, {}
for way, how in WAYS.items():
    with memory.track() as tracks[way]:
        found[way] = train(*how)
    RESULT.agree(f"{way}: peak", predicted=predicted[way].peak, measured=tracks[way].peak)
gradients = {way: int(track.timeline().bytes(Category.GRADIENT).max()) for way, track in tracks.items()}
everything = LAYERS * (WEIGHT + block(4 * WIDTH))
RESULT.agree("gradients at once", by_hand=everything, measured=gradients["and in float16"])
RESULT.agree("gradients at once, stepping in backward", by_hand=WEIGHT, measured=gradients["and steps in backward"])

# %% [markdown]
# The numbers: the op's gradient is the same but for rounding, float16 has its 11 bits, and stepping early changes no bit.


# %%
def apart(one: str, other: str) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(found[one], found[other], strict=True))


for one, other, most in (
    ("own op", "written out", 1e-6),
    ("and in float16", "own op", 1e-3),
    ("and steps in backward", "and in float16", 0),
):
    print(f"{one}: parameters differ from '{other}' by {apart(one, other):.1e} at most")
    assert apart(one, other) <= most
assert apart("and in float16", "own op") > 0

# %% [markdown]
# ## Picture

# %%
peaks = {way: track.by_category() for way, track in tracks.items()}
picture(stacked(peaks, "Two steps: the peak"), "17_ways")
picture(tracks["written out"], "17_written_out", "Written out")
picture(tracks["and steps in backward"], "17_all", "Own op, float16, and steps in backward")

# %% [markdown]
# ## Mechanism
#
# A function is one row of what is saved, under its own name. Stepping in backward has not moved this network's peak: it is
# at the beginning of backward, where no gradient is there yet. It moves one that comes at the end, of large weights (lesson
# 11).

# %%
memory.print_saved(SiLU.apply, tm.ones(4, WIDTH, requires_grad=True))
rows = memory.saved(SiLU.apply, tm.ones(4, WIDTH, requires_grad=True))
RESULT.agree("a SiLU of 4 rows saves", by_hand=4 * WIDTH * 4, measured=rows.total)
assert tracks["and steps in backward"].peak == tracks["and in float16"].peak
print(tracks["written out"].compare(tracks["and steps in backward"]))

# %% [markdown]
# ## Exercise
#
# Pack what the *written out* network saves in float16. By hand it should be half of its 3 arrays a layer. It is not. Why?

# %% [markdown]
# ## Solution
#
# The sigmoid is saved twice, by sigmoid and by the product: one array, and two calls of `pack`, which make two copies of
# it. So it is 4 halves a layer. What is packed must be looked up by the memory that it was:
# `techniques.compressed(bits=16)` does.

# %%
naive = memory.predict(train, written_out, halves).by_category("forward ends")[Category.ACTIVATION]
once = memory.predict(train, written_out, lambda: compressed(bits=16)).by_category("forward ends")[Category.ACTIVATION]
RESULT.agree("written out, packed twice", by_hand=round((4 / 2 * LAYERS + 1 / 2) * ONE), predicted=naive)
RESULT.agree("written out, packed once", by_hand=round((3 / 2 * LAYERS + 1 / 2) * ONE), predicted=once)
first, last = (tracks[way].peak / 2**20 for way in ("written out", "and steps in backward"))
RESULT.ends(
    f"Three hooks of a few lines: {first:.1f} MiB become {last:.1f}, and of gradients {WEIGHT // 1024} KiB are there at once."
)
