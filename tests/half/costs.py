"""What mixed precision takes: VGG16 and ResNet-50 under Adam in float32, autocast, float16 with master weights, float16 alone.

Published: Hugging Face's *Model memory anatomy*: 18 bytes a parameter for Adam in mixed precision (6 for weights in both
precisions, 8 for the moments, 4 for a float32 gradient); ZeRO's paper counts 16, with float16 gradients.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory import Category
from tinygrad_mem.models.resnet import resnet50
from tinygrad_mem.models.vgg import vgg16
from tinygrad_mem.nn import functional as F

NETWORKS = {"vgg16": vgg16, "resnet50": resnet50}
BATCHES = (8, 32)
MODES = ("float32", "autocast", "masters, float32 gradients", "masters", "float16 alone")
OURS = (Category.PARAMETER, Category.MASTER_WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)


def train(network: str, batch: int, mode: str) -> None:
    """Two steps; the second has the optimizer's state from the beginning."""
    model, half = NETWORKS[network](), mode not in ("float32", "autocast")
    if half:
        model.half()
    masters = mode.startswith("masters")
    for p in model.parameters() if mode == "masters, float32 gradients" else ():
        p.grad_dtype = tm.float32
    optimizer = tm.optim.Adam(model.parameters(), master_weights=masters)
    for _ in range(2):
        optimizer.zero_grad()
        images = tm.randn(batch, 3, 224, 224, dtype=tm.float16 if half else tm.float32)
        with tm.autocast("cpu", dtype=tm.float16, enabled=mode == "autocast"):
            loss = F.cross_entropy(model(images), tm.randint(0, 1000, (batch,)))
            memory.mark("forward ends")
        loss.backward()
        del loss
        memory.mark("backward ends")
        optimizer.step()


def figures(network: str, batch: int, mode: str) -> dict[str, int]:
    """Bytes: of what a parameter keeps, at the end of backward; of activations, at the end of forward; at the peak."""
    track = memory.predict(train, network, batch, mode)
    kept, forward = track.by_category("backward ends"), track.by_category("forward ends")
    found = {category.value: kept.get(category, 0) for category in OURS}
    found["activations"] = forward.get(Category.ACTIVATION, 0)
    found["casts"] = forward.get(Category.WEIGHT_CAST, 0)
    return {**found, "peak": track.peak}


def parameters(network: str) -> list[int]:
    """How many numbers each parameter has."""
    with tm.device("meta"):
        return [p.numel() for p in NETWORKS[network]().parameters()]
