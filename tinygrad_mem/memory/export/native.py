"""The track's own file format: JSON in lines, so that writer and reader hold only one line in memory.

The first line opens an object: the format, the device, the number of events. Each line after it is an object of columns, for
65,536 events at most: their numbers, and the texts that occur in them for the first time (a text's code is its place among
all texts). The last line closes everything. Reading runs no code from the file and checks all of it.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from ...errors import FileFormatError
from ...files import unpacked
from ...safetensors import no_duplicates
from ..attribution import CODE
from ..log import RECORD, TEXTS, Kind, Log

VERSION = 1
_MARK = b'{"format":"tinygrad_mem.track",'
_END = b"]}\n"
_EVENTS = 1 << 16  # of one line
_LINE = 1 << 26  # bytes; no line that is longer was written here
_HEAD = 4096  # of the first line
_MOST = (1 << 31) - 1  # events that can be numbered
_NAMES = RECORD.names or ()
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def write(log: Log, file: IO[bytes]) -> None:
    """Write the log's present events."""
    file.writelines(lines(log))


def lines(log: Log) -> Iterator[bytes]:
    """The lines of the file."""
    pieces = [chunk[i : i + _EVENTS] for chunk in log.chunks() for i in range(0, len(chunk), _EVENTS)]
    head = {"format": "tinygrad_mem.track", "version": VERSION, "device": log.device, "events": sum(map(len, pieces))}
    yield _json(head)[:-1] + b',"chunks":[\n'
    known = 0
    for number, piece in enumerate(pieces, 1):
        top = max(known, *(int(piece[name].max()) + 1 for name in TEXTS))
        columns = {"texts": log.texts[known:top], **{name: piece[name].tolist() for name in _NAMES}}
        yield _json(columns) + (b",\n" if number < len(pieces) else b"\n")
        known = top
    yield _END


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read(path: str | os.PathLike) -> Log:
    """The log of a file that :func:`write` wrote, with or without gzip.

    Raises:
        FileFormatError: it is another kind of file, damaged, or incomplete.
    """
    with open(path, "rb") as file:
        return read_from(file, os.fspath(path))


def read_from(file: IO[bytes], what: str) -> Log:
    """As :func:`read`, from an open file; ``what`` is its name in errors."""
    return unpacked(file, what, lambda plain: _read_log(plain, what))


def _read_log(file: IO[bytes], what: str) -> Log:
    line = file.readline(_HEAD)
    if not line.startswith(_MARK):
        raise FileFormatError(f"{what} is not a track: {_foreign(line)}; memory.load reads what Track.save wrote as .json")
    log, events = _head(line, what)
    texts: list[str] = []
    codes = array("I")
    count = 0
    while (line := file.readline(_LINE)) != _END:
        if not line.endswith(b"\n"):
            raise FileFormatError(f"{what} is incomplete: it ends after {count:,} of {events:,} events")
        try:
            records = _records(line, texts)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FileFormatError(f"{what}: the events from number {count:,} on are damaged: {error}") from None
        count += len(records)
        if count > events:
            break
        codes.extend(log.codes(texts[len(codes) :]))
        log.extend(records, np.frombuffer(codes, np.uint32))
    if count != events or file.read(1):
        raise FileFormatError(f"{what} is damaged: it does not have the {events:,} events that its first line says")
    return log


def _foreign(line: bytes) -> str:
    """The kind of a foreign file, judged by its first line."""
    for start, kind in (
        (b"\x80", "it looks like a pickle, such as PyTorch's snapshots; load() never reads pickles: they can run any code"),
        (b'{"traceEvents"', "it is a trace for Perfetto"),
        (b"event,time_ns,", "it is a table"),
    ):
        if line.startswith(start):
            return kind
    return f"it begins with {line[:20]!r}" if line else "it is empty"


def _head(line: bytes, what: str) -> tuple[Log, int]:
    """An empty log, and the number of events that follow."""
    try:
        head = json.loads(line + b"]}")
        version, device, events = head["version"], head["device"], head["events"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileFormatError(f"{what}: the first line is damaged: {error}") from None
    if version != VERSION:
        raise FileFormatError(f"{what} has version {version!r:.20}, this program reads {VERSION}; use the newer program")
    if not isinstance(device, str) or type(events) is not int or not 0 <= events <= _MOST:
        raise FileFormatError(f"{what}: the first line is damaged: {events!r:.20} events of device {device!r:.20}")
    return Log(device), events


def _records(line: bytes, texts: list[str]) -> np.ndarray:
    """The events of one line; its new texts are appended to ``texts``."""
    if _count_nested(line) - sum(_count_nested(found[0]) for found in _STRING.finditer(line)) > len(_NAMES) + 2:
        raise ValueError("expected one object of columns in a line")  # checked before json makes forty bytes of each
    columns = json.loads(line.removesuffix(b"\n").removesuffix(b","), object_pairs_hook=no_duplicates)
    fresh, length = columns["texts"], len(columns["kind"])
    if not isinstance(fresh, list) or not all(isinstance(text, str) for text in fresh):
        raise ValueError("expected a list of texts")
    texts.extend(fresh)
    records = np.empty(length, RECORD)
    for name in _NAMES:
        records[name] = _column(name, columns[name], length, len(texts))
    roles = np.unique(records["role"]).tolist()
    unknown = [texts[code] for code in roles if texts[code] and texts[code] not in CODE]
    if unknown:
        raise ValueError(f"unknown role {unknown[0]!r:.40}")
    return records


def _count_nested(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _column(name: str, values: Any, length: int, texts: int) -> np.ndarray:
    """One column, checked: a whole number for each event, each below ``limit``."""
    limit = {"kind": len(Kind), **dict.fromkeys(TEXTS, texts)}.get(name, min(np.iinfo(RECORD[name]).max, 1 << 62) + 1)
    try:
        column = array("Q", values)
    except (TypeError, OverflowError):
        column = array("Q")
    if not 0 < len(column) == length or max(column) >= limit:
        raise ValueError(f"{name!r} is not a column of {length:,} numbers below {limit:,}")
    return np.frombuffer(column, np.uint64)
