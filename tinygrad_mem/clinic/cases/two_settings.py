"""Two settings of the allocator that work against each other."""

import tinygrad_mem as tm

from ..case import Case, Finding, Program, Run

MIB = 1 << 20
CYCLES, PAGE = 101, 20 * MIB  # an expandable segment grows by pages of 20 MiB


def program() -> None:
    weights = tm.empty(64 * MIB // 4)
    kept = []
    for _ in range(101):
        a = tm.empty(91 * MIB // 4)
        b = tm.empty(91 * MIB // 8)
        kept.append(tm.empty(2 * MIB // 4))  # such as cached keys
        del a, b
    del weights


def explain(before: Run) -> Finding:
    cycle = 91 * MIB + 91 * MIB // 2 + 2 * MIB
    needed = 64 * MIB + CYCLES * cycle
    return Finding(
        cause="When a and b are freed they are one free block of 136.5 MiB, and the small tensor behind them stays. With "
        "max_split_size_mb:128 a block of 128 MiB or more is not cut up for a smaller request. In an expandable segment all "
        "free blocks that meet become one, so that this block is never used again: each cycle maps new pages at the "
        "segment's end.",
        fix="Set one of them. expandable_segments:True alone uses the hole again.",
        what="reserved at the end of the last cycle",
        formula=f"64 MiB + {CYCLES} cycles x (91 + 45.5 + 2) MiB, in whole pages of 20 MiB",
        by_formula=-(-needed // PAGE) * PAGE,
        measured=before.peak,
    )


CASE = Case(
    question="I set max_split_size_mb and expandable_segments, both against fragmentation. Reserved memory now grows with "
    "every step until the card is full, though allocated memory hardly grows. Why?",
    choices=(
        "The kept tensors are the growth: their bytes add up to it.",
        "Each setting forbids what the other one needs, so that a hole is never used again.",
        "Expandable segments never give memory back.",
    ),
    right=1,
    before=Program(program, "max_split_size_mb:128,expandable_segments:True"),
    after=Program(program, "expandable_segments:True"),
    explain=explain,
    thread="pytorch/pytorch/pull/193400",
    reports="On a GPU, 220 MiB were reserved after the first cycle of this program and 14,060 MiB after the 101st; allocated "
    "were 66 and 266 MiB. Either setting alone stayed under 500 MiB.",
)
