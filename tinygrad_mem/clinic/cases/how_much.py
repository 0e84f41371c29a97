"""The bytes of a fine-tuning, by hand."""

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory import Category
from tinygrad_mem.models.gpt import gpt
from tinygrad_mem.nn import functional as F

from ..case import Case, Finding, Program, Run

LAYERS, WIDTH, VOCABULARY, CONTEXT = 48, 1600, 50257, 1024
PARAMETERS = VOCABULARY * WIDTH + CONTEXT * WIDTH + LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + 2 * WIDTH
ODD = 7 * LAYERS + 3  # tensors that end in the middle of a block of 512 bytes


def float32() -> None:
    model = gpt("gpt2-xl")
    rule = tm.optim.AdamW(model.parameters())
    tokens = tm.zeros(1, 1024, dtype=tm.int64)
    for _ in range(2):
        logits = model(tokens).flatten(0, 1)
        F.cross_entropy(logits, tokens.flatten()).backward()
        rule.step()
        memory.mark("step ends")
        rule.zero_grad()


def eight_bits() -> None:
    model = gpt("gpt2-xl")
    rule = tm.optim.AdamW8bit(model.parameters())
    tokens = tm.zeros(1, 1024, dtype=tm.int64)
    for _ in range(2):
        logits = model(tokens).flatten(0, 1)
        F.cross_entropy(logits, tokens.flatten()).backward()
        rule.step()
        memory.mark("step ends")
        rule.zero_grad()


def explain(before: Run) -> Finding:
    return Finding(
        cause="The file has the weights alone. Training with Adam has them four times: weights, gradients and two moments, "
        f"4 bytes each. Of {PARAMETERS:,} parameters these are {16 * PARAMETERS:,} bytes. Activations come on top: the step "
        f"peaks at {before.peak:,}.",
        fix=f"Moments of 8 bits take 2 bytes a parameter instead of 8. Weights and gradients in float32 still take "
        f"{8 * PARAMETERS:,} bytes, whatever the batch. Ask before you rent: memory.predict runs the step on shapes alone.",
        what="weights, gradients and moments when the step ends",
        formula=f"16 x {PARAMETERS:,}, and 4 x 256 for each of {ODD} tensors that are rounded up to a multiple of 512",
        by_formula=16 * PARAMETERS + 4 * 256 * ODD,
        measured=before.at("step ends", Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE),
    )


CASE = Case(
    question="The file of GPT-2 XL has 6.5 GB, my card 11 GB, and a batch of one text is out of memory. How much do I need to "
    "fine-tune it?",
    choices=(
        "About twice the file: weights and gradients.",
        "About the file and the activations of one text.",
        "About four times the file, before any activation.",
    ),
    right=2,
    before=Program(float32),
    after=Program(eight_bits),
    explain=explain,
    thread="huggingface/transformers/issues/1750",
    reports="6.5 GB of parameters and a batch of one did not fit on a card of 11 GB.",
)
