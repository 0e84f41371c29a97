"""A running sum of losses that holds every graph."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ..case import Case, Finding, Program, Run, run

GRAPHS, RESULT = 10, 4 * 1024 * 1024


def sum_of_losses() -> None:
    layers = []
    for _ in range(2):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    total = 0.0
    for _ in range(10):
        loss = model(tm.empty(1024, 1024)).square().mean()
        total = total + loss
    del loss
    memory.mark("epoch ends")


def sum_of_numbers() -> None:
    layers = []
    for _ in range(2):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    total = 0.0
    for _ in range(10):
        loss = model(tm.empty(1024, 1024)).square().mean()
        total = total + loss.item()
        del loss
    memory.mark("epoch ends")


def explain(before: Run) -> Finding:
    fixed = run(Program(sum_of_numbers))
    return Finding(
        cause="A loss without a backward holds its graph: here the input and two results of tanh. total + loss holds both "
        "losses, so the sum of one number holds the graphs of the whole epoch.",
        fix="Add loss.item(), a Python number. Under tm.no_grad() there is no graph at all, which is right for a validation.",
        what="held when the epoch ends, beyond what the fixed program holds",
        formula=f"{GRAPHS} graphs x 3 results x 4 x 1,024 x 1,024, and 512 for the sum",
        by_formula=GRAPHS * 3 * RESULT + 512,
        measured=before.at("epoch ends") - fixed.at("epoch ends"),
    )


CASE = Case(
    question="I only add up the loss, to print its mean. Memory grows with every batch until the epoch is out of memory. What "
    "leaks?",
    choices=(
        "The model's outputs: Python has not collected them yet.",
        "Nothing leaks: the allocator caches more and more.",
        "The sum: it holds the graph of every loss.",
    ),
    right=2,
    before=Program(sum_of_losses),
    after=Program(sum_of_numbers),
    explain=explain,
    thread="BatsResearch/labelmodels/issues/4",
    reports="A running loss was the sum of tensors with graphs, and a large training set was out of memory; with item() it was "
    "not.",
)
