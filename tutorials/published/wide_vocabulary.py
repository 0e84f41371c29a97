"""The logits of a wide vocabulary, before any model.

Published: cut cross-entropy's readme: 8,192 tokens and a vocabulary of 256,000 make 4,000 MiB of logits in bfloat16;
their gradient is as much again.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.nn import functional as F

TOKENS, VOCABULARY, WIDTH = 8192, 256_000, 64
MIB = 1 << 20


def run() -> None:
    hidden = tm.randn(TOKENS, WIDTH, dtype=tm.bfloat16, requires_grad=True)
    weight = tm.randn(VOCABULARY, WIDTH, dtype=tm.bfloat16, requires_grad=True)
    logits = F.linear(hidden, weight)
    memory.mark("logits")
    loss = F.cross_entropy(logits, tm.randint(0, VOCABULARY, (TOKENS,)))
    memory.mark("loss")
    loss.backward()


def figures() -> dict[str, int]:
    """Bytes of the logits, and at the peak of the step."""
    track = memory.predict(run)
    logits = max(block.requested for block in track.live("logits"))
    return {"logits": logits, "by formula": TOKENS * VOCABULARY * 2, "peak of the step": track.peak}


if __name__ == "__main__":
    for name, size in figures().items():
        print(f"{name:18} {size:>15,} bytes {size / MIB:10,.1f} MiB")
    print("Published: 4,000 MiB. The step needs them twice: the logits that cross-entropy keeps, and their gradient.")
