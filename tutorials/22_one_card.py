# %% [markdown]
# # 22. A model of eight billion parameters on a card of 24 GB
#
# ## Question
#
# Llama 3.1 has 8 billion parameters. In float32 with AdamW, weights, gradients and moments take 16 bytes a parameter: 128 GB
# before the first token. Can it be trained on one card of 24 GB? And on its longest sequence, 131,072 tokens, whose activations
# alone take more than that? Which techniques are needed, how many bytes does each save, and at what price?
#
# Source: Dettmers et al., *QLoRA*, 2023; Bekman et al., *Arctic long sequence training*, 2025.

# %%
import contextlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import lesson
import numpy as np
from lesson import Result, block, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory, scope
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import COLOURS, LINES
from tinygrad_mem.models.configuration import Configuration, configuration
from tinygrad_mem.models.llama import LanguageModel, llama
from tinygrad_mem.models.published import published
from tinygrad_mem.pytorch.cards import CONTEXT, card_of
from tinygrad_mem.recompute import checkpoint_blocks
from tinygrad_mem.techniques import checkpoints_on_cpu, lora, quantize_frozen

RESULT = Result()
MODEL = published("llama-3.1-8b")
SHORT, TOKENS, RANK, TILE = 512, 131072, 16, 32768
CARD = card_of("RTX 4090").bytes - CONTEXT[1]  # what CUDA leaves for arrays

# %% [markdown]
# The program makes the model, applies some techniques to it, and trains for a step. An optimizer makes its moments in its
# first step: here in one before it, with gradients that are zeros. In a limited pool the step comes twice, because the second
# one finds the pieces that the first one has left.


# %%
def make(config: Configuration, dtype: Any = tm.float32, nf4: bool = False, thin: int = 0) -> LanguageModel:
    tm.set_default_dtype(dtype)
    try:
        model = llama(config)
    finally:
        tm.set_default_dtype(tm.float32)
    if nf4:
        quantize_frozen(model)
    return lora(model, thin, dtype=dtype) if thin else model  # type: ignore[return-value]


def train(
    config: Configuration,
    tokens: int,
    rule: Any = tm.optim.AdamW,
    recompute: bool = False,
    tile: int | None = None,
    host: bool = False,
    room: int = 0,
    **how: Any,
) -> list[tm.Tensor]:
    """A step on one sequence, or two in a pool of ``room`` bytes at most; the loss of the last, and what was trained."""
    with memory.limit(room) if room else contextlib.nullcontext():
        tm.manual_seed(0)
        model = make(config, **how)
        if recompute:
            checkpoint_blocks(model, "every-block")
        model.in_tiles(tile)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = rule(trained)
        for p in trained:
            p.grad = tm.zeros_like(p)
        optimizer.step()
        x = tm.randint(0, config.vocab_size, (1, tokens))
        for _ in range(2 if room else 1):
            optimizer.zero_grad()
            with checkpoints_on_cpu(pin_memory=True) if host else contextlib.nullcontext():
                loss = model.loss(x, x)
            memory.mark("forward ends")
            loss.backward()
            memory.mark("backward ends")
            memory.mark(f"{x.device.pool.host().peak_used}")
            optimizer.step()
        return [loss, *trained]


STEPS: dict[str, dict[str, Any]] = {
    "float32, AdamW": {},
    "bfloat16": {"dtype": tm.bfloat16},
    "moments in 8 bits": {"rule": tm.optim.AdamW8bit},
    "LoRA": {"thin": RANK},
    "131,072 tokens": {"tokens": TOKENS},
    "every block recomputed": {"recompute": True},
    "frozen weights in NF4": {"nf4": True},
    "MLP and loss in tiles": {"tile": TILE},
    "inputs of blocks on the host": {"host": True},
}


