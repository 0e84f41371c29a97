# %% [markdown]
# # 1. Where does the memory go?
#
# ## Question
#
# We train VGG16 on images of 224 by 224, four at a time, with SGD and momentum. How many bytes does a step need, what are they
# used for, and which of them depend on the batch?

# %%
import subprocess
import sys

from lesson import Result, block, most, picture, stacked

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory import Category
from tinygrad_mem.models.vgg import CONVOLUTIONS, vgg16, vgg16_cifar
from tinygrad_mem.nn import functional as F
from tinygrad_mem.pytorch.cards import CONTEXT

RESULT = Result()

# %% [markdown]
# ## By hand
#
# The memory of a training step has four parts. Three have the size of the model, whatever the batch:
#
# | part | bytes |
# |---|---|
# | parameters | 4 times their number `P`, in float32 |
# | gradients | `4 P`: one for each parameter |
# | optimizer state | `4 P` for SGD's momentum, `8 P` for Adam |
#
# The fourth part is the **activations**: the arrays that the forward pass keeps for the backward pass. A convolution keeps its
# input, which the gradient of its weight needs. An in-place ReLU keeps only its output, which is the next layer's input. Max
# pooling keeps the positions of its maxima: one byte for each number of its output. So each convolution's output counts once.
# Each pooling layer's output counts once, as the input of the next layer, and a quarter more for the positions.
#
# The pool rounds each block up to a multiple of 512 bytes; the function `block` does the same here.


# %%
def parameters_by_hand(linears: list[tuple[int, int]]) -> int:
    """Bytes of VGG16's parameters: 3 x 3 convolutions, then linear layers."""
    total, channels = 0, 3
    for width in (width for stage in CONVOLUTIONS[16] for width in stage):
        total += block(4 * channels * width * 9) + block(4 * width)  # weight, bias
        channels = width
    return total + sum(block(4 * i * o) + block(4 * o) for i, o in linears)


def activations_by_hand(batch: int, side: int) -> int:
    """Bytes that the convolutional part keeps for backward, without the images."""
    total = 0
    for stage in CONVOLUTIONS[16]:
        total += sum(block(4 * batch * width * side**2) for width in stage)
        side //= 2  # max pooling
        numbers = batch * stage[-1] * side**2
        total += block(4 * numbers) + block(numbers)  # what the next layer keeps, and the places of the maxima
    return total


LARGE = [(25088, 4096), (4096, 4096), (4096, 1000)]
P, images = parameters_by_hand(LARGE), block(4 * 4 * 3 * 224**2)
A = activations_by_hand(4, 224)
print(f"parameters {P:,}, gradients {P:,}, momentum {P:,}, activations {A:,}, images {images:,}")
print(f"together   {3 * P + A + images:,} bytes")

# %% [markdown]
# ## Predicted
#
# `memory.predict` runs the training script on `meta`: every op asks the same pool for the same bytes, and computes nothing.
# So VGG16 can be predicted on any machine.


# %%
def train(make, batch: int, side: int, classes: int) -> None:
    tm.manual_seed(0)
    model = make()
    optimizer = tm.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):  # momentum is there from the end of the first step on
        optimizer.zero_grad()
        x, y = tm.randn(batch, 3, side, side), tm.randint(0, classes, (batch,))
        loss = F.cross_entropy(model(x), y)
        memory.mark("forward ends")
        loss.backward()
        memory.mark("backward ends")
        optimizer.step()


large = memory.predict(train, vgg16, 4, 224, 1000)
kept = large.by_category("forward ends")
RESULT.agree("parameters", by_hand=P, predicted=kept[Category.PARAMETER])
RESULT.agree("momentum", by_hand=P, predicted=kept[Category.OPTIMIZER_STATE])
last = [b for b in large.live("forward ends") if b.category == Category.ACTIVATION]
head = sum(b.rounded for b in last if "features" not in b.module and "avgpool" not in b.module)  # avgpool's output is 7 x 7 too
RESULT.agree("activations of the convolutions", by_hand=A, predicted=kept[Category.ACTIVATION] - head)
RESULT.say("activations of the linear layers and of the loss", head)
RESULT.say("peak", large.peak)
RESULT.say("peak / sum by hand", round(large.peak / (3 * P + A + images), 4), "")
print(large.table())

# %% [markdown]
# Our count of parameters, gradients, momentum and the convolutions' activations was exact. The peak is a little more than these
# four parts. At that moment a kernel also has its workspace, and a gradient is on its way from one layer to the one before;
# some activations have already been freed.
#
# ## Measured
#
# The same network for images of 32 by 32 has one small linear layer, and is small enough to run here. Prediction and
# measurement must be equal, to the byte.

