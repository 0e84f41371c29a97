"""The log of a network with many equal layers, from the logs of the same network with few of them.

Where layers are equal, each part of a run (making the network, forward, backward, the optimizer) repeats a piece of the log,
once for each layer. Two logs, one of which has a layer more, show where the pieces are. From one layer to the next, and from
one network to the next, each number in a piece changes by a constant: which event allocated the block, and the layer's number
in a path. So these numbers are known for any number of layers. Addresses are not: a pool serves all events again.

The last of the logs is a check: it must follow from those before it, event for event. If it does not, nothing is unrolled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..devices.pool import Pool
from .log import TEXTS, Kind, Log
from .track import Track

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path
_UNKNOWN = -2
_ENOUGH = 16  # events after a piece, to be sure where it ends


def repeated(predict: Callable[[int], Track], layers: int, period: int = 1) -> Track | None:
    """The track of ``predict(layers)``, from four with fewer layers, or five.

    Args:
        predict: the track of a run of the network with the given number of layers. It must do the same for each layer, whatever
            their number is. Its model must outlive the graph: Python frees long chains of objects in an order of its own.
        period: the number of layers after which their kinds repeat.

    Returns:
        ``None`` if it is no faster, or if the tracks do not follow from each other: see :func:`unrolled`.
    """
    fewest = 3 * period + layers % period  # two and the first, which is special
    counts = range(fewest, fewest + 4 * period, period)
    if sum(counts) > layers:
        return None
    logs, steps = [predict(count).log for count in counts], (layers - fewest) // period
    log = unrolled(logs, steps)
    if log is None:  # the layers near both ends differ from the others farther inwards
        log = unrolled([*logs[1:], predict(counts[-1] + period).log], steps - 1)
    return None if log is None else Track.of(log)


def unrolled(logs: Sequence[Log], steps: int) -> Log | None:
    """The log of the network that is ``steps`` steps after the first of four, each of which has a step's layers more.

    The times in it are the numbers of the events.

    Returns:
        ``None`` if the fourth log does not follow from the others: layers are not equal, or a number does not change evenly.
    """
    texts = _Texts()
    *read, wanted = [_Read.of(log, texts) for log in logs]
    rule = _Rule.of(*read) if all(each.complete for each in (*read, wanted)) else None
    if rule is None or not rule.gives(wanted) or not _same(rule.log(3, texts, logs[3].device), logs[3]):
        return None
    return rule.log(steps, texts, logs[3].device)


class _Texts:
    """Texts without the numbers of layers in them, and their codes, the same for all logs."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def of(self, log: Log) -> tuple[np.ndarray, np.ndarray]:
        """For each text of ``log``, its code here, and the two numbers that it has at most."""
        bare = [NUMBER.sub("\0", text, 2) for text in log.texts]
        numbers = [[*map(int, NUMBER.findall(text)[:2]), 0, 0][:2] for text in log.texts]
        return np.array([self.codes.setdefault(text, len(self.codes)) for text in bare]), np.array(numbers)

    def fill(self, log: Log, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The codes in ``log`` of texts with their numbers."""
        names, bounds = list(self.codes), numbers.max(0) + 1 if len(numbers) else np.ones(2, np.int64)
        low, high = bounds.tolist()
        found, places = np.unique((codes.astype(np.int64) * low + numbers[:, 0]) * high + numbers[:, 1], return_inverse=True)
        rows = zip((found // high // low).tolist(), (found // high % low).tolist(), (found % high).tolist(), strict=True)
        whole = [names[code].replace("\0", str(a), 1).replace("\0", str(b), 1) for code, a, b in rows]
        return np.array(log.codes(whole), "u4")[places]


class _Read(NamedTuple):
    """A log without the segments of its pool."""

    records: np.ndarray  # its events, without times and addresses; their texts are those of _Texts
    numbers: np.ndarray  # for each event, the number of the event that allocated its block, or -1; then two for each text
    complete: bool  # the blocks of all events are known

    @classmethod
    def of(cls, log: Log, texts: _Texts) -> _Read:
        records = log.records()
        records = records[records["kind"] != Kind.RESERVE]
        block, latest = [], {0: -1}  # the latest block at an address: a role may end just after its block is freed
        for at, (kind, address) in enumerate(zip(records["kind"].tolist(), records["address"].tolist(), strict=True)):
            if kind == Kind.MALLOC:
                latest[address] = at
            block.append(latest.get(address, _UNKNOWN))
        complete = _UNKNOWN not in block and not np.isin(records["kind"], (Kind.OLDER, Kind.RELEASE)).any()
        bare, inside = texts.of(log)
        numbers = np.concatenate([np.array(block)[:, None], *(inside[records[name]] for name in TEXTS)], 1)
        for name in TEXTS:
            records[name] = bare[records[name]]
        records["time"] = records["address"] = 0
        return cls(records, numbers, complete)


class _Rule(NamedTuple):
    """The growth of a log with each step."""

    pieces: list[tuple[int, int]]  # (start, length) in the log of one step, of what the step added
    first: _Read  # that log
    by_step: np.ndarray  # what each step adds to its numbers
    by_turn: np.ndarray  # what each repetition of a piece adds

    @classmethod
    def of(cls, zero: _Read, one: _Read, two: _Read) -> _Rule | None:
        """The rule of the logs of no step, one and two; ``None`` if there is none."""
        pieces = _pieces(*_symbols(zero.records, one.records))
        if pieces is None:
            return None
        rule = cls(pieces, one, np.zeros_like(one.numbers), np.zeros_like(one.numbers))
        source, turn = rule.order(2)
        if len(source) != len(two.records) or (one.records[source] != two.records).any():
            return None
        once, again = two.numbers[turn == 0], turn == 1
        rule.by_step[:] = once - one.numbers
        rule.by_turn[source[again]] = two.numbers[again] - once[source[again]]
        return rule

    def order(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """For each event of the log of ``steps`` steps, its number in the first log, and how often its piece came before."""
        sources, turns, at = [], [], 0
        for start, length in [*self.pieces, (len(self.first.records), 0)]:
            sources += [np.arange(at, start), np.tile(np.arange(start, start + length), steps)]
            turns += [np.zeros(start - at, int), np.repeat(np.arange(steps), length)]
            at = start + length
        return np.concatenate(sources), np.concatenate(turns)

    def events(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The records and the numbers of the log of ``steps`` steps."""
        source, turn = self.order(steps)
        grown = self.by_step[source] * (steps - 1) + self.by_turn[source] * turn[:, None]
        return self.first.records[source], self.first.numbers[source] + grown

    def gives(self, wanted: _Read) -> bool:
        """True if the log of three steps is ``wanted``."""
        records, numbers = self.events(3)
        return np.array_equal(records, wanted.records) and np.array_equal(numbers, wanted.numbers)

    def log(self, steps: int, texts: _Texts, device: str) -> Log:
        """The log of ``steps`` steps."""
        (records, numbers), made = self.events(steps), Log(device)
        for place, name in enumerate(TEXTS):
            records[name] = texts.fill(made, records[name], numbers[:, 1 + 2 * place : 3 + 2 * place])
        made.extend(_served(records, numbers[:, 0]), np.arange(len(made.texts)))
        return made


def _symbols(*several: np.ndarray) -> list[np.ndarray]:
    """A number for each record, the same for equal ones."""
    codes: dict[tuple, int] = {}
    return [np.array([codes.setdefault(row, len(codes)) for row in records.tolist()]) for records in several]


def _pieces(short: np.ndarray, long: np.ndarray) -> list[tuple[int, int]] | None:
    """(start, length) in ``long`` of the pieces that ``short`` lacks."""
    found, i, j = [], 0, 0
    while True:
        left = min(len(short) - i, len(long) - j)
        apart = np.flatnonzero(short[i : i + left] != long[j : j + left])
        same = int(apart[0]) if len(apart) else left
        i, j = i + same, j + same
        if j == len(long):
            return found if i == len(short) else None
        length = _length(short[i:], long, j)
        if length is None:
            return None
        found.append((_middle(long, j, length), length))
        j += length


def _middle(long: np.ndarray, at: int, length: int) -> int:
    """The start of the middle one of the repetitions that end with the piece at ``at``. Numbers differ near both ends."""
    piece, count = long[at : at + length], 0
    while np.array_equal(long[max(at - (count + 1) * length, 0) : at - count * length], piece):
        count += 1
    return at - (count + 1) // 2 * length


def _length(rest: np.ndarray, long: np.ndarray, at: int) -> int | None:
    """The length of the piece at ``at``: it repeats the events before it, and ``rest`` continues after it."""
    for length in range(1, min(at, len(long) - at) + 1):
        after = long[at + length : at + length + min(length, _ENOUGH)]
        again = np.array_equal(long[at - length : at], long[at : at + length])
        if again and np.array_equal(rest[: len(after)], after):
            return length
    return None


def _served(records: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The events with addresses, and the segments that a pool takes for them. ``block``: the number of each one's malloc."""
    pool, chunks, grown = Pool("meta", reserve=False), {}, []
    addresses = np.zeros(len(records) + 1, "u8")  # of the blocks; the last, which is -1 too, is where there is none
    about = np.flatnonzero((records["kind"] == Kind.MALLOC) | (records["kind"] == Kind.FREE))
    freed, sizes = records["kind"][about] == Kind.FREE, records["rounded"][about]
    for at, malloc, size, free in zip(about.tolist(), block[about].tolist(), sizes.tolist(), freed.tolist(), strict=True):
        if free:
            pool._release(chunks.pop(malloc))
            continue
        chunk = pool._best_fit(size)
        if chunk is None:
            chunk = pool._grow(size, size)
            grown.append(at)
        chunks[at], addresses[at] = chunk, chunk.address
    records["address"] = addresses[block]
    segments = records[grown]
    segments["kind"], segments["requested"], segments["role"] = Kind.RESERVE, 0, 0
    records = np.insert(records, grown, segments)
    records["time"] = np.arange(len(records))
    return records


def _same(one: Log, other: Log) -> bool:
    """True if two logs have the same events, apart from their times."""
    mine, theirs = one.records(), other.records()
    if len(mine) != len(theirs):
        return False
    codes = np.array(one.codes(other.texts), "u4")
    for name in TEXTS:
        theirs[name] = codes[theirs[name]]
    theirs["time"] = mine["time"]
    return not (mine != theirs).any()
