"""The moments at which the card had no memory for a request, and what would have helped."""

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
"""Settings that are tried for a request that the free pieces together could have served."""


@dataclass
class Refusal:
    """A request that the card could not serve.

    Attributes:
        event: its number; ``line``: who asked; ``asked``: for how many bytes.
        left: bytes that the driver had left.
        state: the reserved bytes at that moment.
        limited: the driver had enough: a limit of this process (``torch.cuda.set_per_process_memory_fraction``), or another
            process that was faster, refused it; then nothing below is known.
        capacity: reserved and left: what this process could have had; ``None``: not known.
        lacking: bytes that were too few even if nothing free had been in pieces; 0 or less: there were enough.
        shares: who had what was allocated, most first.
        helps: what would have helped, and how that is known.
    """

    event: int
    line: str
    asked: int
    left: int
    state: Unused
    limited: bool
    capacity: int | None
    lacking: int | None
    shares: list[LineShare]
    helps: list[str] = field(default_factory=list)


def refusals(evidence: Evidence, grown: Growth, most: int) -> tuple[int, list[Refusal]]:
    """Count how often the card had no memory; tell the first ``most`` times, and of the first what would have helped."""
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
    """Settings under which the model serves the request on a card of the same size."""
    if refusal.capacity is None or refusal.lacking is None or refusal.lacking > 0:
        return []
    found = []
    for settings in HELPFUL:
        failed = replay(evidence.recording, settings, refusal.capacity).out_of_memory
        if not any(at <= refusal.event for at in failed):
            found.append(f"{settings}: a replay within {refusal.capacity:,} bytes serves it")
    return found


def _growth(grown: Growth, refusal: Refusal) -> list[str]:
    """The lines that grew from iteration to iteration by as much as was lacking."""
    return [
        f"to let go what {each.line} asks for: {each.bytes:,} bytes in {each.of} iterations"
        for each in grown.grown
        if each.bytes >= max(refusal.lacking or 0, 1)
    ]


def _less(refusal: Refusal) -> list[str]:
    """The largest share, where no setting of the allocator can help."""
    enough = [share for share in refusal.shares[:1] if share.bytes >= (refusal.lacking or 0) > 0]
    return [f"less than the {share.bytes:,} bytes ({share.category}) of {share.line}" for share in enough]
