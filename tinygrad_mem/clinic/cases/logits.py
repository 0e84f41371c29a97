"""The spike of the logits."""

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.nn import functional as F

from ..case import Case, Finding, Program, Run

TOKENS, WIDTH, VOCABULARY = 4096, 1024, 151_936


def whole() -> None:
    head = nn.Linear(1024, 151936, bias=False)
    hidden = tm.empty(4096, 1024, requires_grad=True)
    targets = tm.zeros(4096, 1, dtype=tm.int64)
    logits = head(hidden)
    loss = -F.log_softmax(logits, -1).gather(1, targets).mean()
    loss.backward()


def in_tiles() -> None:
    head = nn.Linear(1024, 151936, bias=False)
    hidden = tm.empty(4096, 1024, requires_grad=True)
    targets = tm.zeros(4096, dtype=tm.int64)
    tiled = nn.LinearCrossEntropyOptions(batch_chunk_size=256)
    weight = head.weight
    loss = F.linear_cross_entropy(hidden, weight, targets, options=tiled)
    loss.backward()


def explain(before: Run) -> Finding:
    logits = 4 * TOKENS * VOCABULARY
    rest = 4 * VOCABULARY * WIDTH + 4 * TOKENS * WIDTH + 8 * TOKENS + 2 * 512
    return Finding(
        cause=f"The logits of all tokens are one tensor of {logits:,} bytes. Their log-probabilities are a second one, which "
        f"backward needs, and the gradient is a third, while the name logits still holds the first.",
        fix=f"Compute the loss in tiles of tokens: linear_cross_entropy makes the logits of 256 tokens at a time, "
        f"{4 * 256 * VOCABULARY:,} bytes, and again in backward.",
        what="the peak",
        formula="3 x 4 x 4,096 x 151,936; the head, 4 x 151,936 x 1,024; its input, 4 x 4,096 x 1,024; "
        "the targets, 8 x 4,096; the loss and its gradient, 512 each",
        by_formula=3 * logits + rest,
        measured=before.peak,
    )


CASE = Case(
    question="The model's own weights and activations fit easily. At the end of the forward memory jumps by gigabytes for a "
    "moment, and that is where it fails. What is so large?",
    choices=(
        "A score for each word of the vocabulary and each token, three times.",
        "The weights of the output layer, copied for backward.",
        "The optimizer's state.",
    ),
    right=0,
    before=Program(whole),
    after=Program(in_tiles),
    explain=explain,
    thread="huggingface/trl/pull/2799",
    reports="log_softmax, then gather, made a tensor of batch x length x vocabulary, more than 2 GB for modest sizes.",
)
