"""The category of each block, as a pure function of the log: one pass over the facts, in columns.

A block is born as an input or as a temporary. It is *something else* while somebody holds it as that: a parameter while a
``Parameter`` shows it, an activation while a node keeps it for backward. Several may hold it at once (a weight is a
parameter, and saved by the op that multiplied with it); the first of :class:`Category`'s order counts. When the last holder
lets go and the block lives on, it is again what it was born as.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any

import numpy as np

from ..interrupts import may_wait
from .log import Kind, Log


class Category(StrEnum):
    """The purpose of a block, first what counts first, and in the order in which a stacked picture shows them."""

    PARAMETER = "parameters"
    MASTER_WEIGHT = "master weights"
    BUFFER = "buffers"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradients"
    WEIGHT_CAST = "casts of weights"  # under autocast
    INPUT = "inputs"
    ACTIVATION = "activations"
    WORKSPACE = "workspace"
    TEMPORARY = "temporaries"
    UNTRACKED = "older than the track"
    UNCOUNTED = "libraries' own"  # not the pool's: never part of its used bytes


CATEGORIES = tuple(Category)
CODE = {category.name: code for code, category in enumerate(CATEGORIES)}
NOWHERE = 255  # the category of a block before it is born and after it is freed
_TEMPORARY, _UNTRACKED = CODE["TEMPORARY"], CODE["UNTRACKED"]


class _Live:
    """A live block, while the log is read."""

    __slots__ = ("birth", "born", "now", "roles", "size")

    def __init__(self, born: int, size: int, birth: int) -> None:
        self.born, self.size, self.birth, self.now = born, size, birth, birth
        self.roles: list[int] = []


class Attribution:
    """The log read once; reading on from where it stopped when the log has grown.

    Attributes (one entry an event, columns of NumPy arrays):
        block: the number of the event with which the block concerned was born; -1 where there is none.
        before, after: the block's category before and after the event, as an index into ``CATEGORIES``; ``NOWHERE`` for none.
        size: the block's rounded bytes.
    """

    def __init__(self, log: Log) -> None:
        self._log, self._reading = log, threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self._read = 0
        self._live: dict[int, _Live] = {}
        self._loose = _Live(-1, 0, _UNTRACKED)  # bytes in use from before the log that cannot be told apart
        self.block = np.empty(0, np.int32)
        self.before = self.after = np.empty(0, np.uint8)
        self.size = np.empty(0, np.int64)

    def update(self) -> Attribution:
        """Read what the log has got since; several threads may ask at once.

        A handler that comes while its own thread reads, or that must not wait for others, gets another attribution, which
        reads for itself.
        """
        reading: Any = self._reading
        mine = False
        if not reading._is_owned():
            try:
                mine = reading.acquire(blocking=may_wait())
                if mine:
                    self._read_on()
            except BaseException:  # Ctrl-C in the middle: the next who asks begins again
                if reading._is_owned():
                    self._begin()
                raise
            finally:
                if reading._is_owned():
                    reading.release()
        return self if mine else Attribution(self._log).update()

    def _read_on(self) -> None:
        parts: list[tuple] = [(self.block, self.before, self.after, self.size)]
        start = 0
        for chunk in self._log.chunks():
            fresh = chunk[max(0, self._read - start) :]
            start += len(chunk)
            if len(fresh):
                parts.append(self._fold(fresh))
                self._read = start
        if len(parts) > 1:
            self.block, self.before, self.after, self.size = (np.concatenate(c) for c in zip(*parts, strict=True))

    def _fold(self, chunk: np.ndarray) -> tuple:
        """The four columns of one chunk."""
        blocks, befores, afters, sizes = [], [], [], []
        roles = [CODE.get(text, NOWHERE) for text in self._log.texts]
        columns = (chunk[name].tolist() for name in ("kind", "address", "rounded", "role"))
        for index, (kind, address, rounded, text) in enumerate(zip(*columns, strict=True), self._read):
            if kind == Kind.MALLOC:
                birth = roles[text] if text else _TEMPORARY
                live = self._live[address] = _Live(index, rounded, birth)
                before, after = NOWHERE, birth
            elif kind == Kind.FREE:
                live = self._free(address, rounded)
                before, after = NOWHERE if live is None else live.now, NOWHERE
            elif kind == Kind.OLDER:
                live, before, after = self._older(index, address, rounded)
            elif Kind.ENTER <= kind <= Kind.NAME and address in self._live:
                live = self._live[address]
                before, after = live.now, self._turn(live, kind, roles[text])
            else:
                live, before, after = None, NOWHERE, NOWHERE
            blocks.append(-1 if live is None else live.born)
            befores.append(before)
            afters.append(after)
            sizes.append(rounded if live is self._loose else 0 if live is None else live.size)
        return np.array(blocks, np.int32), np.array(befores, np.uint8), np.array(afters, np.uint8), np.array(sizes, np.int64)

    def _older(self, index: int, address: int, rounded: int) -> tuple:
        """Address 0: that many bytes were in use. Any other: a block is now known, of these bytes or beside them."""
        if not address:
            self._loose.size += rounded
            return self._loose, NOWHERE, _UNTRACKED
        if address in self._live:
            return None, NOWHERE, NOWHERE
        live = self._live[address] = _Live(index, rounded, _UNTRACKED)
        if self._loose.size < rounded:
            return live, NOWHERE, _UNTRACKED
        self._loose.size -= rounded
        return live, _UNTRACKED, _UNTRACKED

    def _free(self, address: int, rounded: int) -> _Live | None:
        """The block that dies; bytes that cannot be told apart, as far as there are any."""
        live = self._live.pop(address, None)
        if live is None and self._loose.size >= rounded:
            self._loose.size -= rounded
            live = self._loose
        return live

    def _turn(self, live: _Live, kind: int, role: int) -> int:
        """The category of a block of which one more, or one less, holder says that it is ``role``."""
        if kind == Kind.ENTER:
            live.roles.append(role)
        elif role in live.roles:
            live.roles.remove(role)
        live.now = min(live.birth, *live.roles) if live.roles else live.birth
        return live.now
