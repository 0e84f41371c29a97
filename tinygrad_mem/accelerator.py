"""``torch.accelerator``: the GPU, whatever its kind; here it is CUDA's or none."""

from __future__ import annotations

from typing import Any

from .cuda import device_count as device_count
from .cuda import empty_cache as empty_cache
from .cuda import is_available as is_available
from .cuda import synchronize as synchronize
from .devices import device as Device


def current_accelerator(check_available: bool = False) -> Device | None:
    """The GPU, or ``None`` where there is none."""
    return Device("cuda") if is_available() else None


def __getattr__(name: str) -> Any:
    from .absent import lacking

    raise lacking(name, f"accelerator.{name} is not offered: ask cuda.{name}, or memory.track() for bytes")
