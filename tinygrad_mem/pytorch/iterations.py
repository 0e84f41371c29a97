"""The moments at which one iteration of a training loop ends and the next begins, and how they were told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .evidence import Evidence
from .recording import Action

LEAST = 3  # ends of iterations, below which nothing is said of what changes from one to the next
_SAME = 0.95  # of all requests, that one period later the same is asked for
_CANDIDATES = 40


class Iterations(NamedTuple):
    """The iterations of a recording.

    Attributes:
        ends: numbers of the events with which an iteration ends; what was before the first and after the last is part of one.
        told: how they were told, in words; or why they were not.
    """

    ends: np.ndarray
    told: str


def iterations(evidence: Evidence) -> Iterations:
    """The iterations, told by the optimizer's steps; without any, by passes forward and backward; else by repetition."""
    found = _by_optimizer(evidence) or _by_passes(evidence) or _by_repetition(evidence)
    if found is None:
        return Iterations(
            np.empty(0, np.int64), "no stack names an optimizer, and no sequence of requests comes three times in a row"
        )
    return found


def _by_optimizer(evidence: Evidence) -> Iterations | None:
    """The ends of the optimizer's steps; of several optimizers, those of the one that comes last."""
    moved = evidence.recording.events["action"] <= Action.FREE_COMPLETED
    at = np.flatnonzero(moved & (evidence.recording.events["stack"] > 0))
    stacks, which = np.unique(evidence.recording.events["stack"][at], return_inverse=True)
    inside = np.array([evidence.origins.of(int(stack)).phase == "optimizer" for stack in stacks], bool)[which.reshape(-1)]
    last = at[inside & ~np.append(inside[1:], False)]
    if not len(last):
        return None
    others = np.cumsum(~inside & (evidence.recording.events["action"][at] == Action.ALLOC))
    done = others[np.searchsorted(at, last)]
    last = last[np.append(np.diff(done) > 0, True)]  # between two steps somebody else asks for something
    lines = [evidence.line_of(int(stack)) for stack in evidence.recording.events["stack"][last]]
    ends = last[[line == lines[-1] for line in lines]]
    return Iterations(ends, f"by the optimizer's steps, {lines[-1]}")


def _by_passes(evidence: Evidence) -> Iterations | None:
    """The events before each forward that follows a backward."""
    begins = np.flatnonzero(np.diff(evidence.parts.step[:-1])) if len(evidence) else np.empty(0, np.int64)
    return Iterations(begins, "by forward after backward; no stack names an optimizer") if len(begins) else None


def _by_repetition(evidence: Evidence) -> Iterations | None:
    """Requests that come again and again in the same order: each period ends where least is in use."""
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
            whole = 1 + (np.cumsum(np.array(same) < _SAME) == 0).sum()  # before, the program did something else
            if whole < LEAST or whole * period < len(asked) // 2:
                continue  # it may as well be a layer of many that are alike
            ends = asked[place[:whole]][::-1] - 1
            return Iterations(ends[ends >= 0], f"by repetition: {period:,} requests come again in the same order")
    return None


def _period(key: np.ndarray) -> int:
    """The least number of requests after which the same come again, in the later half of all; 0: there is none."""
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
