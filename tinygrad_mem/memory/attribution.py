"""The category of each block at each event, computed from the log in one pass.

A new block is an input or a temporary. It has another category while something holds it in a role: it is a parameter while a
``Parameter`` uses it, an activation while a node keeps it for backward. It can have several roles at once (a weight is a
parameter, and saved by the op that multiplied with it); the first one in the order of :class:`Category` counts. A block
without a role has its first category again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from .log import Kind, Log


class Category(StrEnum):
    """The purpose of a block. If a block has several, the first in this order counts. Stacked pictures use the same order."""

    PARAMETER = "parameters"
    MASTER_WEIGHT = "master weights"
    BUFFER = "buffers"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradients"
    WEIGHT_CAST = "casts of weights"  # under autocast
    COMMUNICATION = "communication buffers"  # of several ranks: buckets, gathered parameters, gradients to be reduced, sends
    INPUT = "inputs"
    ACTIVATION = "activations"
    WORKSPACE = "workspace"
    TEMPORARY = "temporaries"
    UNTRACKED = "older than the track"
    UNKNOWN = "unknown"  # of recordings of other programs, where neither stacks nor lifetimes say what a block was


CATEGORIES = tuple(Category)
CODE = {category.name: code for code, category in enumerate(CATEGORIES)}
NOWHERE = 255  # the category of a block before it is allocated and after it is freed
_DTYPES = (np.int32, np.uint8, np.uint8, np.int64)  # of the columns
_TEMPORARY, _UNTRACKED = CODE["TEMPORARY"], CODE["UNTRACKED"]
_OLDER, _MALLOC, _FREE, _ENTER, _NAME = map(int, (Kind.OLDER, Kind.MALLOC, Kind.FREE, Kind.ENTER, Kind.NAME))


class Attribution(NamedTuple):
    """The changes that events made to blocks, in columns with one entry for each event."""

    block: np.ndarray  # the number of the event that allocated the block; -1: the event is about no block
    before: np.ndarray  # the block's category before the event, as an index into ``CATEGORIES``; ``NOWHERE`` for none
    after: np.ndarray  # the same after it
    size: np.ndarray  # the block's rounded bytes


def attribution(log: Log) -> Attribution:
    """The changes made by all events that the log has now."""
    none = [np.empty(0, dtype) for dtype in _DTYPES]
    return Attribution(*map(np.concatenate, zip(none, *(found for _, found in walk(log)), strict=True)))


def walk(log: Log) -> Iterator[tuple[np.ndarray, Attribution]]:
    """The chunks of the log with the changes that their events made, one at a time: a long log needs little memory."""
    blocks = _Blocks(log)
    for records in filter(len, log.chunks()):
        yield records, blocks.read(records)


class _Block:
    """A live block, while the log is read: its first event, bytes, first and present category, and roles."""

    __slots__ = ("birth", "born", "now", "roles", "size")

    def __init__(self, born: int, size: int, birth: int) -> None:
        self.born, self.size, self.birth, self.now = born, size, birth, birth
        self.roles: list[int] = []

    def change_role(self, kind: int, role: int) -> int:
        """Add or remove one holder in ``role``. Returns the category from now on."""
        if kind == _ENTER:
            self.roles.append(role)
            self.now = min(self.now, role)
        elif role in self.roles:
            self.roles.remove(role)
            self.now = min(self.birth, *self.roles) if self.roles else self.birth
        return self.now


class _Blocks:
    """The live blocks by address, while the log is read."""

    def __init__(self, log: Log) -> None:
        self._texts, self._read = log.texts, 0
        self._live: dict[int, _Block] = {}
        self._unknown = _Block(-1, 0, _UNTRACKED)  # bytes in use when the log began, in blocks without known addresses

    def read(self, records: np.ndarray) -> Attribution:
        """The changes made by the next events."""
        changes: tuple[list, ...] = [], [], [], []
        add_born, add_before, add_after, add_size = (column.append for column in changes)
        roles = [CODE.get(text, NOWHERE) for text in self._texts]
        columns = (records[name].tolist() for name in ("kind", "address", "rounded", "role"))
        for index, (kind, address, rounded, text) in enumerate(zip(*columns, strict=True), self._read):
            block, before, after = None, NOWHERE, NOWHERE
            if kind == _MALLOC:
                after = roles[text] if text else _TEMPORARY
                block = self._live[address] = _Block(index, rounded, after)
            elif kind == _FREE:
                block = self._free(address, rounded)
                before = NOWHERE if block is None else block.now
            elif kind == _OLDER:
                block, before, after = self._older(index, address, rounded, roles[text] if text else _UNTRACKED)
            elif _ENTER <= kind <= _NAME and address in self._live:
                block = self._live[address]
                before, after = block.now, block.change_role(kind, roles[text])
            size = rounded if block is self._unknown else 0 if block is None else block.size
            add_born(-1 if block is None else block.born)
            add_before(before)
            add_after(after)
            add_size(size)
        self._read += len(records)
        return Attribution(*map(np.array, changes, _DTYPES))

    def _older(self, index: int, address: int, rounded: int, birth: int) -> tuple:
        """Bytes older than the log. Address 0: the sum of all; another address: one block, which may be part of the sum."""
        if not address:
            self._unknown.size += rounded
            return self._unknown, NOWHERE, _UNTRACKED
        if address in self._live:
            return None, NOWHERE, NOWHERE
        block = self._live[address] = _Block(index, rounded, birth)
        if self._unknown.size < rounded:
            return block, NOWHERE, birth
        self._unknown.size -= rounded
        return block, _UNTRACKED, birth

    def _free(self, address: int, rounded: int) -> _Block | None:
        """The block that is freed; if it is not known, bytes without an address."""
        block = self._live.pop(address, None)
        if block is None and self._unknown.size >= rounded:
            self._unknown.size -= rounded
            block = self._unknown
        return block
