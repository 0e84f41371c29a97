"""Each room's program on real ranks: the numbers of one process, and the bytes of the prediction.

One launch runs many programs: most of the time of one would be imports. So what ``tips``, ``estimate`` and ``plan`` say of
ranks is checked here too.
"""

from __future__ import annotations

import pytest

from tests.distributed.ranks import passes
from tests.profiles import every

FOUR = ["collectives", "data_parallel", "zero_optimizer", "tensor_parallel", "context_parallel", "pipelining"]
FOUR += ["norms", "mesh", "tips"]
TWO = ["fsdp", "estimated", "fsdp_options", "fsdp_offload", "quantized", "planned"]
ALL = every(2) == 1
"""A thorough run tries each program on two ranks and on four."""


@pytest.mark.parametrize(("ranks", "programs"), [(4, FOUR + TWO * ALL), (2, TWO + FOUR * ALL)], ids=["4", "2"])
def test_programs_on_real_ranks(ranks: int, programs: list[str]):
    said = passes(ranks, "several", *programs, timeout=600 if ALL else 300).splitlines()
    for rank in range(ranks):
        assert said.count(f"rank {rank} of {ranks}: done") == len(programs)
        assert [line for line in said if line.endswith(f" ended on rank {rank}")] == [
            f"{name} ended on rank {rank}" for name in programs
        ]
