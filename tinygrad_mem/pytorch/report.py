"""The answers to what the owner of a snapshot asks first: who had the peak, what is stuck, what grows, what was refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .evidence import Evidence
from .growth import Growth, growth
from .iterations import iterations
from .recording import Action
from .refusals import Refusal, refusals
from .replay import Replay, replay
from .steps import PHASES
from .unused import Unused, unused


@dataclass
class Owner:
    """A line's blocks at the peak; ``without``: the highest point, had they not been there and all else been the same."""

    line: str
    category: str
    bytes: int
    blocks: int
    without: int | None


@dataclass
class Peak:
    """The moment at which most bytes were allocated.

    Attributes:
        event: after which; -1: before the first. ``phase``: the part of a training step, ``""``: not known.
        iteration: the number of the iteration that it is in, from 1; ``None``: not known.
        owners: who had it, most first; they add up to ``bytes``.
    """

    event: int
    bytes: int
    phase: str
    iteration: int | None
    owners: list[Owner]


@dataclass
class Report:
    """The answers for one device of a snapshot.

    Attributes:
        settings: of the allocator, as recorded; ``""``: PyTorch's defaults, or not said.
        seconds: from the first event to the last; ``None``: events have no times.
        requests: how many allocations there were; ``as_recorded``: how many of them the model of the allocator put at the
            recorded address; ``assumed``: blocks that were there before and whose length is not sure.
        peak_reserved: most bytes that were reserved.
        moments: what was reserved at some moments: ``peak``, ``out of memory`` or ``reserved peak``, ``end``; none of a file
            that names no segments.
        refused: how often the card had no memory; ``refusals`` has the first few.
    """

    device: int
    settings: str
    events: int
    seconds: float | None
    requests: int
    as_recorded: int
    assumed: int
    peak: Peak
    peak_reserved: int
    moments: dict[str, Unused]
    growth: Growth
    refused: int
    refusals: list[Refusal]

    def data(self) -> dict[str, Any]:
        """Everything as plain dicts, lists, texts and numbers."""
        return asdict(self)


def report(evidence: Evidence, top: int = 5) -> Report:
    """The answers for one device; ``top``: of how many owners of the peak it is said what the peak were without them."""
    recording = evidence.recording
    ran = replay(recording)
    found = iterations(evidence)
    changes = growth(evidence, found)
    count, refused = refusals(evidence, changes, top)
    times = recording.events["time"]
    seconds = int(times[-1] - times[0]) / 1e6 if len(times) and times[-1] > times[0] else None
    return Report(
        recording.device,
        recording.settings,
        len(evidence),
        seconds,
        ran.allocations,
        ran.as_recorded,
        ran.assumed,
        _peak(evidence, found.ends, top),
        max(ran.peak_reserved, 0),
        _moments(evidence, ran, refused),
        changes,
        count,
        refused,
    )


def _peak(evidence: Evidence, ends: np.ndarray, top: int) -> Peak:
    event = evidence.peak
    shares = evidence.shares(evidence.alive(event))
    owners = [
        Owner(*share, evidence.peak_without(share.line, share.category) if number < top else None)
        for number, share in enumerate(shares)
    ]
    phase = PHASES[evidence.parts.phase[event]] if event >= 0 else ""
    iteration = int(np.searchsorted(ends, event)) + 1 if len(ends) and event >= 0 else None
    return Peak(event, int(evidence.used[event + 1]), phase, iteration, owners)


def _moments(evidence: Evidence, ran: Replay, refused: list[Refusal]) -> dict[str, Unused]:
    """The moments of interest, in the order in which they are shown."""
    said = evidence.recording.events["action"]
    if not evidence.recording.segments and not np.any((said >= Action.SEGMENT_ALLOC) & (said <= Action.SEGMENT_UNMAP)):
        return {}
    found = {"peak": unused(evidence, evidence.peak)}
    if refused:
        found["out of memory"] = refused[0].state
    elif len(ran.timeline):
        found["reserved peak"] = unused(evidence, _most_reserved(evidence, ran))
    found["end"] = unused(evidence, len(evidence) - 1)
    return found


def _most_reserved(evidence: Evidence, ran: Replay) -> int:
    """The first event after which most was reserved, and what it was asked for is in use."""
    settled = ran.timeline[evidence.recording.events["action"][ran.timeline[:, 0]] <= Action.FREE_COMPLETED]
    return int(settled[np.argmax(settled[:, 2]), 0]) if len(settled) else -1
