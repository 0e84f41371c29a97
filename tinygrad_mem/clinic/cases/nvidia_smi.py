"""nvidia-smi shows what the process has taken, not what it uses."""

import tinygrad_mem as tm
from tinygrad_mem import nn

from ..case import Case, Finding, Program, Run

MIB = 1 << 20
PARTS = 16


def at_once() -> None:
    layers = [nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)]
    model = nn.Sequential(*layers)
    with tm.no_grad():
        model(tm.empty(65536, 1024))


def in_parts() -> None:
    layers = [nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)]
    model = nn.Sequential(*layers)
    with tm.no_grad():
        for _ in range(16):
            model(tm.empty(4096, 1024))


def explain(before: Run) -> Finding:
    assert before.replay is not None
    line = before.replay.timeline
    allocated, reserved = line[-1, 1:].tolist()
    return Finding(
        cause=f"At the end {allocated:,} bytes are allocated and {reserved:,} reserved. nvidia-smi shows the reserved ones, "
        "and the CUDA context beside them, which PyTorch does not count. A freed block stays with the process for its next "
        "request. So nvidia-smi shows the highest point of the run so far, not the present.",
        fix="Ask torch.cuda.memory_allocated() for the present. Where another program needs the card, lower the highest point, "
        "here with one sixteenth of the rows at a time, or call torch.cuda.empty_cache() when the large tensors are gone.",
        what="reserved",
        formula="22 MiB for the weights and biases + 3 results x 4 x 65,536 x 1,024",
        by_formula=22 * MIB + 3 * 4 * 65536 * 1024,
        measured=before.peak,
    )


CASE = Case(
    question="All is deleted, and torch.cuda.memory_allocated() is 0. nvidia-smi still shows nearly a gigabyte. Where is "
    "the leak?",
    choices=(
        "There is none: freed blocks stay with the process.",
        "Python has not collected the tensors yet.",
        "The graph of the last batch is alive.",
    ),
    right=0,
    before=Program(at_once, ""),
    after=Program(in_parts, ""),
    explain=explain,
    thread="pytorch/pytorch/issues/37250",
    reports="After a model was deleted memory_allocated() was 0, while nvidia-smi showed 12,433 MiB.",
)
