"""A second GPU, and CuPy's current device and stream: the library works on its tensors' device, and on the current stream."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.emulated.device import Device
from tinygrad_mem import memory, nn
from tinygrad_mem.techniques import save_on_cpu

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]


def trained(place: str, pinned: bool = False) -> list[list]:
    """Three steps."""
    rng = np.random.default_rng(0)
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    with tm.no_grad():
        for p in model.parameters():
            p.copy_(tm.tensor(rng.standard_normal(tuple(p.shape)), dtype=tm.float32))
    model.to(place)
    optimizer = tm.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = tm.tensor(rng.standard_normal((5, 4)), dtype=tm.float32, device=place), tm.tensor([0, 1, 2, 0, 1], device=place)
    for _ in range(3):
        optimizer.zero_grad()
        with save_on_cpu(pin_memory=pinned):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return [p.detach().cpu().tolist() for p in model.parameters()]


def test_two_gpus(emulated: Device):
    script = Path(__file__).with_name("two_gpus.py")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.emulated", script], capture_output=True, text=True, cwd=script.parents[2]
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_step_on_another_stream(gpu_pool: Any, blocking: bool, pinned: bool):
    import cupy

    expected = trained("cuda", pinned)
    with memory.track("cuda") as plain:
        trained("cuda", pinned)
    with cupy.cuda.Stream(non_blocking=not blocking), memory.track("cuda") as track:
        found = trained("cuda", pinned)
    assert found == expected
    assert track.peak == plain.peak
    gc.collect()
    assert gpu_pool.used_bytes() == 0
