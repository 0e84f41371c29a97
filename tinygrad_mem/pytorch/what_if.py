"""Replays the same requests with each documented setting of PyTorch's allocator, and with the best combination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from .recording import Action, Recording
from .replay import Replay, replay
from .settings import parse

TRIED = (
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:1.0",
)
"""The documented settings of PyTorch 2.13 that affect device memory, with common values."""


@dataclass
class Trial:
    """The result of a replay with one choice of settings."""

    settings: str  # as in PYTORCH_CUDA_ALLOC_CONF; "": PyTorch's defaults
    # "as recorded"; "the same, from the start" if the blocks that existed before the recording are allocated first, as with
    # other settings; "each" for one setting; "best" for the best combination found
    what: str
    peak_reserved: int
    peak_allocated: int  # rounding up makes it larger
    unused: int  # bytes that are reserved but not allocated when most is reserved
    calls: int  # requests to the driver; each waits for it
    retries: int  # times that the cache was released to ask again; each waits for the card
    fits: bool | None  # all requests were served; None if they were and no capacity is known
    fails: int | None  # the first event whose request failed; None if there is none; -1 for the blocks before the recording


def what_if(
    recording: Recording, capacity: int | None = None, progress: Callable[[str], object] = lambda what: None
) -> list[Trial]:
    """Replay as recorded, with the same settings from the start, with each setting, and with the best combination.

    Args:
        capacity: bytes that the program has on the card; ``None``: what it had when it ran out of memory, if that is recorded.
        progress: called with the settings that are tried next.
    """
    progress("as recorded")
    first = _outcome(replay(recording, None, capacity), "as recorded", capacity)
    capacity = recorded_capacity(recording) if capacity is None else capacity

    def tried(settings: str, what: str) -> Trial:
        progress(settings)
        return _outcome(replay(recording, settings, capacity, anew=True), what, capacity)

    same = tried(recording.settings, "the same, from the start")
    # without a capacity nothing is collected: the threshold is a share of it
    names = [name for name in TRIED if capacity is not None or not name.startswith("garbage_collection")]
    each = [tried(name, "each") for name in ["", *names] if name != recording.settings]
    best = min([same, *each], key=_rank)
    while better := _better(best, [row.settings for row in each if row.settings], tried):
        best = better
    return [first, same, *each, Trial(**{**vars(best), "what": "best"})]


def _better(best: Trial, names: list[str], tried: Callable[[str, str], Trial]) -> Trial | None:
    """Add a setting of another kind to the best ones, if less is reserved then."""
    more = [f"{best.settings},{name}" for name in names if best.settings and not _kinds(best.settings) & _kinds(name)]
    found = min((tried(settings, "best") for settings in more if _may_be(settings)), key=_rank, default=best)
    return found if _rank(found)[:2] < _rank(best)[:2] else None


def _may_be(settings: str) -> bool:
    """True if PyTorch accepts these settings together."""
    try:
        parse(settings)
    except ArgumentError:
        return False
    return True


def recorded_capacity(recording: Recording, at: int | None = None) -> int | None:
    """The bytes that the program could have had when the card had no memory: those reserved then, and those that the driver
    had left.

    ``None`` if no request failed; or if the driver had enough, so that a limit that is not recorded refused the request.

    Args:
        at: the number of the event; ``None`` for the first such event.
    """
    failed = np.flatnonzero(recording.events["action"] == Action.OOM)
    if not len(failed):
        return None
    at = int(failed[0]) if at is None else at
    event, settings = recording.events[at], parse(recording.settings)
    asked, left = int(event["size"]), int(event["address"])
    if left >= settings.segment_size(settings.rounded(asked)):
        return None
    return sum(segment.size for segment in recording.segments_after(at, settings)) + left


def _kinds(settings: str) -> set[str]:
    return {pair.split(":")[0] for pair in settings.split(",")}


def _rank(row: Trial) -> tuple:
    """The order of quality: fits, fewest reserved bytes, fewest requests to the driver, shortest text."""
    failed = row.fits is False
    return failed, -(row.fails or 0) if failed else row.peak_reserved, row.calls, len(row.settings)


def _outcome(ran: Replay, what: str, capacity: int | None) -> Trial:
    fails = ran.out_of_memory[0] if ran.out_of_memory else None
    fits = None if capacity is None and fails is None else fails is None
    return Trial(
        ran.settings,
        what,
        ran.peak_reserved,
        ran.peak_allocated,
        ran.peak_fragmentation,
        ran.segments,
        ran.retries,
        fits,
        fails,
    )
