"""The first step of an optimizer is not its largest."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ..case import Case, Finding, Program, Run

BLOCKS, WIDTH = 12, 512


def adam() -> None:
    layers = []
    for _ in range(12):
        layers += [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)]
    model = nn.Sequential(*layers)
    rule = tm.optim.AdamW(model.parameters())
    for step in (1, 2):
        model(tm.empty(4096, 512)).square().mean().backward()
        rule.step()
        rule.zero_grad()
        memory.mark(f"step {step} ends")


def eight_bits() -> None:
    layers = []
    for _ in range(12):
        layers += [nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)]
    model = nn.Sequential(*layers)
    rule = tm.optim.AdamW8bit(model.parameters())
    for step in (1, 2):
        model(tm.empty(4096, 512)).square().mean().backward()
        rule.step()
        rule.zero_grad()
        memory.mark(f"step {step} ends")


def explain(before: Run) -> Finding:
    first, parameters = before.peak_until("step 1 ends"), BLOCKS * (8 * WIDTH**2 + 5 * WIDTH)
    return Finding(
        cause=f"Adam makes its two moments when it first steps: after the backward of the first step, when the activations are "
        f"gone. The first step peaks at {first:,} bytes. From the second on, the moments and the activations exist together.",
        fix="Measure, or predict, two steps. Make the state smaller: moments of 8 bits take 2 bytes a parameter instead of 8.",
        what="the second step's peak less the first one's",
        formula=f"8 x {parameters:,} parameters",
        by_formula=8 * parameters,
        measured=before.peak - first,
    )


CASE = Case(
    question="The first batch goes through, forward, backward and step. The second one, of the same shape, is out of "
    "memory. Is this normal?",
    choices=(
        "No: something of the first batch is still alive.",
        "Yes: the optimizer's state is there from the second step on.",
        "Yes: the allocator needs a few steps to settle.",
    ),
    right=1,
    before=Program(adam),
    after=Program(eight_bits),
    explain=explain,
    thread="jquesnelle/yarn/issues/23",
    reports="Two cards of 80 GB: 14 at the start, 77 after the first batch, out of memory in the second.",
)
