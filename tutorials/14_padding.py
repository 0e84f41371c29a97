# %% [markdown]
# # 14. Sequences I: padding
#
# ## Question
#
# Sentences have different lengths, and a batch is a rectangle. How many bytes does padding need? Which kinds of batches need
# less? And which of them lower the *peak*, which must fit into memory?
#
# Source: Williams, *A Note on the Statistical Analysis of Sentence-Length as a Criterion of Literary Style*, 1940 (lengths).
#
# Source: Ott et al., *fairseq*, 2019, for batches by a budget of tokens.

# %%
import numpy as np
from lesson import Result, figure, picture

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.data.sequences import BucketBatchSampler, PadCollate, TokenBatchSampler
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import LINES
from tinygrad_mem.models.lstm import LSTMLanguageModel
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.utils.rnn import pack_padded_sequence

RESULT = Result()
V, E, H = 256, 16, 32  # tokens, width of the embedding, of the LSTM
LONGEST, BATCH, COUNT = 256, 16, 192

# %% [markdown]
# The logarithms of the lengths of sentences are nearly normal: most are short, and a few are very long. These lengths are
# drawn, in characters, and cut at a maximum. Their tokens are 0, 1, 2, ..., because memory depends on lengths alone.

# %%
tm.manual_seed(0)
LENGTHS = [min(int(length), LONGEST) for length in np.exp(4.4 + 0.7 * tm.randn(COUNT).numpy())]
SEQUENCES = [np.arange(length) for length in LENGTHS]
print(f"{COUNT} sequences, mean length {np.mean(LENGTHS):.0f}, median {np.median(LENGTHS):.0f}, longest {max(LENGTHS)}")

# %% [markdown]
# ## By hand
#
# Take a language model over characters. For each *place* in a batch, a token or padding, it keeps these numbers of 4 bytes
# each:
#
# * the LSTM's four gates, `4 H`, its input, `E`, and its output, `H`,
# * the loss's scores, `V`.
#
# So the memory is the number of places times `4 (5 H + E + V)`. The kinds of batches differ in the number of places:
#
# | batches | places |
# |---|---|
# | padded to the longest of all | sequences times the longest of all |
# | padded to the longest of the batch | the sum over batches of sequences times the longest of each |
# | buckets of similar lengths | the same sum, with batches taken from the sorted sequences |
# | a budget of places | the same; each batch has as many sequences as fit into the budget |
# | packed | tokens: there is no padding |

# %%
PLACE = 4 * (5 * H + E + V)
RESULT.say("bytes of a place", PLACE)
BUDGET = BATCH * LONGEST // 2
random = [list(range(i, i + BATCH)) for i in range(0, COUNT, BATCH)]
BATCHES = {
    "padded to the longest of all": random,
    "padded to the longest of the batch": random,
    "buckets": list(BucketBatchSampler(LENGTHS, BATCH, shuffle=False)),
    "a budget of places": list(TokenBatchSampler(LENGTHS, BUDGET, shuffle=False)),
    "packed": random,
}


def places(way: str, batch: list[int]) -> int:
    lengths = [LENGTHS[i] for i in batch]
    if way == "packed":
        return sum(lengths)
    return len(batch) * (max(LENGTHS) if way == "padded to the longest of all" else max(lengths))


COUNTS = {way: [places(way, batch) for batch in batches] for way, batches in BATCHES.items()}
tokens = sum(LENGTHS)
for way, counts in COUNTS.items():
    print(f"{way:35} {sum(counts):8,} places a pass, {1 - tokens / sum(counts):5.1%} padding, largest batch {max(counts):6,}")

# %% [markdown]
# In a pass, buckets remove nearly all padding: most batches need less time and memory. But the *peak* is that of the largest
# batch, the bucket of the longest sequences, which is as large as without buckets. A budget of places limits it.

# %%
assert sum(COUNTS["packed"]) == tokens
assert sum(COUNTS["buckets"]) < sum(COUNTS["padded to the longest of the batch"]) < sum(COUNTS["padded to the longest of all"])
assert max(COUNTS["buckets"]) == max(COUNTS["padded to the longest of all"]) == BATCH * max(LENGTHS)
assert max(COUNTS["a budget of places"]) <= BUDGET

