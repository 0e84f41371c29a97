"""PyTorch's questions about the allocator, with PyTorch's names: they need no track."""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import Any, NamedTuple

from .. import scope
from ..devices import device as Device
from ..devices import round_up
from .alive import alive
from .sizes import bytes_text


def where(device: Any = None) -> Device:
    """The device that is meant: the given one, else the thread's default, else the cpu."""
    return Device(device or scope.local.default_device or "cpu")


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks, each rounded up to 512."""
    return where(device).pool.used_bytes()


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in live blocks since the process began, or since :func:`reset_peak_memory_stats`."""
    return where(device).pool.peak_used


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool has taken from the machine: live, and cached."""
    return where(device).pool.total_bytes()


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes that the pool had taken from the machine, since the same moment."""
    return where(device).pool.peak_total


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the two peaks begin again from what is there now."""
    where(device).pool.reset_peak()


def empty_cache(device: Any = None) -> None:
    """Give cached memory back to the machine: whole free segments; a small live block keeps its segment."""
    where(device).pool.free_all_blocks()


class Reclaimed(NamedTuple):
    """The bytes that :func:`reclaim` gave back.

    Attributes:
        collected: bytes in use that only the garbage collector could free: they hung in reference cycles.
        released: reserved bytes that went back to the machine.
    """

    collected: int
    released: int


def reclaim(device: Any = None) -> Reclaimed:
    """Run the garbage collector, empty the cache, and say what each really gave back."""
    pool = where(device).pool
    used, reserved = pool.used_bytes(), pool.total_bytes()
    gc.collect()
    collected = used - pool.used_bytes()
    pool.free_all_blocks()
    return Reclaimed(collected, reserved - pool.total_bytes())


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """PyTorch's keys, of those that the pool knows. Bytes that were asked for are those of live blocks (``cpu``, ``meta``)."""
    here = where(device)
    pool = here.pool
    now, sizes = pool.counts(), _asked_for(here)
    stats = OrderedDict()
    stats["allocated_bytes.all.current"], stats["allocated_bytes.all.peak"] = now.used, now.peak_used
    stats["reserved_bytes.all.current"], stats["reserved_bytes.all.peak"] = now.total, now.peak_total
    stats["inactive_split_bytes.all.current"] = now.total - now.used
    stats["inactive_split.all.current"] = pool.n_free_blocks()
    if sizes is not None:
        stats["requested_bytes.all.current"], stats["allocation.all.current"] = sum(sizes), len(sizes)
        stats["largest_free_bytes"] = pool.largest_free()
    return stats


def _asked_for(device: Device) -> list[int] | None:
    """The bytes of each live block before they were rounded up; ``None`` where the pool does not know them."""
    from ..devices.pool import Block

    if device.type == "cuda":
        return None
    with scope.looking():
        return [thing.size for thing in alive({Block}) if getattr(thing, "pool", None) is device.pool]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The numbers as text, each in a line.

    Args:
        abbreviated: taken for compatibility; the summary is short.
    """
    here = where(device)
    now, sizes = here.pool.counts(), _asked_for(here)
    rows = [("in use", now.used), ("most in use", now.peak_used)]
    if sizes is not None:
        rows += [("asked for", sum(sizes)), ("lost to rounding", sum(round_up(size) - size for size in sizes))]
    rows += [("reserved", now.total), ("most reserved", now.peak_total), ("free in the pool", now.total - now.used)]
    if sizes is not None:
        rows += [("largest free piece", here.pool.largest_free())]
    rows += [("limit", here.pool.get_limit())] if here.pool.get_limit() else []
    return "\n".join([f"memory of {here}", *(f"{name:20}{count:>18,}  {bytes_text(count):>12}" for name, count in rows)])
