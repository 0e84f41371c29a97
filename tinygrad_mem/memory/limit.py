"""A small GPU on any machine: ``with memory.limit("512 MiB"):``."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from ..devices import device as Device
from ..interrupts import EndsAlways, cleanup, lock, uninterrupted
from .sizes import bytes_text, parse_bytes
from .stats import where


class limit(EndsAlways, contextlib.ContextDecorator):
    """Inside, the device's pool reserves at most ``size``; a request beyond that raises ``OutOfMemoryError``.

    If several limits are open, the smallest applies; they may end in any order. The limit is on reserved bytes, as on a GPU:
    before the pool raises, it releases cached memory.

    Args:
        size: bytes, or text such as ``"512 MiB"``; see :func:`~tinygrad_mem.memory.sizes.parse_bytes`.
        device: the device of the pool; by default the default device.

    Raises:
        ValueError, TypeError: ``size`` is not a size.
        RuntimeError: on entry, more bytes are in use already.
    """

    _open: ClassVar[dict[Device, tuple[int, tuple[int, ...]]]] = {}  # the pool's own limit (0: none), and the open limits

    def __init__(self, size: int | str, device: Any = None) -> None:
        self.bytes = parse_bytes(size)
        self.device = where(device)

    def __enter__(self) -> limit:
        pool = self.device.pool
        pool.free_all_blocks()
        used = pool.used_bytes()
        if used > self.bytes:
            raise RuntimeError(
                f"limit: {bytes_text(self.bytes)} on {self.device}, but {bytes_text(used)} are in use already: free "
                "tensors first, or set a higher limit"
            )
        begun: list[bool] = []
        try:
            uninterrupted(self._begin, begun)
        except BaseException:  # an interrupt: the block does not begin
            if begun:
                cleanup(self._end)
            raise
        return self

    def _begin(self, begun: list[bool]) -> None:
        with lock:
            own, limits = self._open.get(self.device, (self.device.pool.get_limit(), ()))
            self._hold(own, (*limits, self.bytes))
            begun.append(True)

    def _end(self) -> None:
        with lock:
            own, limits = self._open.get(self.device, (0, ()))
            if self.bytes not in limits:
                raise RuntimeError("limit: this limit is not open: it has ended already, or was never entered")
            at = limits.index(self.bytes)
            self._hold(own, (*limits[:at], *limits[at + 1 :]))

    def _hold(self, own: int, limits: tuple[int, ...]) -> None:
        if limits:
            self._open[self.device] = own, limits
        else:
            del self._open[self.device]
        self.device.pool.set_limit(min(filter(None, [own, *limits]), default=0))
