"""Requests that failed because the card had no memory, and the changes that would have helped."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .evidence import Evidence, LineShare
from .growth import Growth
from .recording import Action
from .replay import replay
from .unused import Unused, unused
from .what_if import recorded_capacity

HELPFUL = ("expandable_segments:True", "max_split_size_mb:128")
"""Settings to try if the free pieces together were large enough for the request."""


@dataclass
class Refusal:
    """A request that failed."""

    event: int  # its number
    line: str  # the line that asked
    asked: int  # the requested bytes
    left: int  # bytes that the driver had left
    state: Unused  # the reserved bytes at that moment
    # True if the driver had enough, so that a limit of this process (torch.cuda.set_per_process_memory_fraction) or another
    # process was the reason; then nothing below is known
    limited: bool
    capacity: int | None  # bytes that this process could have had, reserved and left; None if unknown
    lacking: int | None  # missing bytes even if all free bytes had been in one piece; 0 or less: none
    shares: list[LineShare]  # the owners of the allocated bytes, largest first
    helps: list[str] = field(default_factory=list)  # changes that would have helped, and the reasons


def refusals(evidence: Evidence, grown: Growth, most: int) -> tuple[int, list[Refusal]]:
    """The number of requests that failed, and the first ``most`` of them; the first one with the changes that would have
    helped."""
    where = np.flatnonzero(evidence.recording.events["action"] == Action.OOM).tolist()
    found = [_refusal(evidence, at) for at in where[:most]]
    for first in found[:1]:
        first.helps = [*_settings(evidence, first), *_growth(grown, first), *_less(first)]
    return len(where), found


def _refusal(evidence: Evidence, at: int) -> Refusal:
    recording, state = evidence.recording, unused(evidence, at)
    event = recording.events[at]
    asked, left = int(event["size"]), int(event["address"])
    capacity = recorded_capacity(recording, at)
    lacking = None if capacity is None else state.allocated + state.waiting + state.private + asked - capacity
    line = evidence.line_of(int(event["stack"]), at)
    shares = evidence.shares(evidence.alive(at))
    return Refusal(at, line, asked, left, state, capacity is None, capacity, lacking, shares)


def _settings(evidence: Evidence, refusal: Refusal) -> list[str]:
    """Settings with which the model serves the request on a card of the same size."""
    if refusal.capacity is None or refusal.lacking is None or refusal.lacking > 0:
        return []
    found = []
    for settings in HELPFUL:
        failed = replay(evidence.recording, settings, refusal.capacity).out_of_memory
        if not any(at <= refusal.event for at in failed):
            found.append(f"{settings}: a replay within {refusal.capacity:,} bytes serves the request")
    return found


def _growth(grown: Growth, refusal: Refusal) -> list[str]:
    """The lines that grew over the iterations by at least the missing bytes."""
    return [
        f"to free the blocks of {each.line}: {each.bytes:,} bytes in {each.of} iterations"
        for each in grown.grown
        if each.bytes >= max(refusal.lacking or 0, 1)
    ]


def _less(refusal: Refusal) -> list[str]:
    """The largest share, if no setting of the allocator can help."""
    enough = [share for share in refusal.shares[:1] if share.bytes >= (refusal.lacking or 0) > 0]
    return [f"fewer than the {share.bytes:,} bytes ({share.category}) of {share.line}" for share in enough]
