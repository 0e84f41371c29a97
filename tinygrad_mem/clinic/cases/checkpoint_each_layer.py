"""Checkpoints around layers that keep nothing but their input."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.utils.checkpoint import checkpoint

from ..case import Case, Finding, Program, Run, run

LAYERS, ROWS, WIDTH = 64, 16384, 256


def no_checkpoints() -> None:
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(64))
    x = tm.empty(16384, 256, requires_grad=True)
    for layer in layers:
        x = layer(x)
    memory.mark("forward ends")
    x.sum().backward()


def each_layer() -> None:
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(64))
    x = tm.empty(16384, 256, requires_grad=True)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    memory.mark("forward ends")
    x.sum().backward()


def each_eight() -> None:
    layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(64)])
    x = tm.empty(16384, 256, requires_grad=True)
    for first in range(0, 64, 8):
        x = checkpoint(layers[first : first + 8], x, use_reentrant=False)
    memory.mark("forward ends")
    x.sum().backward()


def explain(before: Run) -> Finding:
    plain = run(Program(no_checkpoints))
    same = "to the byte the same" if plain.peak == before.peak else "no less"
    return Finding(
        cause=f"A checkpoint keeps the input of what it wraps. A linear layer keeps its input, too, and nothing else. So "
        f"{LAYERS} checkpoints keep what {LAYERS} layers would have kept: without any checkpoint the peak is {plain.peak:,} "
        f"bytes, {same}.",
        fix="Wrap parts with much inside and little at their edges: with eight layers in each checkpoint, eight inputs are "
        "kept instead of 64.",
        what="kept when the forward ends: the inputs, of which the first is the batch",
        formula="64 x 4 x 16,384 x 256",
        by_formula=LAYERS * 4 * ROWS * WIDTH,
        measured=before.at("forward ends", Category.ACTIVATION, Category.INPUT),
    )


CASE = Case(
    question="I wrapped each layer in torch.utils.checkpoint. The step is slower, and the peak is the same. Is it broken?",
    choices=(
        "No: a checkpoint keeps the same input that the layer would have kept.",
        "Yes: it keeps the activations as well.",
        "No: the peak is elsewhere, in the optimizer.",
    ),
    right=0,
    before=Program(each_layer),
    after=Program(each_eight),
    explain=explain,
    thread="pytorch/pytorch/issues/78731",
    reports="Checkpoints around each of eight Linear(256, 256), with a batch of 137 rows, did not appear to lower the peak.",
)
