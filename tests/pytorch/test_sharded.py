"""PyTorch programs that divide networks over processes: the bytes of each process, on the CPU as those of gloo take them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no fully_shard")

from tests import profiles  # noqa: E402
from tests.pytorch.sharded_peaks import PROGRAMS  # noqa: E402
from tinygrad_mem.pytorch import predict  # noqa: E402

MEASURED = {
    "units": [2458956, 2458956],
    "gathered until backward": [2583876, 2583876],
    "half": [2199700, 2199700],
    "accumulated": [2980172, 2980172],
    "clipped": [2458956, 2458956],
    "lists": [2458956, 2458956],
    "uneven": [214312, 211600],
    "copies of parts": [2458964] * 4,
    "tensor parallel": [1722960, 1722960],
    "tensor parallel in parts": [1258324] * 4,
    "ZeRO 1": [3563560, 3563564],
}
"""What ``python -m tests.pytorch.sharded_peaks`` printed with PyTorch 2.13; a thorough run measures again."""


def measured(name: str) -> list[int]:
    if profiles.name() != "thorough":
        return MEASURED[name]
    command = [sys.executable, "-m", "tests.pytorch.sharded_peaks", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_cpu_it_is_what_a_process_of_gloo_takes(name: str):
    size, run = PROGRAMS[name]
    real = measured(name)
    for rank in range(size) if len(set(real)) > 1 else [size - 1]:
        assert predict(run, "cpu", device="cpu", world_size=size, rank=rank).peak == real[rank]
