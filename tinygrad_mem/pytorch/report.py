"""The first answers about a snapshot: the owners of the peak, stuck bytes, growth, and requests that failed."""

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
    """The blocks of one line at the peak. ``without``: the peak without them, if all else were the same."""

    line: str
    category: str
    bytes: int
    blocks: int
    without: int | None


@dataclass
class Peak:
    """The moment at which most bytes were allocated."""

    event: int  # the number of the event before it; -1 if it is before the first
    bytes: int
    phase: str  # the part of a training step, "" if unknown
    iteration: int | None  # the number of its iteration, from 1; None if unknown
    owners: list[Owner]  # the largest first; their bytes add up to the peak's


@dataclass
class Report:
    """The answers for one device of a snapshot."""

    device: int
    settings: str  # the recorded settings of the allocator; "" for PyTorch's defaults, or if unknown
    events: int
    seconds: float | None  # from the first event to the last; None if events have no times
    requests: int  # allocations
    as_recorded: int  # those that the model of the allocator put at the recorded address
    assumed: int  # older blocks whose length is not sure
    peak: Peak
    peak_reserved: int
    moments: dict[str, Unused]  # peak, out of memory or reserved peak, end; empty if the file names no segments
    growth: Growth
    refused: int  # requests that failed
    refusals: list[Refusal]  # the first few of them

    def data(self) -> dict[str, Any]:
        """All answers as plain dicts, lists, texts and numbers."""
        return asdict(self)


def report(evidence: Evidence, top: int = 5) -> Report:
    """The answers for one device. ``top``: the number of owners for which the peak without them is computed."""
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
    elif len(ran.timeline):  # the first event after which most was reserved and the requested block is in use
        settled = ran.timeline[said[ran.timeline[:, 0]] <= Action.FREE_COMPLETED]
        found["reserved peak"] = unused(evidence, int(settled[np.argmax(settled[:, 2]), 0]) if len(settled) else -1)
    found["end"] = unused(evidence, len(evidence) - 1)
    return found
