"""Free bytes that no request can have."""

import tinygrad_mem as tm
from tinygrad_mem import nn

from ..case import Case, Finding, Program, Run, run

CARD = 7 * (1 << 30) // 4


def program() -> None:
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(8)]
    model = nn.Sequential(*layers)
    rule = tm.optim.Adam(model.parameters())
    x = tm.empty(8, 2048)
    for _ in range(2):
        volume = tm.empty(1024, 512, 512)  # 1 GiB, such as a cost volume
        del volume
        model(x).square().mean().backward()
        rule.step()
        rule.zero_grad()


def explain(before: Run) -> Finding:
    assert before.replay is not None
    event = before.replay.out_of_memory[0]
    line = before.replay.timeline
    allocated, reserved = line[line[:, 0] == event][0, 1:].tolist()
    unsplit = run(Program(program, "max_split_size_mb:512", CARD))
    assert not unsplit.died
    return Finding(
        cause="In the first step the volume has a segment of 1 GiB. It is freed, and the gradients and Adam's moments are "
        "cut from it, because it is the smallest free block that is large enough. The moments stay. When the second step "
        f"asks for 1 GiB again, {reserved - allocated:,} bytes are reserved and not in use, but no free block is that long; "
        "and a segment with a live block in it cannot be given back.",
        fix="expandable_segments:True: the segment grows at its end by what is missing. Or max_split_size_mb:512, "
        f"which keeps smaller requests out of the large block; that reserves {unsplit.peak:,} bytes.",
        what="in use when the request fails",
        formula="8 weights and their 16 moments x 4 x 2,048 x 2,048, the input of 8 x 2,048 x 4",
        by_formula=24 * 4 * 2048 * 2048 + 8 * 2048 * 4,
        measured=allocated,
    )


CASE = Case(
    question="The first step works. The second one, the same as the first, is out of memory, although PyTorch says that more "
    "than half of what it has reserved is not in use. Why can it not be used?",
    choices=(
        "The free bytes belong to another stream.",
        "The first step leaks: its tensors are still there.",
        "The free bytes are in pieces, between blocks that are alive.",
    ),
    right=2,
    before=Program(program, "", CARD),
    after=Program(program, "expandable_segments:True", CARD),
    explain=explain,
    thread="pytorch/pytorch/issues/35901",
    reports="A segment of 11,643,387,904 bytes was one free block after the first iteration; in the second, blocks of "
    "499,214,336 bytes that were alive lay in it, and the request for it failed.",
)
