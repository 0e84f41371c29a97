"""A trace for Perfetto (https://ui.perfetto.dev) in Chrome's JSON format: counters of bytes, and slices of the running code.

There is a counter for the bytes in use, one for the reserved bytes, and one for each category. In each thread the phase, the
modules and the op are slices, one above the other. A log records allocations and no calls, so a slice goes from the first event
in it to the next event elsewhere. Marks are instants across all threads.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate, takewhile
from typing import IO

import numpy as np

from ..attribution import CATEGORIES, NOWHERE, Attribution, walk
from ..log import Kind, Log

_PID = 1
_COUNTER = f',\n{{"ph":"C","pid":{_PID},"name":"%s","ts":%%.3f,"args":{{"bytes":%%d}}}}'
_EVENT = f',\n{{"ph":"%s","pid":{_PID},"tid":%d,"ts":%.3f,"name":%s%s}}'
_THREAD = f',\n{{"ph":"M","pid":{_PID},"tid":%d,"name":"thread_name","args":{{"name":"thread %d"}}}}'
_WHERE = [kind in (Kind.MALLOC, Kind.FREE, Kind.OUTSIDE, Kind.MARK) for kind in Kind]  # kinds of events that say where
_MOVES = np.array(_WHERE)


def write(log: Log, file: IO[bytes]) -> None:
    """Write the log's present events."""
    name = json.dumps(f"memory of {log.device}")
    file.write(f'{{"traceEvents":[\n{{"ph":"M","pid":{_PID},"name":"process_name","args":{{"name":{name}}}}}'.encode())
    counters, slices = _Counters(), _Slices(log.texts)
    for records, part in walk(log):
        for events in (counters.read(records, part), slices.read(records)):
            file.write("".join(events).encode())
    file.write("".join(slices.end()).encode())
    file.write(b'\n],"displayTimeUnit":"ns"}\n')


class _Counters:
    """The counters of the pool's bytes. Each has a value at every event that changes it."""

    def __init__(self) -> None:
        self._totals = np.zeros(NOWHERE + 1, np.int64)
        self._used = self._reserved = 0

    def read(self, records: np.ndarray, part: Attribution) -> Iterator[str]:
        time, size = records["time"] / 1000, part.size  # microseconds
        now, before = (np.where(column != NOWHERE, size, 0) for column in (part.after, part.before))
        yield from self._counter("in use", time, now - before, self._used)
        self._used += int((now - before).sum())
        for code in np.unique([part.before, part.after]):
            if code != NOWHERE:
                change = np.where(part.after == code, size, 0) - np.where(part.before == code, size, 0)
                yield from self._counter(CATEGORIES[code].value, time, change, int(self._totals[code]))
                self._totals[code] += change.sum()
        kind, rounded = records["kind"], records["rounded"].astype(np.int64)
        change = np.where(kind == Kind.RESERVE, rounded, 0) - np.where(kind == Kind.RELEASE, rounded, 0)
        yield from self._counter("reserved", time, change, self._reserved)
        self._reserved += int(change.sum())

    def _counter(self, name: str, time: np.ndarray, change: np.ndarray, start: int) -> Iterable[str]:
        at = np.flatnonzero(change)
        values = (start + np.cumsum(change[at])).tolist()
        return map((_COUNTER % name).__mod__, zip(time[at].tolist(), values, strict=True))


class _Slices:
    """The slices of each thread. A slice ends, and the next begins, between two events that belong to different slices."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._open: dict[int, list[str]] = {}  # thread -> the names of its open slices, the outermost first
        self._inside: dict[tuple[int, int, int], list[str]] = {}  # phase, module, op -> names of slices
        self._last = 0.0

    def read(self, records: np.ndarray) -> Iterator[str]:
        records = records[_MOVES[records["kind"]]]
        if not len(records):
            return
        self._last = float(records["time"].max()) / 1000
        records = records[_moves(records)]
        columns = (records[name].tolist() for name in ("kind", "thread", "note", "phase", "module", "op"))
        for kind, thread, note, *where, time in zip(*columns, (records["time"] / 1000).tolist(), strict=True):
            if kind == Kind.MARK:
                yield _EVENT % ("i", thread + 1, time, json.dumps(self._texts[note]), ',"s":"g"')
            yield from self._enter(thread, time, self._names(*where))

    def _names(self, phase: int, module: int, op: int) -> list[str]:
        """The names of the slices of an event, as JSON."""
        found = self._inside.get((phase, module, op))
        if found is None:
            texts = [self._texts[code] for code in (phase, module, op)]
            modules = accumulate(texts[1].split("."), "{}.{}".format)
            names = ["" if texts[0] == "user" else texts[0], *modules, texts[2]]
            found = self._inside[phase, module, op] = [json.dumps(name) for name in names if name]
        return found

    def _enter(self, thread: int, time: float, inside: list[str]) -> Iterator[str]:
        """End the slices that the thread has left, and begin the slices that it has entered."""
        if thread not in self._open:
            self._open[thread] = []
            yield _THREAD % (thread + 1, thread)
        opened = self._open[thread]
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(opened, inside, strict=False)))
        for name in reversed(opened[common:]):
            yield _EVENT % ("E", thread + 1, time, name, "")
        for name in inside[common:]:
            yield _EVENT % ("B", thread + 1, time, name, "")
        self._open[thread] = inside

    def end(self) -> Iterator[str]:
        """End all open slices."""
        for thread in self._open:
            yield from self._enter(thread, self._last, [])


def _moves(records: np.ndarray) -> np.ndarray:
    """The numbers of marks, and of events in another place than their thread's event before."""
    order = np.argsort(records["thread"], kind="stable")
    ordered = records[order]
    moved = np.ones(len(order), bool)
    moved[1:] = np.any([ordered[name][1:] != ordered[name][:-1] for name in ("thread", "phase", "module", "op")], axis=0)
    return np.sort(order[moved | (ordered["kind"] == Kind.MARK)])
