"""A small GPU on any machine: ``with memory.limit("512 MiB"):``."""

from __future__ import annotations

import contextlib
from typing import Any

from .sizes import bytes_text, parse_bytes
from .stats import where


class limit(contextlib.ContextDecorator):
    """Inside, the device's pool takes no more than ``size`` from the machine; past it, ``OutOfMemoryError``.

    Limits nest: an inner one can only be tighter. The limit is on reserved bytes, as a GPU's is: what the pool has cached is
    given back before it gives up.

    Args:
        size: bytes, or text such as ``"512 MiB"``; see :func:`~tinygrad_mem.memory.sizes.parse_bytes`.
        device: whose pool, the default device unless given.

    Raises:
        ValueError, TypeError: ``size`` is not a size.
        RuntimeError: on entry, more than that is in use already.
    """

    def __init__(self, size: int | str, device: Any = None) -> None:
        self.bytes = parse_bytes(size)
        self.device = where(device)
        self._before: list[int] = []

    def __enter__(self) -> limit:
        pool = self.device.pool
        pool.free_all_blocks()
        used = pool.used_bytes()
        if used > self.bytes:
            raise RuntimeError(
                f"limit: {bytes_text(self.bytes)} was asked on {self.device}, {bytes_text(used)} are in use already: free "
                "tensors first, or ask for more"
            )
        before = pool.get_limit()
        self._before.append(before)
        pool.set_limit(min(self.bytes, before) if before else self.bytes)
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.pool.set_limit(self._before.pop())
