# %% [markdown]
# # 7. Half precision III: autocast
#
# ## Question
#
# `autocast` keeps the model in float32 and computes some functions in float16. For that it makes copies. Of which tensors, how
# many, and when are they freed? How many bytes do float32, autocast, float16 with masters and float16 alone need, and which has
# the lowest *peak*?

# %%
from lesson import DEVICE, Result, block, figure, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.nn import functional as F

RESULT = Result()
WIDTH, LAYERS = 256, 4
MODES = ("float32", "autocast", "masters", "float16 alone")

# %% [markdown]
# ## By hand
#
# Take L layers of `Linear` and `ReLU` of width W, a batch of B, and Adam. Under autocast a linear layer runs in float16: its
# input, weight and bias are copied to float16, if there is no copy yet. The copy of a weight is made once per region, and freed
# at the region's end unless backward needs it. The first layer's input needs no gradient, so the copy of its weight is freed.
#
# | bytes | float32 | autocast | masters | float16 alone |
# |---|---|---|---|---|
# | parameters, masters and moments, for each parameter | 4 + 8 | 4 + 8 | 2 + 4 + 8 | 2 + 4 |
# | copies of weights, in the region | | `2 L (W W + W)` | | |
# | copies of weights, after it | | `2 (L - 1) W W` | | |
# | activations | `4 L B W` | `2 L B W + 2 B W` | `2 L B W` | `2 L B W` |
#
# The `2 B W` are the float16 copy of the input: the first layer keeps it, and the script keeps the original.


# %%
def by_hand(mode: str, batch: int) -> dict[Category, int]:
    """The bytes in use after the forward pass."""
    weight, master, moment = {"masters": (2, 4, 4), "float16 alone": (2, 0, 2)}.get(mode, (4, 0, 4))
    activation = block((4 if mode == "float32" else 2) * batch * WIDTH)
    sizes = [WIDTH * WIDTH, WIDTH] * LAYERS
    return {
        Category.PARAMETER: sum(block(weight * size) for size in sizes),
        Category.MASTER_WEIGHT: sum(block(master * size) for size in sizes),
        Category.OPTIMIZER_STATE: 2 * sum(block(moment * size) for size in sizes),
        Category.WEIGHT_CAST: (LAYERS - 1) * block(2 * WIDTH * WIDTH) if mode == "autocast" else 0,
        Category.ACTIVATION: (LAYERS + (mode == "autocast")) * activation,
    }


# %% [markdown]
# ## Predicted


# %%
def train(mode: str, batch: int) -> None:
    """Two steps of Adam in each mode."""
    tm.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    dtype = tm.float32 if mode in ("float32", "autocast") else tm.float16
    options = {"master_weights": True} if mode == "masters" else {}
    model = nn.Sequential(*layers).to(dtype)
    for p in model.parameters() if mode == "masters" else ():
        p.grad_dtype = tm.float32  # unscaled in float32, for the masters
    optimizer = tm.optim.Adam(model.parameters(), **options)
    scaler = tm.amp.GradScaler(DEVICE, enabled=mode in ("autocast", "masters"))
    for _ in range(2):
        optimizer.zero_grad()
        x = tm.randn(batch, WIDTH, dtype=dtype)
        with tm.autocast(DEVICE, dtype=tm.float16, enabled=mode == "autocast"):
            y = model(x)
            memory.mark("in the region")
        memory.mark("forward ends")
        loss = y[:, 0].float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        del y, loss


BATCH = 512
predicted = {mode: memory.predict(train, mode, BATCH) for mode in MODES}

# %% [markdown]
# ## Measured

# %%
tracks = {}
for mode in MODES:
    with memory.track() as tracks[mode]:
        train(mode, BATCH)
    foreseen, found = predicted[mode].by_category("forward ends"), tracks[mode].by_category("forward ends")
    for category, hand in by_hand(mode, BATCH).items():
        now = found.get(category, 0)
        RESULT.agree(f"{mode}: {category.value}", by_hand=hand, predicted=foreseen.get(category, 0), measured=now)
    RESULT.agree(f"{mode}: peak", predicted=predicted[mode].peak, measured=tracks[mode].peak)
inside = [track.by_category("in the region")[Category.WEIGHT_CAST] for track in (predicted["autocast"], tracks["autocast"])]
casts = LAYERS * (block(2 * WIDTH * WIDTH) + block(2 * WIDTH))
RESULT.agree("copies of weights in the region", by_hand=casts, predicted=inside[0], measured=inside[1])

