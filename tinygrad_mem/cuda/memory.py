"""``torch.cuda.memory``: numbers of the pool of a GPU, by default the first; 0 without a GPU, as in PyTorch.

They are those of ``tinygrad_mem.memory``, which also covers ``cpu``. In ``memory.predict`` they are of the predicted GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

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


T = TypeVar("T")


def gpu_of(device: Any) -> Device:
    """The GPU for an argument ``device``: its number, its name or the device; ``None`` is the first."""
    return Device("cuda", device) if isinstance(device, int) else Device("cuda" if device is None else device)


def _gpu(device: Any) -> Device | None:
    """As :func:`gpu_of`; ``None`` without a GPU."""
    return None if scope.local.dry is None and cuda_problem() is not None else gpu_of(device)


def _of_gpu(of: Callable[[Any], T], without: T) -> Callable[..., T]:
    """The function ``of`` of ``memory.stats`` for a GPU; ``without`` one, that value."""

    @wraps(of)
    def of_gpu(device: Any = None) -> T:
        gpu = _gpu(device)
        return without if gpu is None else of(gpu)

    return of_gpu


def require(name: str) -> None:
    """Raise DeviceError, in the name of ``cuda.NAME``, if there is no GPU."""
    problem = cuda_problem()
    if problem is not None:
        raise DeviceError(f"cuda.{name}: {problem}")


memory_allocated = _of_gpu(stats.memory_allocated, 0)
max_memory_allocated = _of_gpu(stats.max_memory_allocated, 0)
memory_reserved = _of_gpu(stats.memory_reserved, 0)
max_memory_reserved = _of_gpu(stats.max_memory_reserved, 0)
reset_peak_memory_stats = reset_max_memory_allocated = _of_gpu(stats.reset_peak_memory_stats, None)


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
