"""CSV: a row an event, for pandas and spreadsheets.

The first columns are the event's own (:class:`~tinygrad_mem.memory.log.Event`). ``block`` is the number of the event with
which the block concerned was born, and ``category`` what the block is now: both are empty where the event is about none, and
``category`` when the block is freed. Then the pool's bytes after the event: in use, and of these each category's, in a column
of its name.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..attribution import CATEGORIES, CODE, NOWHERE
from ..log import RECORD, TEXTS, Kind, Log
from .walk import LogPart, walk

_NAMES = tuple(RECORD.names or ())
_POOLS = [code for name, code in CODE.items() if name != "UNCOUNTED"]
HEADER = ("event", "time_ns", *(name for name in _NAMES if name != "time"), "block", "category", "used")
HEADER = (*HEADER, *(CATEGORIES[code].value for code in _POOLS))
_ROW = ",".join(["%s"] * len(HEADER)) + "\r\n"
_KINDS = [kind.name.lower() for kind in Kind]
_NOW = [category.value for category in CATEGORIES] + [""] * (NOWHERE + 1 - len(CATEGORIES))


def write(log: Log, file: IO[bytes]) -> None:
    """Write the log as it is now."""
    file.write(_ROW.encode() % tuple(name.encode() for name in HEADER))
    quoted: list[str] = []
    totals = np.zeros(NOWHERE + 1, np.int64)
    for part in walk(log):
        quoted.extend(_quoted(text) for text in log.texts[len(quoted) :])
        rows = zip(*_events(part, quoted), *_bytes(part, totals), strict=True)
        file.write("".join(map(_ROW.__mod__, rows)).encode("utf-8", "backslashreplace"))


def _quoted(text: str) -> str:
    special = any(character in text for character in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if special else text


def _events(part: LogPart, texts: list[str]) -> list:
    """The columns that say what happened."""
    columns = {name: part.records[name].tolist() for name in _NAMES}
    columns["kind"] = [_KINDS[kind] for kind in columns["kind"]]
    columns.update({name: [texts[code] for code in columns[name]] for name in TEXTS})
    times = columns.pop("time")
    blocks = ["" if block < 0 else block for block in part.block.tolist()]
    now = [_NOW[code] for code in part.after.tolist()]
    return [range(part.start, part.start + len(part.records)), times, *columns.values(), blocks, now]


def _bytes(part: LogPart, totals: np.ndarray) -> list:
    """The columns of bytes after each event; ``totals`` are those before the part, and then those after it."""
    columns = []
    for code in _POOLS:
        change = np.where(part.after == code, part.size, 0) - np.where(part.before == code, part.size, 0)
        columns.append(totals[code] + np.cumsum(change))
        totals[code] = columns[-1][-1]
    return [column.tolist() for column in (np.sum(columns, axis=0), *columns)]