def ladder() -> dict[str, dict[str, Any]]:
    """Each technique with all those before it. The first four are on 512 tokens, and with them the model fits."""
    found, so_far = {}, {"tokens": SHORT}
    for name, change in STEPS.items():
        so_far = found[name] = so_far | change
    return found


# %% [markdown]
# ## By hand
#
# **Parameters.** A block has the matrices of query and output (width by width), key and value (width by the width of the key
# heads), and gate, up and down (width by the width inside the MLP). Embedding and output layer are separate here.
#
# **What a block keeps for each token**, in numbers: its input; the normed input; query, key, value (query and key rotated);
# attention's result; its sum with the input; the normed sum; gate, up, the activated gate, and their product. Also a float32
# for each norm and for each head; and, once, the beginning and the end of the sequence.
#
# **What the techniques save:**
#
# * bfloat16: 2 bytes a number, also for AdamW's moments.
# * Moments in 8 bits: 2 bytes a parameter, and a little for their scales.
# * LoRA: gradients and moments only for thin matrices, r (in + out) numbers for each matrix.
# * Recompute: a block keeps only its input; the inside of one block exists at a time.
# * NF4: half a byte a weight, and a byte for the scale of each 64 weights.
# * Tiles: logits, their gradient and the inside of an MLP exist for some tokens at a time. The loss keeps its input, not the
#   logits.
# * Offload: the inputs of the blocks, which recomputing keeps, lie on the host.

# %%
WIDTH, INNER, BLOCKS, WORDS = MODEL.hidden_size, MODEL.intermediate_size, MODEL.num_hidden_layers, MODEL.vocab_size
HEADS, KEYS = MODEL.num_attention_heads, MODEL.num_key_value_heads * MODEL.head_dim
MATRICES = ((WIDTH, WIDTH), (WIDTH, KEYS), (WIDTH, KEYS), (WIDTH, WIDTH), (WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH))
WEIGHTS = sum(a * b for a, b in MATRICES)  # of a block, but for its two norms
COUNT = BLOCKS * (WEIGHTS + 2 * WIDTH) + 2 * WORDS * WIDTH + WIDTH
THIN = BLOCKS * RANK * sum(a + b for a, b in MATRICES)


def kept_by_a_block(size: int, tokens: int) -> int:
    """Bytes, with numbers of ``size`` bytes."""
    return tokens * (size * (6 * WIDTH + 2 * KEYS + 4 * INNER) + 4 * (2 + HEADS)) + 2 * 512


