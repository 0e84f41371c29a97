"""``torch.cuda``'s names that scripts ask for before they begin; all may be called where there is no GPU."""

from __future__ import annotations

from typing import Any

from ..devices import cuda_problem
from ..devices import device as Device
from . import amp as amp


def is_available() -> bool:
    """Whether tensors can live on a GPU here."""
    return cuda_problem() is None


def device_count() -> int:
    """How many GPUs there are."""
    if not is_available():
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def manual_seed(seed: int) -> None:
    """Seed the generator of the first GPU."""
    if is_available():
        Device("cuda").generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all GPUs."""
    for index in range(device_count()):
        Device("cuda", index).generator.manual_seed(seed)


def synchronize(device: Any = None) -> None:
    """Wait until a GPU, the first unless named, has done its work.

    Raises:
        DeviceError: there is none.
    """
    Device("cuda" if device is None else device).synchronize()


def empty_cache() -> None:
    """Give the blocks that nobody uses back to the GPUs."""
    for index in range(device_count()):
        Device("cuda", index).pool.free_all_blocks()


def __getattr__(name: str) -> object:
    offered = ", ".join(f"cuda.{n}" for n in ("is_available", "device_count", "synchronize", "empty_cache", "manual_seed"))
    raise AttributeError(f"cuda.{name} is not offered: there are {offered}, and memory.track() for bytes")
