# %% [markdown]
# # 19. Your own PyTorch program, from out of memory to a step that fits
#
# ## Question
#
# A training script ends with `torch.OutOfMemoryError`. What used the memory? What would help, and at what cost? Does the step
# fit then? All of this can be answered without a GPU. This lesson needs PyTorch (`pip install torch`).
#
# Source: PyTorch's documentation, `torch.utils.checkpoint` and "Automatic Mixed Precision package".

# %%
import importlib.util
import sys
from functools import partial

from lesson import Result, picture, stacked

from tinygrad_mem import pytorch
from tinygrad_mem.memory import Category

RESULT = Result()
MIB = 1 << 20
if importlib.util.find_spec("torch") is None:
    sys.exit("This lesson needs PyTorch, which is not installed: pip install torch")

import torch  # noqa: E402 (a sentence comes before it)
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

# %% [markdown]
# The program: a small language model, written as usual. It names its device, makes its own data, and takes two steps.

# %%
WORDS, WIDE, LAYERS, HEADS, TOKENS, BATCH = 4096, 256, 2, 4, 256, 8


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDE), nn.Linear(WIDE, WORDS, bias=False)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(device: str = "cuda", sequences: int = BATCH) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = SmallLanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        ids = torch.randint(0, WORDS, (sequences, TOKENS), device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
    return model, optimizer


# %% [markdown]
# ## By hand
#
# A layer has two norms, each with weight and bias, and matrices with as many numbers as 12 of `WIDE` by `WIDE`. AdamW keeps two
# numbers for each parameter, and backward adds a gradient. The head makes `WORDS` numbers (logits) for each token.

# %%
parameters = 4 * (2 * WORDS * WIDE + LAYERS * (12 * WIDE * WIDE + 4 * WIDE))
logits = 4 * BATCH * TOKENS * WORDS

# %% [markdown]
# ## Predicted
#
# If the card has 180 MiB for it, the program gets the same error as on a GPU. Without a limit, the prediction says how much the
# program needs, and for what.

# %%
CARD = 180 * MIB
failed = pytorch.predict(train, capacity=CARD)
print(failed.out_of_memory)
RESULT.agree("the program fits", by_hand=0, predicted=int(failed.fits), unit="")
plain = pytorch.predict(train)
has = plain.by_category()
RESULT.say("peak", plain.peak)
RESULT.say("reserved", plain.peak_reserved)
RESULT.agree("parameters", by_hand=parameters, predicted=has[Category.PARAMETER])
RESULT.agree("states of AdamW", by_hand=2 * parameters, predicted=has[Category.OPTIMIZER_STATE])
largest = max(event.requested for event in plain.log)
RESULT.agree("the largest block", by_hand=logits, predicted=largest)

# %% [markdown]
# `pytorch.advise` says what would help. Each row is a prediction of the program with one change, made without editing it.

# %%
advice = pytorch.advise(train, capacity=CARD)
print(advice.table(128))
for row in advice.rows:
    RESULT.say(f"{row.name}: reserved", row.peak_reserved)

# %% [markdown]
# ## Measured
#
# Now the program really runs, on the CPU, with one sequence. What it holds at the end does not depend on the batch.

# %%
model, optimizer = train("cpu", 1)
held = sum(p.nbytes for p in model.parameters())
states = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim())
RESULT.agree("parameters, held", predicted=has[Category.PARAMETER], measured=held)
RESULT.agree("states, held", predicted=has[Category.OPTIMIZER_STATE], measured=states)

# %% [markdown]
# We write two of the changes into the program: each layer is recomputed in backward, and forward and loss run in autocast.


# %%
def fitting(device: str = "cuda", sequences: int = BATCH) -> None:
    model = SmallLanguageModel().to(device)
    for b in model.layers:
        b.forward = partial(checkpoint, b.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        ids = torch.randint(0, WORDS, (sequences, TOKENS), device=device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()


fits = pytorch.predict(fitting, capacity=CARD)
RESULT.agree("the changed program fits", by_hand=1, predicted=int(fits.fits), unit="")
RESULT.say("changed: peak", fits.peak)
fitting("cpu", 1)  # it is a program that runs

# %% [markdown]
# ## Picture

# %%
picture(stacked({"as it is": has, "changed": fits.by_category()}), "19_fits", "The peak, before and after")

# %% [markdown]
# ## Mechanism
#
# Checkpointing drops what layers save for backward, and autocast halves much of the rest. Neither touches what AdamW holds.

# %%
after = fits.by_category()
for category in (Category.ACTIVATION, Category.OPTIMIZER_STATE):
    RESULT.say(f"{category.value}: as it is", has.get(category, 0))
    RESULT.say(f"{category.value}: changed", after.get(category, 0))

# %% [markdown]
# ## Exercise
#
# Does one of the two changes alone fit?

# %% [markdown]
# ## Solution

# %%
alone = [row.fits for row in advice.rows if row.name in ("checkpoint all of layers", "autocast bfloat16")]
RESULT.agree("changes that fit alone", by_hand=0, predicted=sum(map(bool, alone)), unit="")
RESULT.ends(
    f"The step needs {plain.peak / MIB:.0f} MiB and does not fit a card of {CARD // MIB}; checkpointed and in autocast it "
    f"needs {fits.peak / MIB:.0f}, and fits."
)
