"""The changes from iteration to iteration: blocks that become more, blocks that stay, and blocks that are kept too long.

Blocks are counted at the ends of iterations, when activations and temporaries are freed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .evidence import Evidence, category
from .iterations import LEAST, Iterations
from .recording import Action
from .settings import SMALL

_MOST = 1000  # the last iterations, which are examined
_LONG = 0.1  # share of an iteration's requests: blocks that are freed earlier in the next one were not kept too long
_NOTED = 0.01  # share of the peak: smaller blocks that stay or are kept are not reported


@dataclass
class Grown:
    """A line whose blocks become more, or larger, from iteration to iteration."""

    line: str  # the line that allocated them
    category: str
    bytes: int  # from the end of the first iteration to the end of the last; if the bytes fall in between, their maximum
    each: int | None  # bytes that are added in each iteration that adds some; None if these differ
    asked: int | None  # the same for requested bytes, before rounding, and without the rest of a free block
    iterations: int  # that added some
    of: int  # iterations in all
    blocks: int  # that were added; 0 if there are as many, but larger ones
    falls: int  # times that the bytes fell, as for reference cycles, which wait for Python's garbage collector


@dataclass
class Came:
    """Blocks that were allocated in one iteration and stayed to the end. ``iteration`` is its number, from 1."""

    line: str
    category: str
    bytes: int
    blocks: int
    iteration: int


@dataclass
class Kept:
    """Blocks of one iteration that are alive far into the next: at most ``bytes`` at once, freed at the line ``until``."""

    line: str
    category: str
    bytes: int
    blocks: int
    until: str


@dataclass
class Varied:
    """A line whose sizes differ between iterations: blocks of one iteration do not fit the requests of the next."""

    line: str
    category: str
    least: int  # the largest request of an iteration: its least value
    most: int  # and its greatest
    sizes: int  # different values
    of: int  # iterations
    rises: bool  # each is larger than the one before


@dataclass
class Growth:
    """The changes from iteration to iteration; each list has most bytes first."""

    iterations: int  # ends of iterations
    how: str  # how they were found, or why there are none
    peaks: list[int] = field(default_factory=list)  # allocated bytes in each iteration; the first begins with the recording
    grown: list[Grown] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    varied: list[Varied] = field(default_factory=list)


def growth(evidence: Evidence, found: Iterations) -> Growth:
    """Find the changes. With fewer than four ends of iterations, only blocks that were added and stayed are reported."""
    result = Growth(len(found.ends), found.how)
    if not len(found.ends):
        return result
    starts = np.concatenate([[0], found.ends[:-1] + 1])
    result.peaks = np.maximum.reduceat(evidence.used[1 : found.ends[-1] + 2], starts).tolist()
    ends = found.ends[-_MOST:]
    before = len(found.ends) - len(ends)
    first = np.searchsorted(ends, evidence.blocks.born)  # the first end of an iteration at which each block may be alive
    last = np.searchsorted(ends, evidence.blocks.freed)  # and the first at which it no longer is
    result.came = _find_stayed(evidence, first, last, len(ends), before)
    if len(ends) >= LEAST + 1:
        result.grown = _find_grown(evidence, first, last, len(ends))
        result.kept = _find_kept(evidence, first, last, ends)
        result.varied = _find_varied(evidence, first, len(ends))
    grown = {each.line for each in result.grown}
    result.varied = [each for each in result.varied if each.line not in grown]
    result.came = [each for each in result.came if each.line not in grown]
    return result


def _find_grown(evidence: Evidence, first: np.ndarray, last: np.ndarray, count: int) -> list[Grown]:
    over = np.flatnonzero(last > first)
    owners, row = np.unique(evidence.owner[over], return_inverse=True)
    change = np.zeros((3, len(owners), count + 1), np.int64)  # bytes, blocks, requested bytes; by line, at ends of iterations
    amounts = evidence.blocks.size[over], np.ones(len(over), np.int64), evidence.blocks.requested[over]
    for place, sign in ((first, 1), (last, -1)):
        for what, amount in zip(change, amounts, strict=True):
            np.add.at(what, (row, place[over]), sign * amount)
    there = np.cumsum(change, axis=2)[:, :, :-1]
    steps, asked = np.diff(there[0], axis=1), np.diff(there[2], axis=1)
    more, less = (steps > 0).sum(1), (steps < 0).sum(1)
    total = there[:, :, -1] - there[:, :, 0]
    found = []
    total[0] = np.where(less > 0, there[0].max(1) - there[0].min(1), total[0])
    for at in np.flatnonzero((more >= LEAST) & (total[0] > 0) & (more >= LEAST * less)).tolist():
        owner, rose = owners[at], steps[at] > 0
        same, requested = (_common_value(each[at][rose]) for each in (steps, asked))
        mine = over[evidence.owner[over] == owner]
        rules = evidence.rules[mine[first[mine] > 0]]
        what = category(int(np.argmax(np.bincount(rules)))) if len(rules) else ""
        numbers = int(total[0, at]), same, requested, int(more[at]), count - 1, int(total[1, at]), int(less[at])
        found.append(Grown(evidence.owners[owner], what, *numbers))
    return sorted(found, key=lambda each: -each.bytes)


def _common_value(numbers: np.ndarray) -> int | None:
    return int(numbers[0]) if len(np.unique(numbers)) == 1 else None


def _find_stayed(evidence: Evidence, first: np.ndarray, last: np.ndarray, count: int, before: int) -> list[Came]:
    """Optimizer state of any iteration, and other blocks that were added after the first. ``before`` are left out."""
    blocks = evidence.blocks
    state = np.array([category(rule).startswith("optimizer state") for rule in range(256) if rule <= evidence.rules.max()])
    stays = (blocks.born >= 0) & (last == count) & (first < count) & (blocks.freed == len(evidence))
    found = []
    for number in np.unique(first[stays]).tolist():
        here = np.flatnonzero(stays & (first == number))
        if number == count - 1 > 0 or (number == 0 and before):
            continue  # the recording does not show whether it stays, or when it was added
        here = here if number else here[state[evidence.rules[here]]]
        found += [
            Came(share.line, share.category, share.bytes, share.blocks, before + number + 1) for share in evidence.shares(here)
        ]
    large = [each for each in found if each.bytes >= _NOTED * evidence.used.max()]
    return sorted(large, key=lambda each: -each.bytes)


def _find_kept(evidence: Evidence, first: np.ndarray, last: np.ndarray, ends: np.ndarray) -> list[Kept]:
    """Blocks that are allocated in one iteration and freed well after the next has begun."""
    blocks, events = evidence.blocks, evidence.recording.events
    asked = np.cumsum(events["action"] == Action.ALLOC)
    whole = float(np.median(np.diff(asked[ends])))
    over = np.flatnonzero((last == first + 1) & (last < len(ends)) & (blocks.born >= 0))
    since = asked[blocks.freed[over]] - asked[ends[first[over]]]
    over = over[since > max(_LONG * whole, 1)]
    found = []
    for owner in np.unique(evidence.owner[over]).tolist():
        mine = over[evidence.owner[over] == owner]
        often, bytes_ = np.bincount(first[mine]), np.bincount(first[mine], blocks.size[mine])
        if (often > 0).sum() < max(LEAST, len(ends) // 2 - 1):
            continue
        rule = int(np.argmax(np.bincount(evidence.rules[mine], blocks.size[mine])))
        stack = int(np.argmax(np.bincount(blocks.end_stack[mine], blocks.size[mine])))
        most = int(np.argmax(bytes_))
        if bytes_[most] < _NOTED * evidence.used.max():
            continue
        until = evidence.line_of(stack, int(blocks.freed[mine[0]]))
        found.append(Kept(evidence.owners[owner], category(rule), int(bytes_[most]), int(often[most]), until))
    return sorted(found, key=lambda each: -each.bytes)


def _find_varied(evidence: Evidence, first: np.ndarray, count: int) -> list[Varied]:
    """The lines whose largest request changes in more than half of the iterations."""
    blocks = evidence.blocks
    large = np.flatnonzero((blocks.requested > SMALL) & (first < count) & (blocks.born >= 0))
    owners, row = np.unique(evidence.owner[large], return_inverse=True)
    largest = np.zeros((len(owners), count), np.int64)
    np.maximum.at(largest, (row, first[large]), blocks.requested[large])
    found = []
    for owner, asked in zip(owners.tolist(), largest, strict=True):
        asked = asked[asked > 0]
        sizes = len(np.unique(asked))
        if sizes > max(LEAST, count // 2):
            mine = large[evidence.owner[large] == owner]
            rule = int(np.argmax(np.bincount(evidence.rules[mine], blocks.size[mine])))
            numbers = int(asked.min()), int(asked.max()), sizes, len(asked), bool(np.all(np.diff(asked) > 0))
            found.append(Varied(evidence.owners[owner], category(rule), *numbers))
    return sorted(found, key=lambda each: -each.most)
