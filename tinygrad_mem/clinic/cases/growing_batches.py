"""Batches sorted from short to long."""

import tinygrad_mem as tm
from tinygrad_mem import nn

from ..case import Case, Finding, Program, Run

MIB = 1 << 20
LENGTHS = range(128, 1025, 128)


def short_first() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU())
    with tm.no_grad():
        for length in range(128, 1025, 128):
            model(tm.empty(64, length, 1024))


def long_first() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU())
    with tm.no_grad():
        for length in range(1024, 127, -128):
            model(tm.empty(64, length, 1024))


def explain(before: Run) -> Finding:
    sizes = [4 * 64 * length * 1024 for length in LENGTHS]
    weights = 22 * MIB  # a segment for large requests below 10 MiB has 20, one for small ones has 2
    return Finding(
        cause="The input, the linear layer's result and GELU's are alive together: three arrays of one size. Each batch is "
        "longer than those before, so none of the free blocks is large enough, and the driver is asked for three new ones. "
        "The old ones stay cached. PyTorch gives such blocks back only when the driver has nothing left; until then other "
        "programs on the card cannot have them, and a block with one small live tensor in it cannot be given back at all.",
        fix="Take the longest batch first: all others then fit into its blocks. It also shows at once whether the longest "
        "one fits.",
        what="reserved",
        formula=f"22 MiB for the weights + 3 arrays x 4 x 64 x 1,024 x ({' + '.join(map(str, LENGTHS))})",
        by_formula=weights + 3 * sum(sizes),
        measured=before.peak,
    )


CASE = Case(
    question="My batches are sorted from short to long. The memory that the process holds grows with every batch, and is "
    "several times what the longest batch needs. What would reserve less?",
    choices=(
        "The same batches, longest first.",
        "Calling gc.collect() after each batch.",
        "A smaller model: its weights are what is held.",
    ),
    right=0,
    before=Program(short_first, ""),
    after=Program(long_first, ""),
    explain=explain,
    thread="rapidsai/crossfit/pull/18",
    reports="A loader that took short sequences first ran out of memory with 23.57 GiB allocated and 12.12 GiB reserved but "
    "unallocated; longest first, the blocks of the first batch served all others.",
)
