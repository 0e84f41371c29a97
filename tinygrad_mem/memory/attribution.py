"""Who a block belongs to, as a pure function of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from .log import Event


class Category(StrEnum):
    """What a block is for, in the order in which a stacked picture shows them."""

    PARAMETER = "parameters"
    BUFFER = "buffers"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradients"
    INPUT = "inputs"
    ACTIVATION = "activations"
    TEMPORARY = "temporaries"
    UNTRACKED = "older than the track"


_RANK = {name: rank for rank, name in enumerate(("PARAMETER", "BUFFER", "OPTIMIZER_STATE", "GRADIENT", "INPUT", "ACTIVATION"))}


@dataclass
class BlockLife:
    """A live block: its size, where it came from, what it is now."""

    rounded: int
    category: Category
    phase: str
    module: str
    op: str


@dataclass(frozen=True)
class Moment:
    """The pool after one event: bytes by category, which add up to ``used``."""

    index: int
    used: int
    by_category: dict[Category, int]
    phase: str


def moments(events: list[Event], older: int) -> Iterator[Moment]:
    """The pool after each malloc and free.

    Args:
        older: bytes that were in use when the log began; frees of such blocks are told apart by their address.
    """
    live: dict[int, BlockLife] = {}
    totals: Counter[Category] = Counter({Category.UNTRACKED: older} if older else {})
    for index, event in enumerate(events):
        block = live.get(event.address)
        if event.kind == "malloc":
            category = Category.TEMPORARY if event.op or event.phase != "forward" else Category.INPUT
            live[event.address] = BlockLife(event.rounded, category, event.phase, event.module, event.op)
            totals[category] += event.rounded
        elif event.kind == "free":
            live.pop(event.address, None)
            totals[block.category if block else Category.UNTRACKED] -= event.rounded
        elif block is not None:
            name = "ACTIVATION" if event.kind == "saved" else event.role
            if _RANK[name] < _RANK.get(block.category.name, len(_RANK)):
                totals[block.category] -= block.rounded
                block.category = Category[name]
                totals[block.category] += block.rounded
            continue
        else:
            continue
        yield Moment(index, sum(totals.values()), {c: n for c, n in totals.items() if n}, event.phase)
