"""Memory for what is sent and received. It is a category of its own in tracks: communication buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..devices import device as Device


def buffer(device: Device, shape: tuple[int, ...], dtype: np.dtype, op: str = "") -> Any:
    """An uninitialised array for what ranks send each other; ``op``: the collective that asks for it, for the tracker."""
    with scope.setting(new_role="COMMUNICATION", op=op or scope.local.op):
        return device.empty(shape, dtype)
