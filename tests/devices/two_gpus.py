"""``python -m tests.emulated tests/devices/two_gpus.py``: a machine with two GPUs. A kernel that is launched for one on
memory or a stream of the other is a problem, with which the process ends. CuPy counts GPUs once:
it needs a process of its own.
"""

import ctypes

import cupy
import numpy as np
import pytest

import tinygrad_mem as tm
from tests.devices.test_two_gpus import trained
from tests.emulated.offered import ran, runs
from tests.profiles import every
from tinygrad_mem import memory

driver = ctypes.CDLL("libcuda.so.1")
driver.emu_set_devices(2)
expected = trained("cpu")
for place in ("cuda:0", "cuda:1"):
    for current in range(2):
        with cupy.cuda.Device(current), memory.track(place) as track:
            found = trained(place)
            assert cupy.cuda.Device().id == current
        assert all(np.allclose(a, b, 1e-4, 1e-5) for a, b in zip(found, expected, strict=True)), (place, current)
        assert track.peak > 4096
        assert [tm.cuda.memory_allocated(index) for index in range(2)] == [0, 0]

x = tm.arange(6.0, device="cuda:1").view(2, 3)
y = x.T.to("cuda:0")
assert (y.device, y.tolist()) == ("cuda:0", [[0, 3], [1, 4], [2, 5]])
assert y.to("cuda:1").tolist() == y.tolist()
with pytest.raises(tm.errors.DeviceError, match="same device, found"):
    y + x.T
with cupy.cuda.Device(1):
    array = cupy.arange(3.0)
    assert tm.ones(2, device="cuda").device == "cuda:0"
for mine in (tm.as_tensor(array), tm.from_dlpack(array)):
    assert (mine.device, (mine * 2).tolist()) == ("cuda:1", [0, 2, 4])
assert tm.tensor(array, device="cuda:0").tolist() == [0, 1, 2]
assert tm.from_dlpack(x.__dlpack__()).device == "cuda:1"

driver.emu_set_mode(3, 0)  # no kernel runs
for name, run in [*runs()][:: every(160)]:
    said = ran(run, "cuda:1")
    assert not said or ran(run, "cuda:0").replace("cuda:0", "cuda:1") == said, (name, said)
