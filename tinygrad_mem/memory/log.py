"""The log: recorded events in order, and nothing that can be computed from them.

Other code may run between any two lines here: another thread, a garbage collection that frees a block, a signal handler. One
rule keeps the log right: each step that matters is one call of a C function or one assignment, which cannot be interrupted, and
the steps between can be repeated. An event is written by ``deque.append``. Every few thousand events the queue is packed into
columns, 59 bytes per event.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple

import numpy as np

from ..interrupts import lock


class Kind(IntEnum):
    """The kind of an event. Only ``MALLOC``, ``FREE`` and ``OLDER`` change how many bytes are in use."""

    OLDER = 0  # a block that was alive when the log began; address 0: bytes of blocks with unknown addresses
    MALLOC = 1
    FREE = 2
    ENTER = 3  # a new holder of the block, with the role ``role``
    LEAVE = 4  # that holder ended; the block itself may stay alive
    NAME = 5  # the block got a path, such as "ResNet.layer1.0.conv1.weight"
    MARK = 6  # the user marked this moment; ``note`` is the text
    RESERVE = 7  # the pool reserved a segment of ``rounded`` bytes
    RELEASE = 8  # the pool returned a segment to the machine
    OUTSIDE = 9  # ``rounded`` bytes of the GPU did not belong to the pool; see Track.outside


class Event(NamedTuple):
    """One event, with text in place of codes."""

    kind: Kind
    time: int  # nanoseconds since the log began (``time.perf_counter_ns``)
    address: int  # pool address of the block (or segment); the same on ``cpu`` and ``meta``
    requested: int  # bytes that the caller asked for; 0 if the kind has none
    rounded: int  # bytes that the pool uses for them; ``FREE`` has it too
    phase: str  # of the thread: ``forward``, ``backward``, ``recompute``, ``optimizer``, ``data``; ``user``: none of these
    module: str  # dotted path of the running module, ``""`` outside; in backward, the module in which the op ran forward
    op: str  # the running op (``Conv2d``, ``Adam.step``), ``""`` for the user's own code
    line: str  # the user's source line, ``"train.py:12 step"``; in backward, the line that ran the op forward
    role: str  # for ``ENTER``, ``LEAVE`` and new blocks, the name of a :class:`~tinygrad_mem.memory.attribution.Category`
    note: str  # the saved array's name (``ENTER`` as ``ACTIVATION``), the path (``NAME``), the text (``MARK``); for a deduced
    # role (``MALLOC``, ``OLDER``), how sure it is and why: "likely: made in backward"
    thread: int  # number of the thread, in the order of their first events


TEXTS = ("phase", "module", "op", "line", "role", "note")
RECORD = np.dtype(
    [("kind", "u1"), ("time", "i8"), ("address", "u8"), ("requested", "u8"), ("rounded", "u8")]
    + [(name, "u4") for name in TEXTS]
    + [("thread", "u2")]
)
"""One event in memory. The columns of :data:`TEXTS` are codes: ``log.texts[code]`` is the string."""

_KINDS = {kind.value: kind for kind in Kind}
_BATCH = 4096  # events in the queue, as tuples of about 200 bytes
_CHUNK = 1 << 16  # events of one array


class _Packed(NamedTuple):
    """The packed events, replaced in one assignment."""

    chunks: tuple[np.ndarray, ...]  # of :data:`RECORD`, all full but the last
    room: int  # events that fit into the last one
    taken: list[tuple]  # events taken from the queue to be packed next; they stay here after an interrupt


class Log:
    """The events of one device, in columns.

    Attributes:
        texts: code -> string, for the columns of :data:`TEXTS`; code 0 is ``""``.
        write: takes one event, as a tuple in the order of :class:`Event` with the thread's identifier last; it may be called
            from any thread, signal handler or finalizer.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.texts: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._threads: dict[int, int] = {}
        self._packed = _Packed((), 0, [])
        self._waiting: deque[tuple] = deque()
        self._packing = False
        self._process = os.getpid()
        self.write = self._waiting.append

    # --- writing ----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Pack the queue if it is long. Writers call this from time to time."""
        if len(self._waiting) >= _BATCH:
            self.pack()

    def pack(self) -> None:
        """Pack the queue, unless this thread is packing already and a handler interrupted it."""
        with lock:
            if not self._packing:
                try:
                    self._packing = True
                    self._pack()
                finally:
                    self._packing = False

    def _pack(self) -> None:
        left = len(self._packed.taken) + len(self._waiting)  # other threads may write faster than this packs
        while left:
            chunks, room, taken = self._packed
            if not room:
                chunks, room = (*chunks, np.empty(_CHUNK, RECORD)), _CHUNK
            count = min(left, _BATCH, room)
            taken.extend(map(operator.call, repeat(self._waiting.popleft, count - len(taken))))  # one call of C
            columns = dict(zip(RECORD.names or (), zip(*taken, strict=True), strict=True))
            columns |= {name: self.codes(columns[name]) for name in TEXTS}
            for thread in dict.fromkeys(columns["thread"]):
                self._threads.setdefault(thread, len(self._threads))
            columns["thread"] = [*map(self._threads.__getitem__, columns["thread"])]
            part = chunks[-1][_CHUNK - room :][:count]
            for name, column in columns.items():
                part[name] = column
            self._packed = _Packed(chunks, room - count, [])
            left -= count

    def codes(self, texts: Iterable[str]) -> list[int]:
        """The codes of texts. New texts get the next codes, in their order."""
        try:
            return [*map(self._codes.__getitem__, texts)]
        except KeyError:  # a text is new
            return [self._code(text) for text in texts]

    def _code(self, text: str) -> int:
        if text not in self._codes:
            self.texts.append(text)
            self._codes[text] = len(self.texts) - 1
        return self._codes[text]

    def extend(self, records: np.ndarray, codes: np.ndarray) -> None:
        """Append packed events (:data:`RECORD`) from a file. ``codes``: the codes of their texts in this log."""
        records = records.astype(RECORD)
        for name in TEXTS:
            records[name] = codes[records[name]]
        with lock:
            self._packed = _Packed((*self._packed_chunks(), records), 0, [])

    # --- reading ----------------------------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[np.ndarray]:
        """The events in arrays of :data:`RECORD`, in order. Events that are written meanwhile may be missing.

        Raises:
            RuntimeError: this is a forked child of the process that wrote the log.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this log belongs to process {self._process}, and this is its forked child {os.getpid()}: "
                "a child is not tracked. Ask in the parent, or begin a new track in the child."
            )
        self.pack()
        yield from self._packed_chunks()

    def _packed_chunks(self) -> list[np.ndarray]:
        chunks, room, _ = self._packed
        return [*chunks[:-1], *(chunk[: len(chunk) - room] for chunk in chunks[-1:])]

    def records(self) -> np.ndarray:
        """All events in one array of :data:`RECORD`."""
        return np.concatenate([np.empty(0, RECORD), *self.chunks()])

    def column(self, name: str) -> np.ndarray:
        """One column of all events."""
        return np.concatenate([np.empty(0, RECORD[name]), *(chunk[name] for chunk in self.chunks())])

    def __len__(self) -> int:
        return sum(map(len, self.chunks()))

    def __iter__(self) -> Iterator[Event]:
        for chunk in self.chunks():
            yield from self._events(chunk)

    def __getitem__(self, index: int) -> Event:
        if not 0 <= index < len(self):
            raise IndexError(f"log: expected an event below {len(self)}, found {index}")
        return next(self.select(np.array([index])))

    def select(self, indices: np.ndarray) -> Iterator[Event]:
        """The events with these numbers, which must be in ascending order."""
        start = 0
        for chunk in self.chunks():
            first, last = np.searchsorted(indices, (start, start + len(chunk)))
            yield from self._events(chunk[indices[first:last] - start])
            start += len(chunk)

    def _events(self, records: np.ndarray) -> Iterator[Event]:
        """Convert a batch at a time: NumPy converts a whole array far faster than single records."""
        for start in range(0, len(records), _BATCH):
            for kind, time, address, requested, rounded, *codes, thread in records[start : start + _BATCH].tolist():
                phase, module, op, line, role, note = [self.texts[code] for code in codes]
                yield Event(_KINDS[kind], time, address, requested, rounded, phase, module, op, line, role, note, thread)
