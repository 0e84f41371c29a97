"""A graph that is retained after its last backward."""

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.memory import Category

from ..case import Case, Finding, Program, Run

LAYERS, RESULT = 8, 4 * 8192 * 1024


def retained() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    for _ in range(3):
        y = model(tm.empty(8192, 1024))
        first, second = y.mean(), y.square().mean()
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)


def added() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    for _ in range(3):
        y = model(tm.empty(8192, 1024))
        first, second = y.mean(), y.square().mean()
        (first + second).backward()


def explain(before: Run) -> Finding:
    return Finding(
        cause="retain_graph=True keeps all that backward needs for another backward. The last one of a step frees nothing "
        "then: the graph lives until y, first and second are given new values, and that is after the next forward. Two "
        "graphs are alive together.",
        fix="Add the losses and call backward once; the gradients are the same. Where two calls are needed, leave "
        "retain_graph out of the last.",
        what="activations at the peak",
        formula="2 graphs x 8 results x 4 x 8,192 x 1,024",
        by_formula=2 * LAYERS * RESULT,
        measured=before.track.by_category()[Category.ACTIVATION],
    )


CASE = Case(
    question="I have two losses, and backward() of the second asked for retain_graph=True, so I set it in both. Now the "
    "step needs far more memory. Why?",
    choices=(
        "The last graph lives on until the next step has built its own.",
        "Gradients are kept for each loss apart.",
        "With retain_graph backward makes a graph of its own.",
    ),
    right=0,
    before=Program(retained),
    after=Program(added),
    explain=explain,
    thread="pytorch/pytorch/issues/40005",
    reports="Losses of the layers of a BERT, each with backward(retain_graph=True), ran out of memory.",
)
