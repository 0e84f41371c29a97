"""The moments at which one iteration of a training loop ends and the next begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .evidence import Evidence
from .recording import Action

LEAST = 3  # with fewer ends of iterations, changes between iterations are not reported
_SAME = 0.95  # share of the requests that must be the same one period later
_CANDIDATES = 40


class Iterations(NamedTuple):
    """The iterations of a recording."""

    ends: np.ndarray  # events that end an iteration; those before the first and after the last are incomplete iterations
    how: str  # how they were found, in words; or why they were not


def iterations(evidence: Evidence) -> Iterations:
    """Find the iterations by the optimizer's steps; if there are none, by forward and backward passes, or else by
    repetition."""
    found = _by_optimizer(evidence) or _by_passes(evidence) or _by_repetition(evidence)
    if found is None:
        return Iterations(
            np.empty(0, np.int64), "no stack names an optimizer, and no sequence of requests comes three times in a row"
        )
    return found


def _by_optimizer(evidence: Evidence) -> Iterations | None:
    """The ends of the optimizer's steps; of several optimizers, those of the last one."""
    moved = evidence.recording.events["action"] <= Action.FREE_COMPLETED
    at = np.flatnonzero(moved & (evidence.recording.events["stack"] > 0))
    stacks, which = np.unique(evidence.recording.events["stack"][at], return_inverse=True)
    inside = np.array([evidence.origins.of(int(stack)).phase == "optimizer" for stack in stacks], bool)[which.reshape(-1)]
    last = at[inside & ~np.append(inside[1:], False)]
    if not len(last):
        return None
    others = np.cumsum(~inside & (evidence.recording.events["action"][at] == Action.ALLOC))
    done = others[np.searchsorted(at, last)]
    last = last[np.append(np.diff(done) > 0, True)]  # another line allocates between two steps
    lines = [evidence.line_of(int(stack)) for stack in evidence.recording.events["stack"][last]]
    ends = last[[line == lines[-1] for line in lines]]
    return Iterations(ends, f"by the optimizer's steps, {lines[-1]}")


def _by_passes(evidence: Evidence) -> Iterations | None:
    """The events before each forward that follows a backward."""
    begins = np.flatnonzero(np.diff(evidence.parts.step[:-1])) if len(evidence) else np.empty(0, np.int64)
    return Iterations(begins, "by forward after backward; no stack names an optimizer") if len(begins) else None


def _by_repetition(evidence: Evidence) -> Iterations | None:
    """Find requests that repeat in the same order: each period ends where least is in use."""
    events = evidence.recording.events
    asked = np.flatnonzero(events["action"] == Action.ALLOC)
    for columns in (["stack", "size"], ["stack"]):
        if columns == ["stack"] and not np.any(events["stack"][asked]):
            continue
        key = np.unique(events[columns][asked], return_inverse=True)[1].reshape(-1)
        period = _period(key)
        if period:
            lowest = int(np.argmin(evidence.used[asked[-period:] + 1]))
            place = np.arange(len(asked) - period + lowest, -1, -period)
            same = [np.mean(key[at : at + period][: len(key) - at - period] == key[at + period :][:period]) for at in place[1:]]
            whole = 1 + (np.cumsum(np.array(same) < _SAME) == 0).sum()  # before them the program did something else
            if whole < LEAST or whole * period < len(asked) // 2:
                continue  # it may be one of many equal layers
            ends = asked[place[:whole]][::-1] - 1
            return Iterations(ends[ends >= 0], f"by repetition: {period:,} requests repeat in the same order")
    return None


def _period(key: np.ndarray) -> int:
    """The least number of requests after which they repeat, in the later half of all; 0 if there is none."""
    order = np.argsort(key, kind="stable")
    gaps = np.diff(order)[np.diff(key[order]) == 0]
    if not len(gaps):
        return 0
    lengths, often = np.unique(gaps, return_counts=True)
    likely = np.sort(lengths[np.argsort(-often * lengths, kind="stable")][:_CANDIDATES])
    best, most = 0, _SAME
    for length in likely.tolist():
        if 3 * length <= len(key):
            start = min(len(key) // 2, len(key) - 2 * length)
            same = float((key[start:] == key[start - length : -length]).mean())
            if same > most:
                best, most = length, same
    return best
