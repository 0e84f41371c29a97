"""The largest batch that fits: found on ``meta`` where the step runs there, by trying where it does not."""

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
    """The largest ``n`` for which ``fn(n)`` does not run out of memory; larger batches are taken to need more.

    ``fn(n)`` runs a whole step with a batch of ``n``: forward, backward, update. If it makes all that it uses, network
    included, on the default device, sizes are tried on ``meta``: nothing is computed, and the same pool answers. The size
    that is found there is then run once on the device. A ``fn`` that uses tensors of its own is tried on the device itself;
    let it begin with ``zero_grad()``: gradients that a failed try has left pin the segments that they lie in.

    Args:
        limit: bytes, or text such as ``"512 MiB"``; the pool's own limit, or on ``cuda`` the free memory, unless given.
        device: where it shall fit, the default device unless given.
        start: the size that is tried first.
        most: the size that is tried last.

    Raises:
        ValueError: there is no limit to fit into, or ``start`` and ``most`` are no sizes.
        OutOfMemoryError: not even ``start`` fits.
    """
    if not 1 <= start <= most:
        raise ValueError(f"find_batch_size: 1 <= start <= most was expected, found start={start}, most={most}")
    here = where(device)
    room = _room(here, limit)
    found = None if here.type == "meta" else _predicted(fn, here, room, start, most)
    with Limit(room, here), here:
        if found is None:
            found = _largest(fn, here, start, most)
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
        raise ValueError(f"find_batch_size: nothing limits {device}; say limit='2 GiB', or run it inside memory.limit('2 GiB')")
    return room


class _Real(scope.Listener):
    """Hears whether a run that is meant for ``meta`` takes memory elsewhere."""

    touched = False

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.touched = self.touched or device != "meta"


def _predicted(fn: Callable[[int], Any], device: Device, room: int, start: int, most: int) -> int | None:
    """The answer on ``meta``; ``None`` where ``fn`` does not run there."""
    meta, ear = Meta.apart(device.type), _Real()
    device.pool.free_all_blocks()
    left = room - device.pool.total_bytes()
    if left <= 0:
        return None
    try:
        with scope.listening(ear), Limit(room, device), Limit(left, meta), meta:
            _fits(fn, start, meta)  # where does it run?
            found = 0 if ear.touched else _largest(fn, meta, start, most)
    except (DataDependenceError, DeviceError):
        return None
    finally:
        meta.pool.close()
    return None if ear.touched else found


def _fits(fn: Callable[[int], Any], size: int, device: Device) -> bool:
    try:
        fn(size)
    except OutOfMemoryError:
        return False
    finally:
        device.pool.free_all_blocks()
    return True


def _largest(fn: Callable[[int], Any], device: Device, start: int, most: int) -> int:
    """The largest size that fits on ``device``: doubling, then halving the interval; 0 where not even ``start`` does."""
    if not _fits(fn, start, device):
        return 0
    good, bad = start, most + 1
    while bad - good > 1:
        size = min(good * 2, most) if bad > most else (good + bad) // 2
        if _fits(fn, size, device):
            good = size
        else:
            bad = size
    return good
