"""Gradients that are cleared one forward too late."""

import tinygrad_mem as tm
from tinygrad_mem import nn

from ..case import Case, Finding, Program, Run

LAYERS, WIDTH = 8, 2048


def before_backward() -> None:
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(8)]
    model = nn.Sequential(*layers)
    rule = tm.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(tm.empty(4096, 2048)).square().mean()
        rule.zero_grad()
        loss.backward()
        rule.step()


def after_step() -> None:
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(8)]
    model = nn.Sequential(*layers)
    rule = tm.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(tm.empty(4096, 2048)).square().mean()
        loss.backward()
        rule.step()
        rule.zero_grad()


def explain(before: Run, after: Run) -> Finding:
    return Finding(
        cause="The gradients of the last step are of no use once the optimizer has stepped. Here they live through the next "
        "forward, and at its end they meet all activations: that is the peak.",
        fix="Call zero_grad() right after step(). (It sets gradients to None; with set_to_none=False they would stay for "
        "good.)",
        what="the peak less the fixed program's",
        formula="the gradients, 8 x 4 x 2,048 x 2,048",
        by_formula=LAYERS * 4 * WIDTH * WIDTH,
        measured=before.peak - after.peak,
    )


CASE = Case(
    question="My loop is forward, zero_grad, backward, step, as in many examples. Can the order of these four lines change the "
    "peak?",
    choices=(
        "No: the same tensors are made and freed.",
        "Yes: gradients of the last step can be gone before the forward.",
        "Only with set_to_none=False.",
    ),
    right=1,
    before=Program(before_backward),
    after=Program(after_step),
    explain=explain,
    thread="karpathy/nanoGPT/pull/71",
    reports="Clearing the gradients earlier saved memory: until then they are alive when the forward ends, its largest moment.",
)
