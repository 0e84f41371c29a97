"""Accumulation that adds up losses, not gradients."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category

from ..case import Case, Finding, Program, Run

PARTS, LAYERS, RESULT = 4, 8, 4 * 4096 * 1024


def one_backward() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    total = tm.zeros(())
    for _ in range(4):
        total = total + model(tm.empty(4096, 1024)).square().mean() / 4
    memory.mark("forward ends")
    total.backward()


def four_backwards() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.Tanh()]
    model = nn.Sequential(*layers)
    for _ in range(4):
        loss = model(tm.empty(4096, 1024)).square().mean() / 4
        memory.mark("forward ends")
        loss.backward()


def explain(before: Run, after: Run) -> Finding:
    return Finding(
        cause="The sum of the losses holds four graphs, and backward comes when all are there: as many activations as with the "
        "whole batch at once.",
        fix="Call backward for each part. Gradients add up by themselves, and each part's graph is gone before the next one's. "
        "Where the mean is over tokens, scale the gradients at the end.",
        what="kept for backward when the last forward ends",
        formula="4 parts x (the input and 8 results) x 4 x 4,096 x 1,024",
        by_formula=PARTS * (1 + LAYERS) * RESULT,
        measured=before.at("forward ends", Category.ACTIVATION, Category.INPUT),
    )


CASE = Case(
    question="I split the batch in four and accumulate, so that it fits. The peak is the same as with the whole batch. What "
    "does accumulation save?",
    choices=(
        "Nothing: gradients of four parts are four times as large.",
        "Nothing here: the losses are added first, and each holds its graph.",
        "Only the optimizer's state.",
    ),
    right=1,
    before=Program(one_backward),
    after=Program(four_backwards),
    explain=explain,
    thread="meta-pytorch/torchtune/pull/1917",
    reports="Losses were added up over the parts, to divide by all tokens, and backward was called once: activations hung "
    "around longer than they should. Backward of each part came back.",
)