# %%
with memory.track() as small:
    train(vgg16_cifar, 8, 32, 10)
again = memory.predict(train, vgg16_cifar, 8, 32, 10)
RESULT.agree("small: peak", predicted=again.peak, measured=small.peak)
RESULT.agree(
    "small: parameters",
    by_hand=parameters_by_hand([(512, 10)]),
    predicted=again.by_category("forward ends")[Category.PARAMETER],
    measured=small.by_category("forward ends")[Category.PARAMETER],
)

# %% [markdown]
# ## Picture

# %%
picture(small, "01_step", "VGG16 for 32 x 32, batch 8: the model is made, then two steps")

# %% [markdown]
# ## Mechanism
#
# Why are the images, a weight and the first activation alive? The tracker explains:

# %%
with tm.device("meta"), memory.track("meta") as track:
    model, x = vgg16(), tm.randn(4, 3, 224, 224)
    first = model.features[:2](x)
    loss = F.cross_entropy(model.classifier(model.avgpool(model.features[2:](first)).flatten(1)), tm.zeros(4, dtype=tm.int64))
    for tensor in (x, model.features[2].weight, first):
        print(track.explain(tensor))

# %% [markdown]
# Only the activations of a layer depend on the batch:

# %%
print(large.table("module", "forward ends", rows=8))
batches = {f"batch {n}": memory.predict(train, vgg16, n, 224, 1000).by_category() for n in (4, 16, 64)}
picture(stacked(batches, "VGG16 at 224 x 224: the peak of a step"), "01_batches")
four, sixteen = (activations_by_hand(n, 224) for n in (4, 16))
assert sixteen == 4 * four

# %% [markdown]
# The parts that have the model's size stay the same. The activations grow with the batch, and for large batches they are
# nearly everything.
#
# ### Do intermediate results double in backward?
#
# Many guides say so, because each activation has a gradient of the same size. But backward frees memory as it goes. When the
# gradient of a layer's input is computed, the gradient of its output and what the layer kept are freed. Only the gradients of
# parameters stay. If intermediate results doubled, backward would add these gradients and all activations once more:


# %%
def growth(batch: int) -> int:
    """Bytes in use at most in the second backward, less those before it."""
    track = memory.predict(train, vgg16, batch, 224, 1000)
    before = [mark for mark in track.marks if mark.text == "forward ends"][-1]
    return most(track, "forward ends", "backward ends") - sum(track.by_category(before).values())


for batch in (4, 16, 64):
    doubled = P + activations_by_hand(batch, 224)
    print(f"batch {batch:2}: backward adds {growth(batch):,} bytes; gradients have {P:,}; doubled, it would add {doubled:,}")
RESULT.say("backward adds, with 64 images", growth(64))

# %% [markdown]
# ### Does the framework itself need memory?
#
# Yes, and no pool counts it: the interpreter, NumPy, BLAS's buffers, a scratch of 2 MiB for each thread of our kernels, and
# Python's objects. How much it is depends on the machine. Linux tells a process how much it has:

# %%
PROGRAM = """
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
sizes = [resident()]
import numpy
sizes.append(resident())
import tinygrad_mem as tm
sizes.append(resident())
model = tm.nn.Sequential(*[tm.nn.Linear(1, 1, device="meta") for _ in range(1000)])
sizes.append(resident())
print(*[f"{b - a:.0f}" for a, b in zip([0, *sizes], sizes)])
"""
if sys.platform == "linux":
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    names = ("the interpreter", "NumPy", "tinygrad_mem", "Python's objects of 1,000 layers")
    print(", ".join(f"{name} {size} MiB" for name, size in zip(names, ran.stdout.split(), strict=True)))

# %% [markdown]
# On CUDA the context and the libraries are added to these, and `nvidia-smi` shows them too. In ten reports (named in
# `tinygrad_mem/pytorch/cards.py`) their size was:

# %%
print(f"{CONTEXT[0] >> 20} to {CONTEXT[1] >> 20} MiB")

# %% [markdown]
# ## Exercise
#
# From which batch size on do the activations of VGG16's convolutions need more than parameters, gradients and momentum
# together? Compute it by hand first: activations are linear in the batch.

# %% [markdown]
# ## Solution

# %%
images = 3 * P // activations_by_hand(1, 224) + 1
assert activations_by_hand(images - 1, 224) <= 3 * P < activations_by_hand(images, 224)
RESULT.say("activations are more than the rest from", images, "images on")
RESULT.ends(f"VGG16's step on four images takes {large.peak:,} bytes, {3 * P / large.peak:.0%} of them whatever the batch.")
