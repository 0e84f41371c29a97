# %% [markdown]
# # 15. Sequences II: long ones, and large vocabularies
#
# ## Question
#
# Two tensors of a language model become larger than all others: the scores of attention, tokens times tokens, and the scores of
# the vocabulary, tokens times vocabulary. Must they be kept? Must they exist at all?
#
# Source: Dao, *FlashAttention-2*, 2023; Wijmans et al., *Cut your losses in large-vocabulary language models*, 2024.

# %%
import numpy as np
from lesson import DEVICE, Result, figure, picture, samples, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.models.gpt import GPT, CausalSelfAttention
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import select_labelled

RESULT = Result()
N, HEADS, WIDTH, T, V, LAYERS = 2, 4, 64, 256, samples(8192), 2
EACH = WIDTH // HEADS  # numbers of a head

# %% [markdown]
# ## By hand
#
# **Attention.** Softmax keeps its result: N heads T T numbers. In tiles this is not necessary: backward needs
# only the softmax's denominator, one number for each row. So the output and the denominators are kept: N heads T (E + 1)
# numbers, where E is the width of a head. This is linear in T.
#
# **The loss.** The scores of the vocabulary are N T V numbers, which the loss keeps, and their gradient is as large.
#
# * *Select first*: a loss of few positions needs only the scores of these positions.
# * *In tiles*: the scores of a tile of rows and classes are computed, summed up and freed. Backward computes them again. Only 4
#   bytes per row are kept.


# %%
def attention_by_hand(tokens: int, tiles: bool) -> int:
    return 4 * N * HEADS * tokens * (EACH + 1 if tiles else tokens)


SCORES = 4 * N * T * V
print(f"attention: scores {attention_by_hand(T, False):,}, in tiles {attention_by_hand(T, True):,}; vocabulary: {SCORES:,}")

# %% [markdown]
# ## Predicted


# %%
def with_scores(q: tm.Tensor, k: tm.Tensor, v: tm.Tensor) -> tm.Tensor:
    """Causal attention as in textbooks."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # N, heads, T, T
    later = tm.ones(scores.shape[-2:], dtype=tm.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -1e9).softmax(-1) @ v


def in_tiles(q: tm.Tensor, k: tm.Tensor, v: tm.Tensor) -> tm.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend(attention, tokens: int, n: int = N, heads: int = HEADS, each: int = EACH) -> None:
    q, k, v = (tm.randn(n, heads, tokens, each, requires_grad=True) for _ in range(3))
    out = attention(q, k, v)
    memory.mark("forward ends")
    out.sum().backward()


for tokens in (128, 256, 512):
    for attention, tiles in ((with_scores, False), (in_tiles, True)):
        kept = memory.predict(attend, attention, tokens).by_category("forward ends")[Category.ACTIVATION]
        if not tiles:
            kept -= 4 * N * HEADS * tokens * EACH  # the scaled queries, which the product keeps
        name = f"attention {'in tiles' if tiles else 'with scores'}, {tokens} tokens: kept"
        RESULT.agree(name, by_hand=attention_by_hand(tokens, tiles), predicted=kept)

# %% [markdown]
# Now a whole small GPT: with the textbook's attention or with tiles, and with three ways to compute its loss.


# %%
class Textbook(CausalSelfAttention):
    """The model's attention, with all scores in memory."""

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        return self.c_proj(with_scores(q, k, v).transpose(1, 2).contiguous().view(n, t, width))


def gpt(tiles: bool, context: int) -> GPT:
    tm.manual_seed(0)
    model = GPT(LAYERS, HEADS, WIDTH, context, V)
    for block in model.transformer.h if not tiles else ():
        block.attn.__class__ = Textbook
    return model


def body(model: GPT, tokens: tm.Tensor) -> tm.Tensor:
    """The model without its last layer: (N, T, width)."""
    head, model.lm_head = model.lm_head, nn.Identity()
    try:
        return model(tokens)
    finally:
        model.lm_head = head


