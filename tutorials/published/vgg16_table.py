"""VGG16, layer by layer, as a widely used course's notes print it, and what training it keeps.

Published: CS231n, *Convolutional neural networks*: for one image the numbers (not bytes) of every layer's output and its
weights without biases; "total memory: 24M * 4 bytes ~= 93MB / image (only forward)", "total params: 138M parameters".
"""

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory.accounting import account, watch
from tinygrad_mem.models.vgg import vgg16

# what the notes say: (layer here, numbers in its output, weights)
TABLE = [
    ("features.0", 224 * 224 * 64, 1_728), ("features.2", 224 * 224 * 64, 36_864), ("features.4", 112 * 112 * 64, 0),
    ("features.5", 112 * 112 * 128, 73_728), ("features.7", 112 * 112 * 128, 147_456), ("features.9", 56 * 56 * 128, 0),
    ("features.10", 56 * 56 * 256, 294_912), ("features.12", 56 * 56 * 256, 589_824), ("features.14", 56 * 56 * 256, 589_824),
    ("features.16", 28 * 28 * 256, 0), ("features.17", 28 * 28 * 512, 1_179_648), ("features.19", 28 * 28 * 512, 2_359_296),
    ("features.21", 28 * 28 * 512, 2_359_296), ("features.23", 14 * 14 * 512, 0), ("features.24", 14 * 14 * 512, 2_359_296),
    ("features.26", 14 * 14 * 512, 2_359_296), ("features.28", 14 * 14 * 512, 2_359_296), ("features.30", 7 * 7 * 512, 0),
    ("classifier.0", 4_096, 102_760_448), ("classifier.3", 4_096, 16_777_216), ("classifier.6", 1_000, 4_096_000),
]  # fmt: skip


def figures() -> list[tuple[str, int, int, int, int]]:
    """(layer, numbers of the output, weights, biases, bytes kept for backward) of each row of the table."""
    layers, biases = [], {}

    def run() -> None:
        model = vgg16()
        biases.update({name: module.bias.numel() for name, module in model.named_modules() if hasattr(module, "bias")})
        layers.extend(watch(model))
        out = model(tm.randn(1, 3, 224, 224))
        memory.mark("forward ends")
        out.sum().backward()

    track = memory.predict(run)
    found = {layer.name: layer for layer in account(track, layers, "forward ends")}
    rows = []
    for name, _, _ in TABLE:
        layer, numbers = found[name], 1
        for n in found[name].output:
            numbers *= n
        bias = biases.get(name, 0)
        rows.append((name, numbers, layer.parameters - bias, bias, layer.kept))
    return rows


if __name__ == "__main__":
    print(f"{'layer':14}{'numbers':>12}{'notes':>12}{'weights':>14}{'notes':>14}{'kept, bytes':>14}")
    rows = figures()
    for (name, numbers, weights, _, kept), (_, their_numbers, their_weights) in zip(rows, TABLE, strict=True):
        print(f"{name:14}{numbers:12,}{their_numbers:12,}{weights:14,}{their_weights:14,}{kept:14,}")
    total, weights, biases = (sum(row[i] for row in rows) for i in (1, 2, 3))
    print(f"{'together':14}{total:12,}{'24M':>12}{weights:14,}{'138M':>14}{sum(row[4] for row in rows):14,}")
    numbers = total + 3 * 224 * 224
    print(f"Every row agrees. With the image they add up to {numbers:,} numbers, not to the notes' 24M: {4 * numbers:,} bytes.")
    print(f"With the {biases:,} biases, which the notes leave out, there are {weights + biases:,} parameters.")
