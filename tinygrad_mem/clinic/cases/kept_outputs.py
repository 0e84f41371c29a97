"""Scores of a whole epoch, kept for a metric."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category

from ..case import Case, Finding, Program, Run

BATCHES, ROWS, CLASSES = 20, 256, 32000


def all_scores() -> None:
    model = nn.Linear(1024, 32000)
    with tm.no_grad():
        scores = [model(tm.empty(256, 1024)) for _ in range(20)]
        memory.mark("epoch ends")
        tm.cat(scores).argmax(1)


def classes_alone() -> None:
    model = nn.Linear(1024, 32000)
    with tm.no_grad():
        classes = []
        for _ in range(20):
            classes.append(model(tm.empty(256, 1024)).argmax(1))
        memory.mark("epoch ends")
        tm.cat(classes)


def explain(before: Run, after: Run) -> Finding:
    return Finding(
        cause="no_grad() keeps no graph, but a list keeps what is in it. Every score of every sample waits for the metric, "
        "and cat copies them all once more.",
        fix=f"Keep what the metric needs: the best class of a sample is one number of 8 bytes instead of {CLASSES:,} of 4. "
        "Or add the metric up batch by batch, or move the scores to the CPU.",
        what="scores when the epoch ends",
        formula="20 batches x 4 x 256 x 32,000",
        by_formula=BATCHES * 4 * ROWS * CLASSES,
        measured=before.at("epoch ends", Category.TEMPORARY),
    )


CASE = Case(
    question="The evaluation runs under no_grad(). It is out of memory only when the validation set is large. Why should that "
    "matter?",
    choices=(
        "The outputs of all batches are in a list.",
        "The loader keeps the batches that it has read.",
        "The allocator's blocks are in pieces by then.",
    ),
    right=0,
    before=Program(all_scores),
    after=Program(classes_alone),
    explain=explain,
    thread="facebookresearch/SlowFast/issues/411",
    reports="Outputs and labels of an evaluation were added to a list and stayed on the GPU: a large set was out of memory.",
)
