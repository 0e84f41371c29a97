"""The life of each block: when it was born and died, who asked for it, what it was over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .attribution import CATEGORIES, NOWHERE, Attribution, Category
from .log import Event, Kind, Log

_BELONGS = {"GRADIENT": "gradient", "OPTIMIZER_STATE": "state"}


@dataclass
class Block:
    """One allocation.

    Attributes:
        born: number of the event that began it (its own, or the one with which the log came to know it).
        died: number of the event that freed it; ``None`` while it lives.
        born_ns, died_ns: their times, nanoseconds since the log began.
        address: pool address.
        requested, rounded: bytes asked for, and taken from the pool.
        phase, module, op, line, thread: who asked for it; see :class:`~tinygrad_mem.memory.log.Event`.
        name: the path of the parameter or buffer that it is (``"ResNet.conv1.weight"``), else ``""``.
        categories: ``(event number, category)``, one entry each time that the category changed, the first at birth.
        holders: ``ENTER`` events of those who hold it (at its end, or now).
    """

    born: int
    born_ns: int
    address: int
    requested: int
    rounded: int
    phase: str
    module: str
    op: str
    line: str
    thread: int
    name: str = ""
    died: int | None = None
    died_ns: int | None = None
    categories: list[tuple[int, Category]] = field(default_factory=list)
    holders: list[Event] = field(default_factory=list)

    @property
    def category(self) -> Category:
        """The block's category now, or at its end."""
        return self.categories[-1][1]

    @property
    def owner(self) -> str:
        """The owner in few words: the parameter's path, or of a parameter; else module and op that asked, or the line."""
        for holder in self.holders:
            if holder.note and holder.role in _BELONGS:
                return f"{_BELONGS[holder.role]} of {holder.note}"
        asked = " ".join(part for part in (self.module, self.op) if part) or self.line
        kept = next((f"kept by {holder.op}" for holder in self.holders if holder.op), "made before the track")
        return self.name or asked or kept

    @property
    def home(self) -> str:
        """The module that it belongs to: that of the parameter or buffer that it is or belongs to, else the one that asked."""
        for holder in self.holders:
            if holder.note and holder.role in _BELONGS:
                return holder.note.rpartition(".")[0]
        return self.name.rpartition(".")[0] or self.module

    def category_at(self, event: int) -> Category | None:
        """The category after that event; ``None`` before its birth and after its death."""
        if event < self.born or (self.died is not None and event >= self.died):
            return None
        return next(category for at, category in reversed(self.categories) if at <= event)


def lives(log: Log, attribution: Attribution) -> Iterator[Block]:
    """Each block when it dies, and in the end those that live: only the living are in memory."""
    columns = zip(attribution.block.tolist(), attribution.after.tolist(), strict=True)
    return _lives((index, event, *row) for (index, event), row in zip(enumerate(log), columns, strict=False))


def living(log: Log, attribution: Attribution, at: int) -> list[Block]:
    """The blocks that are alive after event number ``at``, as they are then, largest first."""
    block, after = attribution.block[: at + 1], attribution.after[: at + 1]
    dead = np.zeros(len(block) + 1, bool)  # by the block's number; the last, which is -1 too, is where there is none
    dead[block[after == NOWHERE]] = dead[-1] = True
    about = np.flatnonzero(~dead[block])
    rows = zip(about.tolist(), log.select(about), block[about].tolist(), after[about].tolist(), strict=True)
    return sorted(_lives(rows), key=lambda b: (-b.rounded, b.born))


def _lives(rows: Iterable[tuple[int, Event, int, int]]) -> Iterator[Block]:
    live: dict[int, Block] = {}
    for index, event, born, after in rows:
        if born == index:
            who = (event.phase, event.module, event.op, event.line, event.thread)
            live[index] = Block(index, event.time, event.address, event.requested, event.rounded, *who)
        block = live.get(born)
        if block is None:
            continue
        if event.kind is Kind.FREE:
            block.died, block.died_ns = index, event.time
            yield live.pop(born)
            continue
        _change(block, event)
        category = CATEGORIES[after]
        if not block.categories or block.category is not category:
            block.categories.append((index, category))
    yield from live.values()


def _change(block: Block, event: Event) -> None:
    """The block got a name, or somebody began to hold it, or let it go."""
    if event.kind is Kind.NAME:
        block.name = event.note
    elif event.kind is Kind.ENTER:
        block.holders.append(event)
    elif event.kind is Kind.LEAVE:
        who = _holder(event)
        held = next((h for h in block.holders if _holder(h) == who), None) or next(
            (h for h in block.holders if h.role == event.role), None
        )
        if held is not None:
            block.holders.remove(held)


def _holder(event: Event) -> tuple:
    return event.role, event.module, event.op, event.line, event.note
