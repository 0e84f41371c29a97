"""ZeRO's stages: a rank of 64 trains 7.5 billion parameters in mixed precision under Adam, predicted by running it on ``meta``.

Published: Rajbhandari et al., *ZeRO: Memory optimizations toward training trillion parameter models*, 2020, figure 1: for
7.5 billion parameters on 64 devices 120, 31.4, 16.6 and 1.9 GB (10^9 bytes). A float16 parameter and its gradient take 2 bytes
each, Adam's state and the float32 copy 12. The formula counts what is there between steps. A step needs more: see the peak.
"""

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer

RANKS, LAYERS, WIDTHS = 64, 128, (9536, 6144)  # rows that 64 divides; 2 layers a rank
PARAMETERS = LAYERS * WIDTHS[0] * WIDTHS[1]
PUBLISHED = {"none": 120.0, "optimizer state": 31.4, "and gradients": 16.6, "and parameters": 1.9}
COUNTED = {  # where the run holds what the paper counts
    "none": "backward ends",
    "optimizer state": "backward ends",
    "and gradients": "forward ends",  # a shard of the parameters, as large as one of the gradients, lies beside all of them
    "and parameters": "backward ends",
}


def train(divided: str) -> None:
    """Two steps of one token; the second has the optimizer's state from the beginning."""
    dist.init_process_group()
    layers = []
    for i in range(LAYERS):
        layers.append(nn.Linear(WIDTHS[i % 2], WIDTHS[1 - i % 2], bias=False, dtype=tm.float16))
        if divided.startswith("and"):  # at once, so that no rank ever has all layers
            fully_shard(layers[-1], reshard_after_forward=divided == "and parameters")
    model = called = nn.Sequential(*layers)
    if divided.startswith("and"):
        fully_shard(model)
    else:
        called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    options = {"lr": 1e-4, "master_weights": True}
    if divided == "optimizer state":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam, **options)
    else:
        optimizer = tm.optim.Adam(model.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        loss = called(tm.zeros(1, WIDTHS[0], dtype=tm.float16)).sum()
        memory.mark("forward ends")
        loss.backward()
        del loss
        memory.mark("backward ends")
        optimizer.step()


def figures(divided: str) -> dict[str, int]:
    """Bytes of a rank: of what the paper counts; at the peak; and of the peak, by category."""
    track = memory.predict(train, divided, world_size=RANKS)
    left_out = (memory.Category.ACTIVATION, memory.Category.INPUT, memory.Category.TEMPORARY)
    counted = track.by_category(COUNTED[divided])
    at_peak = track.by_category()
    found = {"counted": sum(size for category, size in counted.items() if category not in left_out), "peak": track.peak}
    return found | {category.value: size for category, size in at_peak.items()}


if __name__ == "__main__":
    print(f"{PARAMETERS:,} parameters on {RANKS} ranks; GB (10^9 bytes) of one rank")
    print(f"{'divided':16}{'published':>10}{'counted':>9}{'peak':>9}   at the peak")
    for name, published in PUBLISHED.items():
        found = figures(name)
        parts = [f"{size / 1e9:.2f} {what}" for what, size in found.items() if what not in ("counted", "peak") and size > 1e7]
        print(f"{name:16}{published:10.1f}{found['counted'] / 1e9:9.2f}{found['peak'] / 1e9:9.2f}   {', '.join(parts)}")
    print("The formula leaves out what a step holds for a moment: gradients beside their buckets, layers that are gathered,")
    print("whole gradients on their way to the ranks that keep them, and activations, which ZeRO does not divide.")