TILE = nn.LinearCrossEntropyOptions(batch_chunk_size=128, class_chunk_size=1024)
CHOSEN = np.sort(np.random.default_rng(0).permutation(N * T)[: N * T * 15 // 100])  # positions that have a label


def loss_of(model: GPT, way: str, tokens: tm.Tensor, labels: tm.Tensor) -> tm.Tensor:
    if way == "all scores":
        return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    hidden, weight = body(model, tokens), model.lm_head.weight
    if way == "selected":
        rows, labels = select_labelled(hidden, labels, positions=tm.tensor(CHOSEN))
        return F.cross_entropy(F.linear(rows, weight), labels)
    return F.linear_cross_entropy(hidden.flatten(0, 1), weight, labels.flatten(), options=TILE)


def step(tiles: bool, way: str, length: int = T) -> tuple[float, np.ndarray]:
    model = gpt(tiles, length)
    tokens, labels = (tm.randint(0, V, (N, length)) for _ in range(2))
    if way == "selected" or way == "all scores, few labels":
        way = way.partition(",")[0]
        few = tm.zeros(N * length, dtype=tm.bool)
        few[tm.tensor(CHOSEN)] = True
        labels = tm.where(few.view(N, length), labels, -100)
    loss = loss_of(model, way, tokens, labels)
    memory.mark("forward ends")
    loss.backward()
    return loss.detach().item(), model.transformer.h[0].mlp.c_fc.weight.grad


RUNS = {
    "textbook": (False, "all scores"),
    "attention in tiles": (True, "all scores"),
    "and labels selected": (True, "selected"),
    "and the loss in tiles": (True, "in tiles"),
}
predicted = {name: memory.predict(step, *how) for name, how in RUNS.items()}
for name, track in predicted.items():
    RESULT.say(f"{name}: predicted peak", track.peak)
kept = {name: track.by_category("forward ends")[Category.ACTIVATION] for name, track in predicted.items()}
saved = kept["textbook"] - kept["attention in tiles"]
one = 4 * N * T * WIDTH  # an array of the body
by_hand = LAYERS * (attention_by_hand(T, False) - attention_by_hand(T, True))
# the textbook keeps its mask, its scaled queries, and a copy of each head's values too
RESULT.agree("attention in tiles keeps less", by_hand=by_hand, predicted=saved, within=4 * LAYERS * one)
RESULT.agree(
    "the loss in tiles keeps less",
    by_hand=SCORES,
    predicted=kept["attention in tiles"] - kept["and the loss in tiles"],
    within=8 * N * T + 1024,  # the numbers that it keeps for each row
)

# %% [markdown]
# ## Measured

# %%
tracks, values = {}, {}
for name, how in RUNS.items():
    with memory.track() as tracks[name]:
        loss, grad = step(*how)
        values[name] = loss, grad.cpu().numpy().copy()
        del grad
    RESULT.agree(f"{name}: peak", predicted=predicted[name].peak, measured=tracks[name].peak)

# %% [markdown]
# The numbers are the same up to the rounding of sums. Losses and gradients are compared with the textbook's. The run with few
# labels is compared with a run that computes all scores and ignores the other labels.

# %%
few = step(True, "all scores, few labels")
values["few labels, all scores"] = few[0], few[1].cpu().numpy().copy()
for name, other in (
    ("attention in tiles", "textbook"),
    ("and the loss in tiles", "textbook"),
    ("and labels selected", "few labels, all scores"),
):
    (a, ga), (b, gb) = values[name], values[other]
    apart = np.abs(ga - gb).max() / np.abs(gb).max()
    print(f"{name}: loss {a:.6f}, {other}: {b:.6f}; gradients differ by {apart:.1e} of the largest")
    np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(ga, gb, atol=1e-4 * np.abs(gb).max())

# %% [markdown]
# ## Picture

# %%
picture(stacked({name: track.by_category() for name, track in tracks.items()}, "A small GPT: the peak of a step"), "15_peaks")
LENGTHS = (128, 256, 512, 1024)
chart, axes = figure(height=3.4)
curves = {}
for name in ("textbook", "and the loss in tiles"):
    curves[name] = [memory.predict(step, *RUNS[name], length).peak / 2**20 for length in LENGTHS]
    axes.plot(LENGTHS, curves[name], "o-", label=name if name == "textbook" else "all in tiles")
axes.set(xlabel="tokens", ylabel="peak, MiB", ylim=(0, None), xticks=LENGTHS)
axes.legend(frameon=False)
picture(chart, "15_lengths", "The peak of a step, by the tokens of a sequence")
for name, peaks in curves.items():
    RESULT.say(f"{name}: {LENGTHS[3]} tokens over {LENGTHS[2]}", round(peaks[3] / peaks[2], 2), "times")

# %% [markdown]
# On the CPU a tile is small, and a step on twice as many tokens needs less than twice the memory. On cuda a tile of attention's
# scores may have 64 MiB, into which all scores of these lengths fit. They are freed when the op ends, and not kept, but they
# are part of the peak.
#
# ## Mechanism

# %%
if DEVICE == "cpu":
    assert RESULT["and the loss in tiles: 1024 tokens over 512"] < 2
else:
    assert tracks["attention in tiles"].peak < tracks["textbook"].peak
print(tracks["textbook"].table("op", "forward ends", rows=6))
print(tracks["attention in tiles"].compare(tracks["and the loss in tiles"]))

# %% [markdown]
# ## Exercise
#
# The smallest GPT-2 has 12 layers of 12 heads of width 64, and 1,024 tokens. How many bytes of scores would the textbook's
# attention keep for one sequence, and how many does attention in tiles keep?

# %% [markdown]
# ## Solution

# %%
heads, width, tokens = 12, 64, 1024
textbook = 12 * 4 * heads * tokens * tokens
lean = 12 * 4 * heads * tokens * (width + 1)
found = [
    12 * memory.predict(attend, way, tokens, 1, heads, width).by_category("forward ends")[Category.ACTIVATION]
    for way in (with_scores, in_tiles)
]
RESULT.agree("GPT-2: scores kept", by_hand=textbook, predicted=found[0] - 12 * 4 * heads * tokens * width)
RESULT.agree("GPT-2: kept in tiles", by_hand=lean, predicted=found[1])
RESULT.ends(
    f"A step on {T} tokens: {tracks['textbook'].peak / 2**20:.1f} MiB with the textbook's attention, with attention in tiles "
    f"{tracks['attention in tiles'].peak / 2**20:.1f}, with the loss in tiles too "
    f"{tracks['and the loss in tiles'].peak / 2**20:.1f}."
)
