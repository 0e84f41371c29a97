"""``torch.cuda.memory``: numbers of the pool of a GPU, by default the first; 0 without a GPU, as in PyTorch.

They are those of ``tinygrad_mem.memory``, which also covers ``cpu``. In ``memory.predict`` they are of the predicted GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .. import absent as _absent
from .. import scope
from ..devices import cuda_problem
from ..devices import device as Device
from ..errors import DeviceError
from ..memory import stats

__all__ = (
    "empty_cache", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_max_memory_allocated", "reset_peak_memory_stats",
)  # fmt: skip


def gpu_of(device: Any) -> Device:
    """The GPU for an argument ``device``: its number, its name or the device; ``None`` is the first."""
    return Device("cuda", device) if isinstance(device, int) else Device("cuda" if device is None else device)


def _gpu(device: Any) -> Device | None:
    """As :func:`gpu_of`; ``None`` without a GPU."""
    return None if scope.local.dry is None and cuda_problem() is not None else gpu_of(device)


def _number(of: Callable[[Device], int], device: Any) -> int:
    gpu = _gpu(device)
    return 0 if gpu is None else of(gpu)


def require(name: str) -> None:
    """Raise DeviceError, in the name of ``cuda.NAME``, if there is no GPU."""
    problem = cuda_problem()
    if problem is not None:
        raise DeviceError(f"cuda.{name}: {problem}")


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks, each rounded up to 512."""
    return _number(stats.memory_allocated, device)


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in live blocks since the process began, or since :func:`reset_peak_memory_stats`."""
    return _number(stats.max_memory_allocated, device)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool has taken from the GPU: in use and cached."""
    return _number(stats.memory_reserved, device)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the pool had taken from the GPU, since the same moment."""
    return _number(stats.max_memory_reserved, device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the two peaks to the current bytes."""
    gpu = _gpu(device)
    if gpu is not None:
        stats.reset_peak_memory_stats(gpu)


reset_max_memory_allocated = reset_peak_memory_stats


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """``memory.memory_stats`` of the GPU; empty without a GPU."""
    gpu = _gpu(device)
    return OrderedDict() if gpu is None else stats.memory_stats(gpu)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The numbers as text, one per line."""
    gpu = _gpu(device)
    if gpu is None:
        return "memory of cuda: there is no GPU; memory.memory_summary() is about the cpu"
    return stats.memory_summary(gpu, abbreviated)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes and all bytes of the GPU's memory. Raises: DeviceError: there is none."""
    require("mem_get_info")
    import cupy

    with cupy.cuda.Device(gpu_of(device).index or 0):
        return cupy.cuda.runtime.memGetInfo()


def empty_cache() -> None:
    """Give unused memory back to the GPUs."""
    if cuda_problem() is not None:
        return
    import cupy

    for index in range(cupy.cuda.runtime.getDeviceCount()):
        Device("cuda", index).pool.free_all_blocks()


__getattr__ = _absent.refuses("cuda.memory")
