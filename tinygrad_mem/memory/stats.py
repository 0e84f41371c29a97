"""PyTorch's functions for the allocator's numbers. They need no track."""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import Any, NamedTuple

from .. import scope
from ..devices import device as Device
from ..devices import round_up
from ..devices.pool import Block
from .alive import alive
from .sizes import bytes_text

__all__ = (
    "Reclaimed", "empty_cache", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reclaim", "reset_peak_memory_stats",
)  # fmt: skip


def where(device: Any = None) -> Device:
    """The given device; by default the thread's default device, or the cpu."""
    return Device(device or scope.local.default_device or "cpu")


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks, each rounded up to 512."""
    return where(device).pool.used_bytes()


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in live blocks since the process began, or since :func:`reset_peak_memory_stats`."""
    return where(device).pool.counts().peak_used


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool has reserved, in use or cached."""
    return where(device).pool.total_bytes()


def max_memory_reserved(device: Any = None) -> int:
    """The most reserved bytes since the process began, or since :func:`reset_peak_memory_stats`."""
    return where(device).pool.counts().peak_total


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set both peaks to the current numbers."""
    where(device).pool.reset_peak()


def empty_cache(device: Any = None) -> None:
    """Return cached memory to the machine: each segment of which all is free."""
    where(device).pool.free_all_blocks()


class Reclaimed(NamedTuple):
    """The bytes that :func:`reclaim` freed.

    Attributes:
        collected: bytes in use that the garbage collector freed: reference cycles held them.
        released: reserved bytes that were returned to the machine.
    """

    collected: int
    released: int


def reclaim(device: Any = None) -> Reclaimed:
    """Run the garbage collector and empty the cache. Returns the bytes that each freed."""
    pool = where(device).pool
    used, reserved = pool.used_bytes(), pool.total_bytes()
    gc.collect()
    collected = used - pool.used_bytes()
    pool.free_all_blocks()
    return Reclaimed(collected, reserved - pool.total_bytes())


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """The pool's numbers under PyTorch's keys. Requested bytes are known on ``cpu`` and ``meta`` only."""
    here = where(device)
    pool = here.pool
    now, sizes = pool.counts(), _requested(here)
    stats = OrderedDict()
    stats["allocated_bytes.all.current"], stats["allocated_bytes.all.peak"] = now.used, now.peak_used
    stats["reserved_bytes.all.current"], stats["reserved_bytes.all.peak"] = now.total, now.peak_total
    stats["inactive_split_bytes.all.current"] = now.total - now.used
    stats["inactive_split.all.current"] = pool.n_free_blocks()
    if sizes is not None:
        stats["requested_bytes.all.current"], stats["allocation.all.current"] = sum(sizes), len(sizes)
        stats["largest_free_bytes"] = pool.largest_free()
    return stats


def _requested(device: Device) -> list[int] | None:
    """The requested bytes of all live blocks, before rounding up; ``None`` if the pool does not know them."""
    if device.kind == "cuda":
        return None
    with scope.scanning():
        return [thing.size for thing in alive({Block}) if getattr(thing, "pool", None) is device.pool]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The numbers as text, one per line. ``abbreviated`` changes nothing: the summary is short."""
    here = where(device)
    now, sizes = here.pool.counts(), _requested(here)
    rows = [("in use", now.used), ("peak in use", now.peak_used)]
    if sizes is not None:
        rows += [("requested", sum(sizes)), ("lost to rounding", sum(round_up(size) - size for size in sizes))]
    rows += [("reserved", now.total), ("peak reserved", now.peak_total), ("reserved but unused", now.total - now.used)]
    if sizes is not None:
        rows += [("largest free block", here.pool.largest_free())]
    rows += [("limit", here.pool.get_limit())] if here.pool.get_limit() else []
    return "\n".join([f"memory of {here}", *(f"{name:20}{count:>18,}  {bytes_text(count):>12}" for name, count in rows)])
