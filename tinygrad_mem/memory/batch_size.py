"""The largest batch that fits: predicted on ``meta`` if the step runs there, otherwise found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import scope
from ..devices import Meta
from ..devices import device as Device
from ..errors import DataDependenceError, DeviceError, OutOfMemoryError
from .limit import limit as Limit
from .sizes import parse_bytes
from .stats import where


def find_batch_size(
    fn: Callable[[int], Any], limit: int | str | None = None, device: Any = None, *, start: int = 1, most: int = 1 << 20
) -> int:
    """The largest ``n`` for which ``fn(n)`` does not run out of memory, if larger batches need more memory.

    ``fn(n)`` runs a whole step with a batch of ``n``: forward, backward, update. If it makes everything that it uses, with the
    network, on the default device, sizes are tried on ``meta``: nothing is computed there, and the pool has the same rules. The
    size found there is then run once on the device. A ``fn`` that uses existing tensors is tried on the device itself. Let it
    begin with ``zero_grad()``: gradients left by a failed try would keep their segments from being freed.

    Args:
        limit: bytes, or text such as ``"512 MiB"``; by default the pool's limit, or on ``cuda`` the free memory.
        device: the device that it must fit on; by default the default device.
        start: the smallest size to try.
        most: the largest size to try.

    Raises:
        ValueError: there is no limit, or ``start`` and ``most`` are not sizes.
        OutOfMemoryError: not even ``start`` fits.
    """
    if not 1 <= start <= most:
        raise ValueError(f"find_batch_size: expected 1 <= start <= most, found start={start}, most={most}")
    here = where(device)
    room = _room(here, limit)
    found = None if here.kind == "meta" else _predicted(fn, here, room, start, most)
    with Limit(room, here), here:
        if found is None:
            found = largest(lambda size: _fits(fn, size, here), start, most) if _fits(fn, start, here) else 0
        else:
            while found >= start and not _fits(fn, found, here):
                found -= max(1, found // 64)
        if found < start:
            fn(start)  # its error says why
        return max(found, start)


def _room(device: Device, limit: int | str | None) -> int:
    if limit is not None:
        return parse_bytes(limit)
    room = device.pool.get_limit() or device.free_memory()
    if not room:
        raise ValueError(f"find_batch_size: {device} has no limit; pass limit='2 GiB', or run it inside memory.limit('2 GiB')")
    return room


class _Elsewhere(scope.Listener):
    """Records whether a run on ``meta`` allocates on another device."""

    allocated = False

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.allocated = self.allocated or device != "meta"


def _predicted(fn: Callable[[int], Any], device: Device, room: int, start: int, most: int) -> int | None:
    """The largest size on ``meta``; ``None`` if ``fn`` does not run there."""
    meta, elsewhere = Meta.apart(device.kind), _Elsewhere()
    device.pool.free_all_blocks()
    left = room - device.pool.total_bytes()
    if left <= 0:
        return None
    try:
        with scope.listening(elsewhere), Limit(room, device), Limit(left, meta), meta:
            fits = _fits(fn, start, meta)  # does it run on meta only?
            found = largest(lambda size: _fits(fn, size, meta), start, most) if fits and not elsewhere.allocated else 0
    except (DataDependenceError, DeviceError):
        return None
    finally:
        meta.pool.close()
    return None if elsewhere.allocated else found


def _fits(fn: Callable[[int], Any], size: int, device: Device) -> bool:
    try:
        fn(size)
    except OutOfMemoryError:
        return False
    finally:
        device.pool.free_all_blocks()
    return True


def largest(fits: Callable[[int], bool], good: int, most: int) -> int:
    """The largest size up to ``most`` that fits, by doubling and then bisection; ``good`` is known to fit."""
    bad = most + 1
    while bad - good > 1:
        size = min(good * 2, most) if bad > most else (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good
