"""``torch.cuda.memory``: the pool's numbers of a GPU, the first unless named; 0 where there is none, as in PyTorch.

They are those of ``tinygrad_mem.memory``, which answers for ``cpu`` too. In ``memory.predict`` the GPU is the one predicted.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .. import absent as _absent
from .. import scope
from ..devices import cuda_problem
from ..devices import device as Device
from ..errors import DeviceError
from ..memory import stats


def _gpu(device: Any) -> Device | None:
    """The GPU that is meant; ``None`` where there is none."""
    if scope.local.dry is None and cuda_problem() is not None:
        return None
    return Device("cuda", device) if isinstance(device, int) else Device("cuda" if device is None else device)


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks, each rounded up to 512."""
    gpu = _gpu(device)
    return 0 if gpu is None else stats.memory_allocated(gpu)


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in live blocks since the process began, or since :func:`reset_peak_memory_stats`."""
    gpu = _gpu(device)
    return 0 if gpu is None else stats.max_memory_allocated(gpu)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool has taken from the GPU: live, and cached."""
    gpu = _gpu(device)
    return 0 if gpu is None else stats.memory_reserved(gpu)


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes that the pool had taken from the GPU, since the same moment."""
    gpu = _gpu(device)
    return 0 if gpu is None else stats.max_memory_reserved(gpu)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the two peaks begin again from what is there now."""
    gpu = _gpu(device)
    if gpu is not None:
        stats.reset_peak_memory_stats(gpu)


reset_max_memory_allocated = reset_peak_memory_stats


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """``memory.memory_stats`` of the GPU; empty where there is none."""
    gpu = _gpu(device)
    return OrderedDict() if gpu is None else stats.memory_stats(gpu)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The numbers as text, each in a line."""
    gpu = _gpu(device)
    if gpu is None:
        return "memory of cuda: there is no GPU; memory.memory_summary() tells of the cpu"
    return stats.memory_summary(gpu, abbreviated)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes and all bytes of the GPU's memory.

    Raises:
        DeviceError: there is none.
    """
    problem = cuda_problem()
    if problem is not None:
        raise DeviceError(f"cuda.mem_get_info: {problem}")
    import cupy

    index = device if isinstance(device, int) else Device("cuda" if device is None else device).index
    with cupy.cuda.Device(index or 0):
        return cupy.cuda.runtime.memGetInfo()


def empty_cache() -> None:
    """Give the blocks that nobody uses back to the GPUs."""
    if cuda_problem() is not None:
        return
    import cupy

    for index in range(cupy.cuda.runtime.getDeviceCount()):
        Device("cuda", index).pool.free_all_blocks()


__getattr__ = _absent.refuses("cuda.memory")
