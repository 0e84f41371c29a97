"""A stand-in for ``torch._dynamo.utils``."""

from __future__ import annotations

from typing import Any


def is_compile_supported(device_type: Any) -> bool:
    """Whether code for this device can be compiled: never."""
    return False
