"""The log: facts in the order in which they happened, and nothing that could be computed from them.

Events are written as tuples into a queue, because appending to it is the one thing that nothing can interrupt: a block may
be freed inside any statement of any thread, also inside this file. Every few thousand events the queue is packed into
columns: 59 bytes an event, whatever it says, so that ten million stay below one GiB.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ..interrupts import lock


class Kind(IntEnum):
    """The kind of an event. Only ``MALLOC``, ``FREE`` and ``OLDER`` change how many bytes are in use."""

    OLDER = 0  # a block that was alive when the log began; address 0: bytes of blocks that cannot be told apart (yet)
    MALLOC = 1
    FREE = 2
    ENTER = 3  # the block took a role: somebody holds it as that
    LEAVE = 4  # that holder let it go; the block itself may live on
    NAME = 5  # the block is known by a path, such as "ResNet.layer1.0.conv1.weight"
    MARK = 6  # the user marked this moment; ``note`` is the text
    RESERVE = 7  # the pool took a segment of ``rounded`` bytes from the machine
    RELEASE = 8  # the pool gave a segment back
    UNCOUNTED = 9  # a library took ``rounded`` bytes of its own, outside of the pool; see Track.uncounted


class Event(NamedTuple):
    """One fact, with its codes read back as text.

    Attributes:
        kind: what happened.
        time: nanoseconds since the log began (``time.perf_counter_ns``).
        address: pool address of the block (or segment); pools hand them out in order, the same on ``cpu`` and ``meta``.
        requested: bytes that the caller asked for; 0 where the kind has none.
        rounded: bytes that the pool takes for them; ``FREE`` has it too.
        phase: ``forward``, ``backward``, ``recompute``, ``optimizer``, ``data`` or ``user`` (none of these), of the thread.
        module: dotted path of the module that was running, ``""`` outside; in backward, where the op ran forward.
        op: the op that was running (``Conv2d``, ``Adam.step``), ``""`` for code of the user's own.
        line: the user's source line, ``"train.py:12 step"``; in backward, the line that ran the op forward.
        role: for ``ENTER`` and ``LEAVE``, the name of a :class:`~tinygrad_mem.memory.attribution.Category`.
        note: the saved array's name (``ENTER`` as ``ACTIVATION``), the path (``NAME``), the text (``MARK``).
        thread: number of the thread, in the order in which threads first wrote.
    """

    kind: Kind
    time: int
    address: int
    requested: int
    rounded: int
    phase: str
    module: str
    op: str
    line: str
    role: str
    note: str
    thread: int


TEXTS = ("phase", "module", "op", "line", "role", "note")
RECORD = np.dtype(
    [("kind", "u1"), ("time", "i8"), ("address", "u8"), ("requested", "u8"), ("rounded", "u8")]
    + [(name, "u4") for name in TEXTS]
    + [("thread", "u2")]
)
"""One event in memory. The columns of :data:`TEXTS` are codes: ``log.texts[code]`` is the string."""

_KINDS = {kind.value: kind for kind in Kind}
_BATCH = 4096  # events that wait as tuples, about 200 bytes each
_CHUNK = 1 << 16  # events of one array


class _Packed(NamedTuple):
    """The packed events; the log replaces them as a whole, so that an interrupt finds the old ones or the new ones.

    Attributes:
        chunks: arrays of :data:`RECORD`, all full but the last.
        room: events for which the last one has room.
        fresh: how many were packed in the last turn: what of them still stands in the queue is to go.
        last: the last of them.
    """

    chunks: tuple[np.ndarray, ...] = ()
    room: int = 0
    fresh: int = 0
    last: tuple | None = None


class Log:
    """The events of one device, in columns.

    Args:
        device: the device's name.

    Attributes:
        device: the device's name.
        texts: code -> string, for the columns of :data:`TEXTS`; code 0 is ``""``.
        write: takes one event, as a tuple in the order of :class:`Event` with the thread's identifier last; it may be called
            from any thread, and from inside anything.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.texts: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._threads: dict[int, int] = {}
        self._packed = _Packed()
        self._waiting: deque[tuple] = deque()
        self._packing = False
        self._process = os.getpid()
        self.write = self._waiting.append

    # --- writing ----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Pack waiting events if they are many: whoever writes calls this now and then."""
        if len(self._waiting) >= _BATCH:
            self._pack_all()

    def _pack_all(self) -> None:
        """Pack what waits, unless this very thread is at it already: then a handler has come in between."""
        with lock:
            if not self._packing:
                try:
                    self._packing = True
                    self._pack()
                finally:
                    self._packing = False

    def _pack(self) -> None:
        """Pack what waits now. Ctrl-C may end this at any point: no event is lost then, and none is there twice."""
        waiting = self._waiting
        self._drop()
        left = len(waiting)  # others may write faster than this packs
        while left:
            chunks, room, _, _ = self._packed
            if not room:
                # not NumPy's own memory: that is counted, and the log is not part of the run
                chunks, room = (*chunks, np.frombuffer(bytearray(_CHUNK * RECORD.itemsize), RECORD)), _CHUNK
            rows = [waiting[i] for i in range(min(left, _BATCH, room))]
            kinds, times, addresses, requested, rounded, *texts, threads = zip(*rows, strict=True)
            part = chunks[-1][_CHUNK - room :][: len(rows)]
            part["kind"], part["time"], part["address"] = kinds, times, addresses
            part["requested"], part["rounded"] = requested, rounded
            for name, column in zip(TEXTS, texts, strict=True):
                part[name] = self._coded(column)
            part["thread"] = [self._threads.setdefault(t, len(self._threads)) for t in threads]
            self._packed = _Packed(chunks, room - len(rows), len(rows), rows[-1])
            self._drop()
            left -= len(rows)

    def _drop(self) -> None:
        """Take what is packed out of the queue; where an earlier try was interrupted, the rest of it."""
        chunks, room, fresh, last = self._packed
        for i in reversed(range(min(fresh, len(self._waiting)))):
            if self._waiting[i] is last:
                for _ in range(i + 1):
                    self._waiting.popleft()
                break
        self._packed = _Packed(chunks, room)

    def _coded(self, column: tuple[str, ...]) -> list[int]:
        codes = self._codes
        try:
            return [codes[text] for text in column]
        except KeyError:  # one of them is new
            return [self._code(text) for text in column]

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = len(self.texts)
            self.texts.append(text)
            self._codes[text] = code
        return code

    def codes(self, texts: list[str]) -> list[int]:
        """The codes that texts have here; new ones get the next, in their order."""
        return [self._code(text) for text in texts]

    def extend(self, records: np.ndarray, codes: np.ndarray) -> None:
        """Append packed events (of :data:`RECORD`); ``codes`` are those that their texts have here: how a file is read back."""
        records = records.astype(RECORD)
        for name in TEXTS:
            records[name] = codes[records[name]]
        with lock:
            self._pack()
            self._packed = _Packed((*self._packed_chunks(), records))

    # --- reading ----------------------------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[np.ndarray]:
        """The events in arrays of :data:`RECORD`, in order, of 65,536 where they were written here; of what is written
        meanwhile, some may be missing.

        Raises:
            RuntimeError: this is a forked child of the process that wrote the log.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this log belongs to process {self._process}, this is its forked child {os.getpid()}: "
                "a child is not tracked. Ask in the parent, or start a track of the child's own."
            )
        self._pack_all()
        yield from self._packed_chunks()

    def _packed_chunks(self) -> list[np.ndarray]:
        chunks, room, _, _ = self._packed
        return [*chunks[:-1], *(chunk[: len(chunk) - room] for chunk in chunks[-1:])]

    def column(self, name: str) -> np.ndarray:
        """One column of all events."""
        return np.concatenate([np.empty(0, RECORD[name]), *(chunk[name] for chunk in self.chunks())])

    def __len__(self) -> int:
        return sum(map(len, self.chunks()))

    def __iter__(self) -> Iterator[Event]:
        for chunk in self.chunks():
            yield from self._events(chunk)

    def __getitem__(self, index: int) -> Event:
        rest = index
        for chunk in self.chunks():
            if 0 <= rest < len(chunk):
                return next(self._events(chunk[rest : rest + 1]))
            rest -= len(chunk)
        raise IndexError(f"log: event {index} was asked for, there are {index - rest}")

    def select(self, indices: np.ndarray) -> Iterator[Event]:
        """The events of these numbers, which ascend."""
        start = 0
        for chunk in self.chunks():
            first, last = np.searchsorted(indices, (start, start + len(chunk)))
            yield from self._events(chunk[indices[first:last] - start])
            start += len(chunk)

    def _events(self, records: np.ndarray) -> Iterator[Event]:
        """Read a batch at a time: NumPy makes numbers of a whole array far faster than of one record after the other."""
        texts = self.texts
        for start in range(0, len(records), _BATCH):
            for kind, time, address, requested, rounded, *codes, thread in records[start : start + _BATCH].tolist():
                phase, module, op, line, role, note = [texts[code] for code in codes]
                yield Event(_KINDS[kind], time, address, requested, rounded, phase, module, op, line, role, note, thread)
