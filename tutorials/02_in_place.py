# %% [markdown]
# # 2. In place
#
# ## Question
#
# `nn.ReLU(inplace=True)` and `x += y` write their result over their input. Does that save bytes kept for backward, temporary
# bytes, or none? And when is it an error?

# %%
from lesson import Result, block, most, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F

RESULT = Result()
LAYERS, WIDTH, BATCH = 8, 256, 1024
ONE = block(4 * BATCH * WIDTH)  # one activation

# %% [markdown]
# ## By hand
#
# Take layers of `Linear` and `ReLU`. A linear layer keeps its input. A ReLU keeps its *output*, whose sign determines the
# gradient. So one array per layer is kept, `4 * BATCH * WIDTH` bytes, which the ReLU and the next linear layer share. The
# output of the linear layer is not kept: without in-place it is alive while the ReLU runs, and then freed.
#
# - kept after the forward pass: one array per layer, in place or not;
# - the peak of the forward pass: one more array without in-place, no more with it.


# %%
def forward(activation: type[nn.Module], inplace: bool, grad: bool = True) -> None:
    tm.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), activation(inplace=inplace))]
    model, x = nn.Sequential(*layers), tm.randn(BATCH, WIDTH)
    memory.mark("begin")
    y = model(x)
    memory.mark("forward ends")
    y.sum().backward()


def grown(track: memory.Track) -> tuple[int, int, int]:
    """What the forward pass added: at its end, at most, and what the whole step added at most."""
    before = sum(track.by_category("begin").values())
    kept = sum(track.by_category("forward ends").values()) - before
    return kept, most(track, "begin", "forward ends") - before, track.peak - before


# %% [markdown]
# ## Predicted

# %%
KEPT, MOST = LAYERS * ONE, {False: (LAYERS + 1) * ONE, True: LAYERS * ONE}
predicted = {inplace: grown(memory.predict(forward, nn.ReLU, inplace)) for inplace in (False, True)}

# %% [markdown]
# ## Measured
#
# `compare` prints what changes between two tracks: the peak; *saved*, the most bytes that are kept for backward; *temporary*,
# the most bytes of temporaries and workspaces; and the ops and parameters whose bytes at the two peaks differ.

# %%
tracks = {}
for inplace in (False, True):
    with memory.track() as tracks[inplace]:
        forward(nn.ReLU, inplace)
    name, measured = "in place" if inplace else "plain", grown(tracks[inplace])
    RESULT.agree(f"{name}: kept", by_hand=KEPT, predicted=predicted[inplace][0], measured=measured[0])
    RESULT.agree(f"{name}: most in forward", by_hand=MOST[inplace], predicted=predicted[inplace][1], measured=measured[1])
    RESULT.agree(f"{name}: most in the step", predicted=predicted[inplace][2], measured=measured[2])
print(tracks[False].compare(tracks[True]))

# %% [markdown]
# In-place ReLU saves temporary bytes. It saves no bytes that are kept, and nothing at the peak of this step, which is in
# backward. It helps if the peak is in the forward pass: without gradients, while something else holds the input. An example is
# a residual block, whose input is added to its output: `x`, `out` and their sum are three arrays, in place two.


# %%
class Residual(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.layer, self.inplace = nn.Linear(WIDTH, WIDTH), inplace

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        out = self.layer(x)
        if self.inplace:
            out += x
        else:
            out = out + x
        return F.relu(out, inplace=self.inplace)


def inference(inplace: bool) -> None:
    model, x = nn.Sequential(*[Residual(inplace) for _ in range(LAYERS)]), tm.randn(BATCH, WIDTH)
    with tm.no_grad():
        memory.mark("begin")
        model(x)
        memory.mark("forward ends")


for inplace, arrays in ((False, 3), (True, 2)):
    with memory.track() as track:
        inference(inplace)
    name, foreseen = f"residual {'in place' if inplace else 'plain'}", grown(memory.predict(inference, inplace))[1]
    RESULT.agree(f"{name}: most in forward", by_hand=arrays * ONE, predicted=foreseen, measured=grown(track)[1])

# %% [markdown]
# This does not work for every activation. SiLU's gradient needs its input, so an in-place SiLU must first copy its input. Then
# `inplace=True` changes nothing: two arrays per layer are kept.

# %%
for inplace in (False, True):
    kept = grown(memory.predict(forward, nn.SiLU, inplace))[0]
    RESULT.agree(f"SiLU, inplace={inplace}: kept", by_hand=2 * LAYERS * ONE, predicted=kept)

# %% [markdown]
# ## Picture

# %%
picture(tracks[True], "02_in_place", "8 x (Linear, in-place ReLU): forward, backward")
at_end = {name: tracks[name == "in place"].by_category("forward ends") for name in ("plain", "in place")}
silu = memory.predict(forward, nn.SiLU, True).by_category("forward ends")
picture(stacked({**at_end, "SiLU, in place": silu}, "After the forward pass"), "02_kept")

# %% [markdown]
# ## Mechanism
#
# What each op keeps: ReLU its `y`, SiLU its `x`.

# %%
with tm.device("meta"):
    x = tm.randn(BATCH, WIDTH)
    for activation in (nn.ReLU, nn.SiLU):
        memory.print_saved(nn.Sequential(nn.Linear(WIDTH, WIDTH), activation(inplace=True), nn.Linear(WIDTH, WIDTH)), x)

# %% [markdown]
# What if a write overwrites an array that is kept for backward? Every storage counts the writes to it and to its views. An op
# that keeps a tensor also keeps this count, and backward compares the two. If they differ, it raises an error instead of
# computing a wrong gradient:


# %%
def attempt(function, name: str) -> bool:
    """True if backward works; if not, the error is printed."""
    x = tm.ones(3, requires_grad=True)
    try:
        function(x).sum().backward()
    except RuntimeError as error:
        print(f"{name}: {error}\n")
        return False
    print(f"{name}: the gradient is {x.grad.tolist()}\n")
    return True


def write_to_a_view(x: tm.Tensor) -> tm.Tensor:
    y = x.exp()
    y[0] += 1
    return y


attempt(lambda x: (x * 2).add_(1), "a product keeps its factors; add_ writes over its result")
attempt(lambda x: x.exp().add_(1), "exp keeps its result; add_ writes over it")
attempt(write_to_a_view, "a view of what exp keeps is written")
attempt(lambda x: x.add_(1), "a leaf, whose values only the optimizer should change")

# %% [markdown]
# ## Exercise
#
# After which of `exp`, `sin`, `tanh`, `sqrt`, `square`, `relu` and `neg` may `add_(1)` follow? Guess first from the
# derivative: is it computed from the input or from the output?

# %% [markdown]
# ## Solution
#
# If the derivative is computed from the output (`exp`, `tanh`, `sqrt`, `relu`), the output is kept and must not be overwritten.
# The others keep their input, or nothing.

# %%
NAMES = ("exp", "sin", "tanh", "sqrt", "square", "relu", "neg")
allowed = [name for name in NAMES if attempt(lambda x, f=name: getattr(x, f)().add_(1), name)]
assert allowed == ["sin", "square", "neg"]
RESULT.say("may be written over", len(allowed), f"of {len(NAMES)}")
saved = (RESULT["plain: most in forward"] - RESULT["in place: most in forward"]) // ONE
kept = (RESULT["plain: kept"] - RESULT["in place: kept"]) // ONE
at_peak = (RESULT["plain: most in the step"] - RESULT["in place: most in the step"]) // ONE
RESULT.ends(
    f"In-place ReLU saves {saved} array of the {LAYERS + 1} in forward, {kept} of those that are kept, {at_peak} at the peak."
)
