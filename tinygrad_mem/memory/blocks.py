"""The life of each block: when it was allocated and freed, who asked for it, and its categories over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .attribution import CATEGORIES, NOWHERE, Attribution, Category
from .log import Event, Kind, Log

_BELONGS = {"GRADIENT": "gradient", "OPTIMIZER_STATE": "state"}


@dataclass
class Block:
    """One allocation. :class:`~tinygrad_mem.memory.log.Event` explains the fields that say who asked for it."""

    born: int  # number of its first event: its malloc, or the event by which the log found it
    born_ns: int  # time of that event, nanoseconds since the log began
    address: int
    requested: int  # bytes asked for
    rounded: int  # bytes taken from the pool
    phase: str
    module: str
    op: str
    line: str
    thread: int
    deduced: str = ""  # how sure a deduced category is, and why: "likely: made in backward"; "": it was recorded
    name: str = ""  # the path, if it is a parameter or buffer, such as ``"ResNet.conv1.weight"``
    died: int | None = None  # number of the event that freed it; ``None`` while it is alive
    died_ns: int | None = None
    categories: list[tuple[int, Category]] = field(default_factory=list)  # (event, category): the first one, and each change
    holders: list[Event] = field(default_factory=list)  # ``ENTER`` events of its holders, now or when it was freed

    @property
    def category(self) -> Category:
        """The block's category now, or when it was freed."""
        return self.categories[-1][1]

    @property
    def certainty(self) -> str:
        """The certainty of its category: ``sure``, ``likely``, ``unknown``. Recorded ones are sure; some files tell less."""
        return self.deduced.partition(":")[0] or "sure"

    @property
    def kind(self) -> str:
        """The category in words; ``"gradients (likely)"`` where it was not recorded but deduced."""
        unknown = self.category in (Category.UNKNOWN, Category.UNTRACKED)
        return self.category.value if unknown or not self.deduced else f"{self.category.value} ({self.certainty})"

    @property
    def owner(self) -> str:
        """A short name of the owner: the path of its parameter; else the module and op that asked for it, or the line."""
        for holder in self.holders:
            if holder.note and holder.role in _BELONGS:
                return f"{_BELONGS[holder.role]} of {holder.note}"
        asked = " ".join(part for part in (self.module, self.op) if part) or self.line
        if self.deduced and self.op and self.line:  # of another program, whose modules are not known
            asked = f"{self.op} at {self.line}"
        older = not self.deduced or self.category is Category.UNTRACKED
        unowned = "made before the track" if older else f"asked for in {self.phase}" if self.phase != "unknown" else "not known"
        kept = next((f"kept by {holder.op}" for holder in self.holders if holder.op), unowned)
        return self.name or asked or kept

    @property
    def home(self) -> str:
        """The module that the block belongs to: that of its parameter or buffer, else the module that asked for it."""
        for holder in self.holders:
            if holder.note and holder.role in _BELONGS:
                return holder.note.rpartition(".")[0]
        return self.name.rpartition(".")[0] or self.module


def lives(log: Log, attribution: Attribution) -> Iterator[Block]:
    """Each block when it is freed, then those that are still alive. Only live blocks are kept in memory."""
    columns = zip(attribution.block.tolist(), attribution.after.tolist(), strict=True)
    return _lives((index, event, *row) for (index, event), row in zip(enumerate(log), columns, strict=False))


def _about_living(attribution: Attribution, at: int) -> np.ndarray:
    """Numbers of the events until ``at`` that are about blocks that are alive after it."""
    block, after = attribution.block[: at + 1], attribution.after[: at + 1]
    dead = np.zeros(len(block) + 1, bool)  # by the block's number; the last, which is -1 too, is where there is none
    dead[block[after == NOWHERE]] = dead[-1] = True
    return np.flatnonzero(~dead[block])


def births(attribution: Attribution, at: int) -> np.ndarray:
    """Numbers of the events that allocated the blocks that are alive after event number ``at``."""
    about = _about_living(attribution, at)
    return about[attribution.block[about] == about]


def living(log: Log, attribution: Attribution, at: int) -> list[Block]:
    """The blocks that are alive after event number ``at``, as they were then, largest first."""
    about = _about_living(attribution, at)
    columns = (attribution.block[about].tolist(), attribution.after[about].tolist())
    rows = zip(about.tolist(), log.select(about), *columns, strict=True)
    return sorted(_lives(rows), key=lambda b: (-b.rounded, b.born))


def _lives(rows: Iterable[tuple[int, Event, int, int]]) -> Iterator[Block]:
    live: dict[int, Block] = {}
    for index, event, born, after in rows:
        if born == index:
            who = (event.phase, event.module, event.op, event.line, event.thread)
            deduced = event.note if event.kind in (Kind.MALLOC, Kind.OLDER) else ""
            live[index] = Block(index, event.time, event.address, event.requested, event.rounded, *who, deduced)
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
    """Apply an event to the block: a name, a new holder, or the end of one."""
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
