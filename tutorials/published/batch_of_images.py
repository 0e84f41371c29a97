"""A batch of images, and all that training VGG16 on it adds: where the other bytes are.

Published, in lists of memory-saving tips: a batch of shape (256, 3, 100, 100) in float32 takes 30.72 MB. The lists stop there,
and the input is not what fills a GPU. Here is what does: every byte when the forward ends, and what backward adds.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.models.vgg import vgg16
from tinygrad_mem.nn import functional as F

SHAPE = (256, 3, 100, 100)
PUBLISHED = 30_720_000


def figures() -> tuple[memory.Track, list[str]]:
    """The track of a step, and why its images and its first activation are alive when the forward ends."""
    why: list[str] = []

    def step() -> None:
        with memory.track("meta") as track:
            model = vgg16()
            images, labels = tm.randn(*SHAPE), tm.randint(0, 1000, (SHAPE[0],))
            first = model.features[:2](images)  # the first convolution and its ReLU
            pooled = model.avgpool(model.features[2:](first))
            loss = F.cross_entropy(model.classifier(tm.flatten(pooled, 1)), labels)
            why.extend(track.explain(tensor) for tensor in (images, first))
        del first, pooled
        memory.mark("forward ends")
        loss.backward()

    return memory.predict(step), why


if __name__ == "__main__":
    track, why = figures()
    print(f"published: a batch of {SHAPE} is {PUBLISHED:,} bytes. On VGG16:\n")
    print(track.table(at="forward ends"))
    print(track.table("op", at="forward ends"))
    print(track.table())
    held = sum(track.by_category("forward ends").values())
    print(f"Backward raises {held:,} bytes to {track.peak:,}, by {track.peak / held - 1:.1%}: the last layers' weights")
    print("have their gradients before the first layers' activations have gone.\n")
    print("The images:", why[0])
    print("The first activation:", why[1])
