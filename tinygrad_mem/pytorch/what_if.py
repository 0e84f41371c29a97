"""The same requests under each setting that PyTorch's documentation names, and under the best of them together."""

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
"""The settings that PyTorch 2.13 documents and that move device memory, with values that people use."""


@dataclass
class Trial:
    """The recording under settings.

    Attributes:
        settings: as in ``PYTORCH_CUDA_ALLOC_CONF``; ``""``: PyTorch's defaults.
        what: ``as recorded``; ``the same, from the start``, where the blocks that were there before the recording are asked for
            anew, as under other settings; ``each``, one setting; ``best``, the best found: one, and others that helped.
        peak_reserved, peak_allocated: in bytes; rounding up makes the second larger.
        unused: reserved and not allocated where most was reserved.
        calls: how often the driver was asked for memory; each call waits for the driver.
        retries: how often everything cached was given back to ask again; each waits for the card.
        fits: whether all requests were served; ``None``: all were, and no capacity is known.
        fails: the first event whose request was not served; ``None``: there is none; -1: what was there before the recording.
    """

    settings: str
    what: str
    peak_reserved: int
    peak_allocated: int
    unused: int
    calls: int
    retries: int
    fits: bool | None
    fails: int | None


def what_if(
    recording: Recording, capacity: int | None = None, tell: Callable[[str], object] = lambda what: None
) -> list[Trial]:
    """As recorded; from the beginning under the same settings; under each setting; and under the best found together.

    Args:
        capacity: bytes that the program has on the card; ``None``: what it had where it ran out of memory, if it did.
        tell: called with the settings that are tried next.
    """
    tell("as recorded")
    first = _outcome(replay(recording, None, capacity), "as recorded", capacity)
    capacity = recorded_capacity(recording) if capacity is None else capacity

    def tried(settings: str, what: str) -> Trial:
        tell(settings)
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
    """The best together with one more setting of another kind, where that reserves less."""
    more = [f"{best.settings},{name}" for name in names if best.settings and not _kinds(best.settings) & _kinds(name)]
    found = min((tried(settings, "best") for settings in more if _may_be(settings)), key=_rank, default=best)
    return found if _rank(found)[:2] < _rank(best)[:2] else None


def _may_be(settings: str) -> bool:
    """Ask the parser: does PyTorch take these settings together?"""
    try:
        parse(settings)
    except ArgumentError:
        return False
    return True


def recorded_capacity(recording: Recording, at: int | None = None) -> int | None:
    """The bytes that the program could have had when the card had no memory: those reserved then, and the driver's.

    ``None``: it always had; or the driver had enough, and a limit that the recording does not say refused it.

    Args:
        at: the number of the event; ``None``: the first such one.
    """
    failed = np.flatnonzero(recording.events["action"] == Action.OOM)
    if not len(failed):
        return None
    at = int(failed[0]) if at is None else at
    events, settings = recording.events[:at], parse(recording.settings)
    asked, left = int(recording.events["size"][at]), int(recording.events["address"][at])
    if left >= settings.segment_size(settings.rounded(asked)):
        return None
    sizes = events["size"].astype(np.int64)
    taken = np.isin(events["action"], (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    given = np.isin(events["action"], (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    older = sum(segment.size for segment in recording.at_beginning(settings)[0])
    return older + int(sizes[taken].sum() - sizes[given].sum()) + left


def _kinds(settings: str) -> set[str]:
    return {pair.split(":")[0] for pair in settings.split(",")}


def _rank(row: Trial) -> tuple:
    """The order from the best on: what fits, then what reserves least, asks the driver least, is said in fewest words."""
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
