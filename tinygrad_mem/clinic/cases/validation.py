"""A validation that builds a graph."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

from ...memory import Category
from ..case import Case, Finding, Program, Run

LAYERS, RESULT = 8, 4 * 32 * 64 * 56 * 56


def with_graph() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers).eval()
    for _ in range(2):
        scores = model(tm.empty(32, 64, 56, 56))
        memory.mark("forward ends")
        del scores


def without_graph() -> None:
    layers = []
    for _ in range(8):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers).eval()
    with tm.no_grad():
        for _ in range(2):
            scores = model(tm.empty(32, 64, 56, 56))
            memory.mark("forward ends")
            del scores


def explain(before: Run) -> Finding:
    return Finding(
        cause="eval() changes what dropout and batch norm compute. It does not say that no backward will come. Each "
        "convolution keeps its input for that backward, until the scores are dropped.",
        fix="Run it under no_grad(), or inference_mode(): a result is freed when the next one is there. (A convolution takes a "
        "workspace beside them in both programs.)",
        what="in use when the forward ends, beside the parameters",
        formula="the batch and 8 results, 9 x 4 x 32 x 64 x 56 x 56",
        by_formula=(1 + LAYERS) * RESULT,
        measured=before.at("forward ends") - before.at("forward ends", Category.PARAMETER),
    )


CASE = Case(
    question="Training fits. In the validation, which computes less, the same batch is out of memory, though I call "
    "model.eval(). Why does it need so much?",
    choices=(
        "eval() keeps the running statistics of each batch.",
        "The gradients of the training step are still there.",
        "Each layer keeps its input for a backward that never comes.",
    ),
    right=2,
    before=Program(with_graph),
    after=Program(without_graph),
    explain=explain,
    thread="pytorch/pytorch/issues/4932",
    reports="An example's validation took more and more memory: the switch that it used against graphs no longer had any "
    "effect.",
)
