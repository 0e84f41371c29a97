"""``torch.accelerator``: the GPU, whatever its kind; here it is CUDA's or none."""

from __future__ import annotations

from . import absent as _absent
from .cuda import device_count as device_count
from .cuda import empty_cache as empty_cache
from .cuda import is_available as is_available
from .cuda import synchronize as synchronize
from .devices import device as Device


def current_accelerator(check_available: bool = False) -> Device | None:
    """The GPU, or ``None`` where there is none."""
    return Device("cuda") if is_available() else None


__getattr__ = _absent.refuses("accelerator")