# %% [markdown]
# Which function runs in which dtype? Products run in float16, functions that need a large range or long sums in float32, all
# others in the dtype of their inputs:

# %%
with tm.autocast(DEVICE, dtype=tm.float16):
    x, weight = tm.ones(2, 3), tm.ones(3, 3)
    product = x @ weight
    results = {
        "x @ weight": product,
        "F.relu(x @ weight)": F.relu(product),
        "x + (x @ weight)": x + product,
        "F.softmax(x @ weight)": F.softmax(product, 1),
        "F.mse_loss(x @ weight, x)": F.mse_loss(product, x),
    }
for name, result in results.items():
    print(f"{name:27} {result.dtype}")
assert product.dtype == tm.float16
assert results["F.mse_loss(x @ weight, x)"].dtype == tm.float32

# %% [markdown]
# ## Picture

# %%
batches = {512: predicted} | {batch: {mode: memory.predict(train, mode, batch) for mode in MODES} for batch in (64, 2048, 4096)}
at_peak = {f"{mode}, batch {batch}": batches[batch][mode].by_category() for batch in (64, 4096) for mode in MODES}
picture(stacked(at_peak, "At the peak, under Adam"), "07_peaks")
drawn, axes = figure(height=3.4)
for mode, style in zip(MODES, ("o-", "s--", "^-.", "x:"), strict=True):
    axes.plot(sorted(batches), [batches[batch][mode].peak / 2**20 for batch in sorted(batches)], style, label=mode)
axes.set(xlabel="batch", ylabel="peak, MiB", xlim=(0, None), ylim=(0, None))
axes.legend(frameon=False)
picture(drawn, "07_batches", "The peak of a step, by the batch")
for batch in (64, 4096):
    peaks = {mode: track.peak for mode, track in batches[batch].items()}
    RESULT.update({f"{mode}, batch {batch}: peak": peak for mode, peak in peaks.items()})
    changes = {mode: peaks[mode] / peaks["float32"] - 1 for mode in MODES[1:]}
    assert changes["float16 alone"] < changes["masters"]
    assert (changes["autocast"] < 0) == (batch == 4096)
    assert changes["autocast"] > RESULT["autocast: activations"] / RESULT["float32: activations"] - 1
    print(f"batch {batch:4}: against float32 " + ", ".join(f"{mode} {change:+.0%}" for mode, change in changes.items()))

# %% [markdown]
# A small batch needs *more* memory with autocast than without, because copies of weights are added to the weights. A large
# batch needs less, because most of its memory is activations. The peak falls by less than the activations do.
#
# ## Mechanism
#
# The copies, and the ops that keep them after the region:

# %%
for one in tracks["autocast"].live("forward ends"):
    if one.category is Category.WEIGHT_CAST:
        keepers = ", ".join(f"{holder.op} in {holder.module} as {holder.note!r}" for holder in one.holders if holder.op)
        print(f"{one.owner}, {one.requested:,} bytes: {keepers}")
print(tracks["float32"].compare(tracks["autocast"]))

# %% [markdown]
# ## Exercise
#
# Use the table above: from which batch size on does autocast keep less than float32 after the forward pass, if copies of
# weights are counted?

# %% [markdown]
# ## Solution
#
# `2 L B W + 2 B W + 2 (L - 1) W W < 4 L B W` means `2 (L - 1) W W < 2 (L - 1) B W`: the batch must be larger than the width,
# for any number of layers.


# %%
def kept(mode: str, batch: int) -> int:
    """Bytes of activations and of copies of weights."""
    now = memory.predict(train, mode, batch).by_category("forward ends")
    return now[Category.ACTIVATION] + now.get(Category.WEIGHT_CAST, 0)


amounts = {batch: (kept("float32", batch), kept("autocast", batch)) for batch in (WIDTH - 1, WIDTH, WIDTH + 1)}
for batch, (plain, cast) in amounts.items():
    print(f"batch {batch}: float32 {plain:,}, autocast {cast:,} bytes")
    assert (cast < plain) == (batch > WIDTH)
RESULT.agree("at a batch of the width", by_hand=amounts[WIDTH][0], predicted=amounts[WIDTH][1])
ends = {mode: f"{tracks[mode].peak:,}" for mode in MODES}
RESULT.ends(f"The peak at a batch of {BATCH}: " + ", ".join(f"{mode} {peak}" for mode, peak in ends.items()) + " bytes.")
