"""LoRA: few parameters learn, and all activations stay."""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.utils.checkpoint import checkpoint

from ..case import Case, Finding, Program, Run

LAYERS, ROWS, WIDTH, RANK = 16, 8192, 2048, 8


class LoRA(nn.Module):
    """A frozen linear layer, and beside it two thin ones that learn."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return tm.relu(self.frozen(x) + self.up(self.down(x)))


def lora() -> None:
    # a LoRA is relu(frozen(x) + up(down(x))); down and up learn
    model = nn.Sequential(*[LoRA(2048, 8) for _ in range(16)])
    learning = [p for p in model.parameters() if p.requires_grad]
    rule = tm.optim.AdamW(learning)
    for _ in range(2):
        rule.zero_grad()
        y = model(tm.empty(8192, 2048))
        memory.mark("forward ends")
        y.square().mean().backward()
        rule.step()


def with_checkpoints() -> None:
    model = nn.Sequential(*[LoRA(2048, 8) for _ in range(16)])
    learning = [p for p in model.parameters() if p.requires_grad]
    rule = tm.optim.AdamW(learning)
    for _ in range(2):
        rule.zero_grad()
        y = tm.empty(8192, 2048)
        for part in (model[:4], model[4:8], model[8:12], model[12:]):
            y = checkpoint(part, y, use_reentrant=False)
        memory.mark("forward ends")
        y.square().mean().backward()
        rule.step()


def explain(before: Run) -> Finding:
    frozen, learning = LAYERS * WIDTH * WIDTH, LAYERS * 2 * WIDTH * RANK
    kept = LAYERS * (4 * ROWS * WIDTH + 4 * ROWS * RANK)
    return Finding(
        cause=f"{learning / (frozen + learning):.1%} of the parameters learn, and so the gradients and moments of the others, "
        f"{12 * frozen:,} bytes, are not there. But down needs its input for its gradient, and that is the layer's input: each "
        f"layer keeps it, as it would in full training, and the thin result of down beside it. Activations are "
        f"{kept / before.peak:.0%} of this peak.",
        fix="Make activations smaller: shorter sequences, smaller batches, checkpoints. Here four checkpoints of four layers.",
        what="kept when the forward ends",
        formula="16 layers x (4 x 8,192 x 2,048 + 4 x 8,192 x 8)",
        by_formula=kept,
        measured=before.at("forward ends", Category.ACTIVATION),
    )


CASE = Case(
    question="With LoRA less than one percent of my parameters learn. It needs nearly as much memory as full fine-tuning, "
    "the more so with long sequences. Why?",
    choices=(
        "The frozen weights still get gradients, which are thrown away.",
        "Activations are kept as in full fine-tuning.",
        "The optimizer keeps state for the frozen weights.",
    ),
    right=1,
    before=Program(lora),
    after=Program(with_checkpoints),
    explain=explain,
    thread="huggingface/peft/issues/1514",
    reports="A model of 1,150,511,104 parameters, 50,462,720 of which learned: with long contexts there was hardly a "
    "difference.",
)
