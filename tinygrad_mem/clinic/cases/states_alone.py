"""An estimate that leaves activations out."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.utils.checkpoint import checkpoint

from ..case import Case, Finding, Program, Run

BLOCKS, ROWS, WIDTH = 12, 16384, 512


def plain() -> None:
    layers = []
    for _ in range(12):
        layers += [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)]
    model = nn.Sequential(*layers)
    rule = tm.optim.AdamW(model.parameters())
    for _ in range(2):
        y = model(tm.empty(16384, 512))
        memory.mark("forward ends")
        y.square().mean().backward()
        rule.step()
        rule.zero_grad()


def recomputed() -> None:
    layers = []
    for _ in range(12):
        layers += [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)]
    model = nn.Sequential(*layers)
    rule = tm.optim.AdamW(model.parameters())
    for _ in range(2):
        y = tm.empty(16384, 512)
        for first in range(0, 36, 3):
            part = model[first : first + 3]
            y = checkpoint(part, y, use_reentrant=False)
        y.square().mean().backward()
        rule.step()
        rule.zero_grad()


def explain(before: Run, after: Run) -> Finding:
    parameters = BLOCKS * (8 * WIDTH**2 + 5 * WIDTH)
    kept = BLOCKS * (4 * ROWS * WIDTH + 2 * 4 * ROWS * 4 * WIDTH)
    return Finding(
        cause=f"The estimate counts parameters, gradients and optimizer states: 16 x {parameters:,} = {16 * parameters:,} "
        f"bytes, {16 * parameters / before.peak:.0%} of the peak. It says so, and knows nothing of the batch. Backward needs "
        "the input of each layer and of each GELU.",
        fix="Predict the step itself, with its batch. Activations can be computed again: here each block of three layers is "
        "a checkpoint.",
        what="kept for backward when the forward ends",
        formula="12 blocks x (4 x 16,384 x 512 + 2 x 4 x 16,384 x 2,048)",
        by_formula=kept,
        measured=before.at("forward ends", Category.ACTIVATION, Category.INPUT),
    )


CASE = Case(
    question="A tool read my model and estimated the memory for parameters, gradients and optimizer states. The run takes "
    "several times as much. Where does the estimate go wrong?",
    choices=(
        "Adam's state has three numbers for each parameter, not two.",
        "It is right about what it counts; activations are not in it.",
        "The allocator's rounding: many small tensors.",
    ),
    right=1,
    before=Program(plain),
    after=Program(recomputed),
    explain=explain,
    thread="deepspeedai/DeepSpeed/issues/4527",
    reports="An estimate said 0.49 GB for parameters, states and gradients of a 6.8 billion parameter model, offloaded; the "
    "run took 14,678 MiB after initialising and 21,272 MiB after the second forward.",
)
