"""Older names of autocast functions, one for each device, which published files use."""

from __future__ import annotations

import numpy as np

from .autocast_mode import get_autocast_dtype, is_autocast_enabled


def is_autocast_cpu_enabled() -> bool:
    """An older name of ``is_autocast_enabled("cpu")``."""
    return is_autocast_enabled("cpu")


def get_autocast_cpu_dtype() -> np.dtype:
    """An older name of ``get_autocast_dtype("cpu")``."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> np.dtype:
    """An older name of ``get_autocast_dtype("cuda")``."""
    return get_autocast_dtype("cuda")
