# %% [markdown]
# # 17. Your own op and your own technique
#
# ## Question
#
# All techniques are built from three parts: an op that declares what it saves, a hook on saved tensors, and a hook on
# gradients. How do you write each of them, and does the tracker show that it works?
#
# Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023, for the
# hook on gradients.

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
# The network has linear layers, each followed by SiLU, `x * sigmoid(x)`. Written like that, the product keeps both factors; the
# sigmoid keeps its result, which is one of them; and the next layer keeps the product: 3 arrays per layer.
#
# * *An op of our own* keeps only x and computes the sigmoid again in backward: 2 arrays per layer.
# * *A hook on saved tensors* keeps these in float16: half the bytes, as much as 1 array per layer. It also packs the network's
#   input, which its caller keeps as well: half an array too much.
# * *A hook on gradients* updates a parameter as soon as its gradient is complete, and frees the gradient: one gradient exists
#   at a time.


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
    """The float16 form of an activation. Parameters (alive in any case) and integers are returned as they are."""
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
    """Two steps of plain gradient descent. Returns the parameters after them."""
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
    return [p.detach().cpu().numpy().copy() for p in net.parameters()] if not x.is_meta else []


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
# The numbers: the op's gradient differs by rounding only; float16 has 11 bits; and stepping in backward changes no bit.


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
# In the list of saved tensors, our function has one row, under its own name. Stepping in backward has not lowered this
# network's peak, because that is at the beginning of backward, where no gradient exists yet. It lowers a peak at the end of
# backward, as with large weights (lesson 11).

# %%
memory.print_saved(SiLU.apply, tm.ones(4, WIDTH, requires_grad=True))
rows = memory.saved(SiLU.apply, tm.ones(4, WIDTH, requires_grad=True))
RESULT.agree("a SiLU of 4 rows saves", by_hand=4 * WIDTH * 4, measured=rows.total)
assert tracks["and steps in backward"].peak == tracks["and in float16"].peak
print(tracks["written out"].compare(tracks["and steps in backward"]))

# %% [markdown]
# ## Exercise
#
# Use the float16 hook with the *written out* network. It should keep half of 3 arrays per layer, but it keeps more. Why?

# %% [markdown]
# ## Solution
#
# The sigmoid is saved twice, by the sigmoid and by the product. It is one array, but two calls of `pack` make two copies of it,
# so there are 4 halves per layer. A hook must check whether it has already packed the same memory.
# `techniques.compressed(bits=16)` does that.

# %%
naive = memory.predict(train, written_out, halves).by_category("forward ends")[Category.ACTIVATION]
once = memory.predict(train, written_out, lambda: compressed(bits=16)).by_category("forward ends")[Category.ACTIVATION]
RESULT.agree("written out, packed twice", by_hand=round((4 / 2 * LAYERS + 1 / 2) * ONE), predicted=naive)
RESULT.agree("written out, packed once", by_hand=round((3 / 2 * LAYERS + 1 / 2) * ONE), predicted=once)
first, last = (tracks[way].peak / 2**20 for way in ("written out", "and steps in backward"))
RESULT.ends(
    f"An op and two hooks of a few lines: {first:.1f} MiB become {last:.1f}, and gradients take {WEIGHT // 1024} KiB at a time."
)
