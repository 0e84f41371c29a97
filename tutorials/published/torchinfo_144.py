"""One layer, applied a hundred times: what an estimator that counts each layer once cannot see.

Published: torchinfo's issue 144. ``Linear(1024, 1024)`` applied 100 times to a (10240, 1024) input: the estimator says
130.03 MB, PyTorch measured 4044.004 MiB, which is 4,240,445,440 bytes.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

ESTIMATED = 130_030_000
MEASURED_BY_PYTORCH = 4_240_445_440


def run() -> None:
    layer = nn.Linear(1024, 1024)
    x = tm.randn(10240, 1024)
    for _ in range(100):
        x = layer(x)
    memory.mark("forward ends")
    x.sum().backward()


def figures() -> dict[str, int]:
    """Bytes: after the forward, by formula, and at the peak of the backward that follows."""
    track = memory.predict(run)
    by_formula = 101 * 10240 * 1024 * 4 + (1024 * 1024 + 1024) * 4  # the input, a hundred outputs; weight and bias, once
    forward = sum(track.by_category("forward ends").values())
    return {"after the forward": forward, "by formula": by_formula, "at the peak": track.peak}


if __name__ == "__main__":
    found = figures()
    print(f"torchinfo's estimate      {ESTIMATED:>15,}")
    print(f"PyTorch's measurement     {MEASURED_BY_PYTORCH:>15,}")
    for name, size in found.items():
        print(f"{name:25} {size:>15,}")
    print("The estimator counts a layer once. Each of its calls makes an output, and the next call keeps it for backward.")
    more = found["at the peak"] - found["after the forward"]
    print(f"The backward adds {more:,} bytes for a moment: the weight's gradient, and that of one output.")
