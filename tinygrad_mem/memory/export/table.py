"""CSV with one row per event, for pandas and spreadsheets.

The first columns are the fields of :class:`~tinygrad_mem.memory.log.Event`. ``block`` is the number of the event that
allocated the block, and ``category`` the block's category after the event. Both are empty if the event is about no block;
``category`` is also empty when the block is freed. The other columns are the pool's bytes after the event: all bytes in use,
then those of each category.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..attribution import CATEGORIES, NOWHERE, Attribution, walk
from ..log import RECORD, TEXTS, Kind, Log

_NAMES = tuple(RECORD.names or ())
HEADER = ("event", "time_ns", *(name for name in _NAMES if name != "time"), "block", "category", "used")
HEADER = (*HEADER, *(category.value for category in CATEGORIES))
_ROW = ",".join(["%s"] * len(HEADER)) + "\r\n"
_KINDS = [kind.name.lower() for kind in Kind]
_NOW = [category.value for category in CATEGORIES] + [""] * (NOWHERE + 1 - len(CATEGORIES))


def write(log: Log, file: IO[bytes]) -> None:
    """Write the log's present events."""
    file.write(_ROW.encode() % tuple(name.encode() for name in HEADER))
    quoted: list[str] = []
    totals, start = np.zeros(NOWHERE + 1, np.int64), 0
    for records, part in walk(log):
        quoted.extend(_quoted(text) for text in log.texts[len(quoted) :])
        rows = zip(range(start, start + len(records)), *_events(records, part, quoted), *_bytes(part, totals), strict=True)
        start += len(records)
        file.write("".join(map(_ROW.__mod__, rows)).encode("utf-8", "backslashreplace"))


def _quoted(text: str) -> str:
    special = any(character in text for character in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if special else text


def _events(records: np.ndarray, part: Attribution, texts: list[str]) -> list:
    """The columns with the events' fields."""
    columns = {name: records[name].tolist() for name in _NAMES}
    columns["kind"] = [_KINDS[kind] for kind in columns["kind"]]
    columns.update({name: [texts[code] for code in columns[name]] for name in TEXTS})
    times = columns.pop("time")
    blocks = ["" if block < 0 else block for block in part.block.tolist()]
    now = [_NOW[code] for code in part.after.tolist()]
    return [times, *columns.values(), blocks, now]


def _bytes(part: Attribution, totals: np.ndarray) -> list:
    """The columns of bytes after each event. ``totals``: the bytes before these events, changed to those after them."""
    columns = []
    for code in range(len(CATEGORIES)):
        change = np.where(part.after == code, part.size, 0) - np.where(part.before == code, part.size, 0)
        columns.append(totals[code] + np.cumsum(change))
        totals[code] = columns[-1][-1]
    return [column.tolist() for column in (np.sum(columns, axis=0), *columns)]