def nf4(weights: int) -> int:
    scales = -(-weights // 64)
    return sum(map(block, (weights // 2, scales, 4 * -(-scales // 256), 4)))


INPUT = 2 * TOKENS * WIDTH  # of a block
LOGITS = 2 * TOKENS * WORDS
TABLES = 2 * 2 * TOKENS * MODEL.head_dim // 2  # cosines and sines of rotated positions, which all blocks share
print(f"16 bytes a parameter: {16 * COUNT:,}; the card: {CARD:,}")
for tokens in (SHORT, TOKENS):
    print(f"all blocks keep, of {tokens:,} tokens in bfloat16: {BLOCKS * kept_by_a_block(2, tokens):,}")

# %% [markdown]
# ## Predicted
#
# On 512 tokens the step fits after three techniques. Then come all 131,072 tokens. If a step fits, it is predicted again in a
# pool with only the bytes that the card has beside CUDA's context: free bytes are not enough, there must be pieces large
# enough.

# %%
FITS = ("LoRA", "inputs of blocks on the host")
tracks = {name: memory.predict(train, MODEL, room=CARD if name in FITS else 0, **how) for name, how in ladder().items()}
for name, track in tracks.items():
    RESULT.say(f"{name}: peak", track.peak)


def at(name: str, mark: str, category: Category) -> int:
    return tracks[name].by_category(mark).get(category, 0)


def on_the_host(name: str) -> int:
    return int(tracks[name].marks[-1].text)


# %% [markdown]
# Each technique saves what we computed, to the byte. Blocks are rounded up to 512 bytes, which matters only for small ones.

# %%
plain, half, eight, thin, long, again, nf, tiles, last = tracks
STATES = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
by_hand = {plain: (4 + 4 + 8) * COUNT, half: (2 + 2 + 4) * COUNT, eight: (2 + 2 + 2) * COUNT}
by_hand[thin] = 2 * COUNT + (2 + 2 + 2) * THIN
for name, size in by_hand.items():
    states = sum(at(name, "backward ends", each) for each in STATES)
    near = size // 200 if name in (eight, thin) else 0  # scales of moments in 8 bits
    RESULT.agree(f"{name}: weights, gradients, moments", by_hand=size, predicted=states, within=near)
for name, size, tokens in ((plain, 4, SHORT), (half, 2, SHORT), (half, 2, TOKENS)):
    fewer, less = (MODEL.shrunk(n) for n in (1, 2)), ladder()[name]
    less["tokens"] = tokens
    one, two = (memory.predict(train, each, **less).by_category("forward ends")[Category.ACTIVATION] for each in fewer)
    by_one = kept_by_a_block(size, tokens)
    RESULT.agree(f"{name}: kept by a block of {tokens:,} tokens", by_hand=by_one, predicted=two - one)
RESULT.agree(f"{thin}: gradients", by_hand=2 * THIN, predicted=at(thin, "backward ends", Category.GRADIENT))
kept = {name: at(name, "forward ends", Category.ACTIVATION) for name in tracks}
OUTPUT = INPUT + 2 * 4 * TOKENS + 512  # the last norm's input and a number a token; of the loss a number a token, and a number
RESULT.agree(f"{again}: kept", by_hand=BLOCKS * INPUT + TABLES + OUTPUT + LOGITS, predicted=kept[again])
frozen = BLOCKS * (sum(nf4(a * b) for a, b in MATRICES) + 2 * 2 * WIDTH) + 2 * (2 * WORDS * WIDTH + WIDTH)
RESULT.agree(f"{nf}: weights", by_hand=frozen + 2 * THIN, predicted=at(nf, "backward ends", Category.PARAMETER))
RESULT.agree(f"{tiles}: kept less", by_hand=LOGITS - INPUT, predicted=kept[nf] - kept[tiles])
RESULT.agree(f"{last}: kept less", by_hand=BLOCKS * INPUT + TABLES, predicted=kept[tiles] - kept[last])
RESULT.agree(f"{last}: on the host", by_hand=BLOCKS * INPUT + TABLES, predicted=on_the_host(last))

# %% [markdown]
# **What it costs.** LoRA trains half a percent of the parameters. The other prices are rounding, which is measured below, and
# time. We count time as multiplications in the blocks' matrix products, on two blocks without NF4, which multiplies as often.
# A plain step costs three forwards: the forward, the gradients of inputs, and the gradients of weights. LoRA saves the third,
# because frozen weights have no gradients. Recomputing adds half of the rest. If a block is recomputed and its MLP is in tiles,
# the MLP runs once more, except for the last tile.


# %%
class Products(scope.Listener):
    """Counts the multiplications of linear layers in each phase."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        if node.op.__name__ == "Linear":
            self.found[scope.local.phase] += prod(arrays[0].shape) * arrays[1].shape[0]


def products(**how: Any) -> Counter[str]:
    counts = Products()

    def run() -> None:
        with scope.listening(counts):
            train(MODEL.shrunk(2), **how)

    memory.predict(run)
    return counts.found


MLP = 2 * TOKENS * (3 * WIDTH * INNER + RANK * 3 * (WIDTH + INNER))  # of two blocks
ALL = 2 * TOKENS * (WEIGHTS + THIN // BLOCKS)
RESULT.say(f"{thin}: share of the parameters that is trained", round(THIN / COUNT, 4), "")
for name in (again, tiles):
    how = {key: value for key, value in ladder()[name].items() if key != "nf4"}
    expected = ALL + (MLP * (TOKENS // TILE - 1) // (TOKENS // TILE) if name == tiles else 0)
    found = products(**how)["recompute"]
    RESULT.agree(f"{name}: multiplied again", unit="multiplications", by_hand=expected, predicted=found, within=ALL // 100)
    RESULT.say(f"{name}: multiplications, relative to a step without", round(1 + found / (2 * ALL), 2), "")
RESULT.say(f"{last}: copied in a step, there and back", 2 * on_the_host(last))
print(f"At 25 GB a second that is {2 * on_the_host(last) / 25e9:.1f} seconds, which pinned memory hides in part.")

# %% [markdown]
# ## Measured
#
# The same program runs on a small model of the same family. With each technique it needs the predicted bytes. Recomputing and
# offload change no bit of the result; tiles change the order of sums; bfloat16, 8 bits and NF4 change the numbers. Its
# sequences have 64 tokens instead of 512, and 256 instead of 131,072.

# %%
SMALL = configuration(
    {
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 256,
    }
)  # fmt: skip
ends: dict[str, list[np.ndarray]] = {}
for name, how in ladder().items():
    how |= {"thin": 4} if "thin" in how else {}
    how |= {"tile": 64} if "tile" in how else {}
    how["tokens"] //= 512 if how["tokens"] == TOKENS else 8  # 256, and 64
    said = memory.predict(train, SMALL, **how)
    with memory.track() as track:
        ends[name] = [each.detach().float().cpu().numpy().copy() for each in train(SMALL, **how)]
    RESULT.agree(f"small, {name}: peak", predicted=said.peak, measured=track.peak)
for a, b in ((long, again), (tiles, last)):
    same = all((x == y).all() for x, y in zip(ends[a], ends[b], strict=True))
    RESULT.agree(f"{b}: the same trained numbers as before, bit for bit", unit="", by_hand=1, measured=int(same))
print(f"loss: {', '.join(f'{float(end[0]):.4f} ({name})' for name, end in ends.items())}")

# %% [markdown]
# What does rounding cost a model that learns? We train the small model on a text, the source of `lesson.py`, in float32, in
# bfloat16, and with moments in 8 bits. Then we round the blocks of the float32 model to NF4. Each loss is measured in float32,
# and is the mean over three initializations, because two runs also differ by chance.

# %%
TEXT = np.frombuffer(Path(lesson.__file__).read_bytes(), np.uint8).astype(np.int64)
TRAINED, UNSEEN = TEXT[: len(TEXT) * 4 // 5], TEXT[len(TEXT) * 4 // 5 :]


PLAIN = {name: ladder()[name] for name in (plain, half, eight)}


def learned(seed: int, dtype: Any = tm.float32, rule: Any = tm.optim.AdamW) -> LanguageModel:
    """The small model, with one block, after 20 steps; then in float32."""
    tm.manual_seed(seed)
    model = make(SMALL.shrunk(1), dtype)
    optimizer, rng = rule(model.parameters(), lr=1e-2), np.random.default_rng(seed)
    for _ in range(20):
        starts = rng.integers(0, len(TRAINED) - 65, 4)
        batch = tm.tensor(np.stack([TRAINED[i : i + 65] for i in starts]))
        optimizer.zero_grad()
        model.loss(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
    return model.float()


def unseen(models: list[LanguageModel]) -> float:
    rows = tm.tensor(UNSEEN[: len(UNSEEN) // 65 * 65].reshape(-1, 65))
    with tm.no_grad():
        return float(np.mean([model.loss(rows[:, :-1], rows[:, 1:]).item() for model in models]))


models = {
    name: [learned(seed, how.get("dtype", tm.float32), how.get("rule", tm.optim.AdamW)) for seed in range(3)]
    for name, how in PLAIN.items()
}
model = models[plain][0]
weights = {n: p.detach().numpy().copy() for n, p in model.named_parameters() if "proj" in n}
losses = {name: unseen(each) for name, each in models.items()}
losses[nf] = unseen([quantize_frozen(each) for each in models[plain]])  # type: ignore[misc]
for name, loss in losses.items():
    RESULT.say(f"{name}: loss on unseen text", round(loss, 4), "")
off, size = 0.0, 0.0
for name, whole in weights.items():
    rounded: Any = model.get_submodule(name.removesuffix(".weight"))
    off += ((rounded.dequantized().numpy() - whole) ** 2).sum()
    size += (whole**2).sum()
RESULT.say("NF4: error of rounding, relative to the weights", round(float(np.sqrt(off / size)), 4), "")
print(f"If nothing was learned, the loss is {np.log(256):.4f}.")
assert max(losses.values()) - min(losses.values()) < 0.1 < np.log(256) - max(losses.values()) - 1

# %% [markdown]
# ## Picture

# %%
chart, (left, right) = figure(2, height=4.2)
names = list(tracks)
peaks = [tracks[name].peak / 1e9 for name in names]
left.plot(peaks, names, "o", color=LINES[4])  # points: the length of a bar says nothing on a scale of powers
for name, peak in zip(names, peaks, strict=True):
    side = "left" if peak > CARD / 1e9 else "right"  # the line would cross a number on its other side
    left.annotate(f"  {peak:,.1f}  ", (peak, name), va="center", ha=side, fontsize=8)
left.axvline(CARD / 1e9, color="black", linewidth=1)
left.set_title("The peak, technique by technique", loc="left")
left.set(xscale="log", xlim=(10, 3000), xlabel="peak, GB (1000³); the line is the card")
left.invert_yaxis()
start = np.zeros(4)
for category in (Category.PARAMETER, Category.ACTIVATION, Category.TEMPORARY):  # what the others have is too thin to be seen
    sizes = np.array([tracks[name].by_category().get(category, 0) / 1e9 for name in names[-4:]])
    right.bar(range(4), sizes, bottom=start, color=COLOURS[category], label=category.value)
    start += sizes
right.axhline(CARD / 1e9, color="black", linewidth=1)
right.set_title("The last four, by category", loc="left")
right.set(ylabel="GB", xticks=range(4), xticklabels=["recomputed", "NF4", "tiles", "host"])
right.legend(frameon=False, fontsize=8)
picture(chart, "22_one_card")

# %% [markdown]
# ## Mechanism
#
# What is left at the peak: the weights; everything that the block in backward kept, with one tile of its MLP's inside; the
# input of one block, and that of the next, which is being copied.

# %%
print(tracks[last].table("op", rows=8))
RESULT.say("left at the peak: parameters", tracks[last].by_category()[Category.PARAMETER])
RESULT.say("left on the card", CARD - tracks[last].peak)

# %% [markdown]
# ## Exercise
#
# Often 8,192 tokens are enough. Which of the techniques are needed then? Try to leave out NF4: among the last four it is the
# only one that changes the model.

# %% [markdown]
# ## Solution
#
# All activations are 16 times smaller. With LoRA, 16-bit weights and recomputed blocks the step fits the card.

# %%
MANY = 8192
shorter: dict[str, Any] = {"recompute": True, "thin": RANK, "dtype": tm.bfloat16, "rule": tm.optim.AdamW8bit}
RESULT.say(f"{MANY:,} tokens: peak", memory.predict(train, MODEL, MANY, room=CARD, **shorter).peak)
RESULT.ends(
    f"A step on {SHORT} tokens takes {tracks[plain].peak / 1e9:.0f} GB in float32, and {tracks[thin].peak / 1e9:.1f} with "
    f"three techniques; on {TOKENS:,} it takes {tracks[long].peak / 1e9:.0f}, and {tracks[last].peak / 1e9:.1f} with four more."
)
