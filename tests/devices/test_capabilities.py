"""Each thing that only some systems have is taken away in turn: the bytes and the losses stay the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.profiles import some
from tinygrad_mem.devices import Pool, chunks
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.kernels.numpy.fast import threads

PROGRAM = """
import tinygrad_mem as tm
from tinygrad_mem import memory, nn

losses = []
def train():
    tm.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16 * 16, 600),
                        nn.Tanh(), nn.Linear(600, 10))
    rule = tm.optim.Adam(net.parameters())
    x, y = tm.randn(64, 3, 32, 32), tm.arange(64) % 10
    for _ in range(2):
        rule.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        rule.step()
        loss.is_meta or losses.append(loss.item())

predicted = memory.predict(train)
with memory.track() as track:
    train()
events = [(e.kind.name, e.requested, e.rounded) for e in track.log]
import json, zlib
print(json.dumps({"peak": track.peak, "reserved": track.pool("peak").reserved, "said": predicted.peak,
                  "by category": {str(k): v for k, v in track.by_category().items()}, "losses": losses,
                  "events": zlib.crc32(repr(events).encode())}))
"""

TAKEN_AWAY = {
    "maps of anonymous memory": "import mmap; del mmap.MAP_ANONYMOUS, mmap.MAP_PRIVATE, mmap.MADV_HUGEPAGE",
    "OpenBLAS's own functions": "import ctypes\ndef refuse(*a, **k): raise OSError('no such library')\nctypes.CDLL = refuse",
    "threads": 'import _thread, threading\ndef refuse(*a, **k): raise RuntimeError("can\'t start new thread")\n'
    "_thread.start_new_thread = threading._start_new_thread = threading._start_joinable_thread = refuse",
    "fork": "import os; del os.fork, os.register_at_fork",
    "a list of cores": "import os; del os.sched_getaffinity; os.cpu_count = lambda: None",
    "all cores but one": "import os; os.sched_getaffinity = lambda pid: {0}",
    "locks of files": "import sys; sys.modules['fcntl'] = None",
    "signals other than Ctrl-C": "import signal\nfor name in dir(signal.Signals):\n"
    "    name.startswith('SIG') and name not in ('SIGINT', 'SIGTERM') and delattr(signal, name)",
    "/proc": "import builtins\nown = builtins.open\ndef refuse(file, *a, **k):\n"
    "    if str(file).startswith(('/proc', '/sys')): raise FileNotFoundError(file)\n    return own(file, *a, **k)\n"
    "builtins.open = refuse",
    "address space": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))",
}


def run(before: str, program: str = PROGRAM) -> Any:
    done = subprocess.run([sys.executable, "-c", f"{before}\n{program}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def usual() -> dict[str, Any]:
    found = run("")
    assert found["peak"] == found["said"]
    return found


EACH = [[name] for name in TAKEN_AWAY]
TOGETHER = [
    ["threads"],
    ["maps of anonymous memory", "a list of cores", "locks of files", "/proc"],
    ["OpenBLAS's own functions", "fork", "all cores but one", "signals other than Ctrl-C", "address space"],
]
"""What a usual run takes away at once. Without threads there is less to do with the others."""


@pytest.mark.parametrize("names", some([*EACH, *TOGETHER[1:]], TOGETHER), ids=", ".join)
def test_bytes_and_losses_need_none_of_these(names: list[str], usual: dict[str, Any]):
    found = run("\n".join(TAKEN_AWAY[name] for name in names))
    assert found.pop("losses") == pytest.approx(usual["losses"], rel=1e-6)
    assert found == {name: value for name, value in usual.items() if name != "losses"}


def test_a_tebibyte_is_predicted_in_4_gb_of_address_space():
    parameter, gradient = 2 * [4 << 38]
    said = run(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4_096_000_000, 4_096_000_000))",
        """
import tinygrad_mem as tm
print(tm.memory.predict(lambda: tm.nn.Linear(1 << 19, 1 << 19, bias=False)(tm.ones(1, 1 << 19)).sum().backward()).peak)
""",
    )
    row = 4 << 19  # the input; the output; its gradient, which is one number, repeated
    assert parameter + gradient + row <= said <= parameter + gradient + 3 * row


@pytest.mark.parametrize(("text", "most"), [("150000 100000", 2), ("1000 100000", 1), ("max 100000", None), ("", None)])
def test_a_container_with_less_time_than_cores_has_fewer_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, most: int | None
):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads.cores(tmp_path / "cpu.max") == (most or 8)
    assert threads.cores(tmp_path / "missing") == 8


def test_addresses_are_not_used_up(monkeypatch: pytest.MonkeyPatch):
    """Neither by requests that no machine could serve, nor by many."""
    pool = Pool("meta", reserve=False)
    for size in (1 << 60, 1 << 61, 1 << 59):
        assert pool.malloc(size).size == size
    with pytest.raises(OutOfMemoryError):
        pool.malloc((1 << 62) + 1024)
    first, second = pool.malloc(1 << 40), pool.malloc(1 << 40)
    assert not np.may_share_memory(first, second)
    monkeypatch.setattr(chunks._Addresses, "_end", chunks._Addresses._huge - (1 << 20))
    blocks = [pool.malloc(1 << 19) for _ in range(4)]
    assert len({block.__array_interface__["data"][0] for block in blocks}) == 4