# %% [markdown]
# ## Predicted


# %%
def step(way: str) -> None:
    """A step on the largest batch."""
    tm.manual_seed(0)
    model = LSTMLanguageModel(V, E, H)
    batch = BATCHES[way][int(np.argmax(COUNTS[way]))]
    width = max(LENGTHS) if way == "padded to the longest of all" else 1
    padded = PadCollate(padding_value=0, multiple_of=width)([SEQUENCES[i] for i in batch])
    if way == "packed":
        lengths = [LENGTHS[i] for i in batch]  # a list: known on meta too
        x = pack_padded_sequence(model.embedding(padded.tokens), lengths, batch_first=True, enforce_sorted=False)
        targets = pack_padded_sequence(padded.tokens, lengths, batch_first=True, enforce_sorted=False).data
        scores = model.head(model.lstm(x)[0].data)
        del x
    else:
        targets = padded.tokens.flatten()
        scores = model(padded.tokens).flatten(0, 1)
    loss = F.cross_entropy(scores, targets)
    del scores, targets
    memory.mark("forward ends")
    loss.backward()


def by_hand(way: str) -> int:
    """The bytes of the largest batch: its places and its tokens (int64). Packing has a second, packed copy of the tokens."""
    count = max(COUNTS[way])
    if way != "packed":
        return count * (PLACE + 8)
    batch = BATCHES[way][int(np.argmax(COUNTS[way]))]
    return count * (PLACE + 8) + 8 * len(batch) * max(LENGTHS[i] for i in batch)


predicted = {}
for way in COUNTS:
    predicted[way] = memory.predict(step, way)
    kept = predicted[way].by_category("forward ends")[Category.ACTIVATION]
    # within a hundredth: the formula leaves out the LSTM's last cells, other arrays of tokens, and rounding
    RESULT.agree(f"{way}: largest batch", by_hand=by_hand(way), predicted=kept, within=by_hand(way) / 100)

# %% [markdown]
# ## Measured

# %%
tracks = {}
for way in BATCHES:
    with memory.track() as tracks[way]:
        step(way)
    RESULT.agree(f"{way}: peak", predicted=predicted[way].peak, measured=tracks[way].peak)

# %% [markdown]
# ## Picture

# %%
chart, (left, right) = figure(columns=2, height=4.2)
left.hist(LENGTHS, bins=24, color=LINES[4])
left.set_title("Lengths", loc="left")
left.set(xlabel="length", ylabel="sequences")
for way, counts in COUNTS.items():
    right.plot(sorted(count * PLACE / 2**20 for count in counts), label=way)
right.set_title("Batches, by how they are made", loc="left")
right.set(xlabel="batches, smallest first", ylabel="kept for backward, MiB", ylim=(0, None))
right.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
picture(chart, "14_batches")
picture(tracks["padded to the longest of all"], "14_padded", "The largest batch, padded")
picture(tracks["packed"], "14_packed", "The largest batch, packed")

# %% [markdown]
# ## Mechanism
#
# Most of the bytes of a place are scores and gates:

# %%
print(tracks["padded to the longest of all"].table("op", "forward ends"))
print(tracks["padded to the longest of all"].compare(tracks["packed"]))

# %% [markdown]
# ## Exercise
#
# How many sequences of the longest length fit into 8 MiB of bytes kept for backward, and how many of half that length? What
# does that mean for the batch size?

# %% [markdown]
# ## Solution
#
# About twice as many: memory limits the number of places, not of sequences. So choose a number of places for a batch; the
# number of sequences follows from it.

# %%
fit = {length: (8 << 20) // (PLACE * length) for length in (LONGEST, LONGEST // 2)}
for length, count in fit.items():
    RESULT.say(f"sequences of {length} in 8 MiB", count, "")
    assert count * length * PLACE <= 8 << 20
RESULT.ends(
    f"A place needs {PLACE:,} bytes, for a token or for padding. Buckets need less padding in a pass, but only a budget of "
    "places, or packing, makes the largest batch smaller."
)
