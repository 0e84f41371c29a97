"""The facts of one device of a snapshot: its blocks with their lines and categories, and the bytes after each event."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .categories import RULES, rules_of
from .lifetimes import Lifetimes, lifetimes
from .load import refuse_huge
from .recording import Recording
from .snapshot import Snapshot
from .stacks import Origins
from .steps import PHASES, Parts, steps


class LineShare(NamedTuple):
    """The blocks that one source line allocated."""

    line: str  # "train.py:12 step"; if no stack shows it, a description in brackets
    category: str  # as far as it can be deduced
    bytes: int
    blocks: int


def category(rule: int) -> str:
    """The category that a rule deduces, with a question mark if it is likely and not sure."""
    found = RULES[rule]
    return f"{found.category.value}?" if found.certainty == "likely" else found.category.value


class Evidence:
    """The facts of one device of a snapshot, and what can be deduced about its blocks.

    Attributes:
        recording: its events and segments.
        origins: the facts that its stacks show.
        blocks: one row for each block.
        parts: the part of a training step, for each event.
        rules: for each block, the number of the rule that gave its category.
        owners, owner: the lines that allocated blocks, and for each block the number of its line.
        used: allocated bytes after each event, and before the first; int64, shape (events + 1,).
    """

    def __init__(self, snapshot: Snapshot, device: int | None = None) -> None:
        self.recording: Recording = snapshot.of(device)
        refuse_huge(self.recording, "the snapshot")
        self.origins = Origins(snapshot.stacks)
        found = lifetimes(self.recording)
        subtracted = ("address", "requested", "size")
        signed = {name: getattr(found, name).astype(np.int64) for name in subtracted}
        self.blocks: Lifetimes = replace(found, **signed)
        self.parts: Parts = steps(self.recording, self.origins)
        self.rules = rules_of(self.blocks, self.parts, self.origins)
        self.owners, self.owner = self._owned()
        self.used = self.total(np.ones(len(self.blocks), bool))

    def __len__(self) -> int:
        """The number of events."""
        return len(self.recording.events)

    def total(self, some: np.ndarray) -> np.ndarray:
        """The bytes of some blocks before the first event and after each; int64, shape (events + 1,)."""
        change = np.zeros(len(self) + 2, np.int64)
        np.add.at(change, self.blocks.born[some] + 1, self.blocks.size[some])
        np.subtract.at(change, self.blocks.freed[some] + 1, self.blocks.size[some])
        return np.cumsum(change)[:-1]

    def alive(self, event: int) -> np.ndarray:
        """The numbers of the blocks that are alive after an event; -1: before the first."""
        return np.flatnonzero((self.blocks.born <= event) & (self.blocks.freed > event))

    @cached_property
    def peak(self) -> int:
        """The event after which most bytes were allocated, the first such one; -1: before the first event."""
        return int(np.argmax(self.used)) - 1

    def shares(self, some: np.ndarray) -> list[LineShare]:
        """Blocks by line and category, most bytes first."""
        pairs, which = np.unique(np.stack([self.owner[some], self.rules[some]]), axis=1, return_inverse=True)
        found: dict[tuple[str, str], tuple[int, int]] = {}
        sizes = np.bincount(which.reshape(-1), self.blocks.size[some], pairs.shape[1])
        counts = np.bincount(which.reshape(-1), minlength=pairs.shape[1])
        for (owner, rule), size, count in zip(pairs.T.tolist(), sizes.tolist(), counts.tolist(), strict=True):
            key = self.owners[owner], category(rule)
            before = found.get(key, (0, 0))
            found[key] = before[0] + int(size), before[1] + count
        return sorted((LineShare(*key, *value) for key, value in found.items()), key=lambda share: -share.bytes)

    def peak_without(self, line: str, what: str) -> int:
        """The peak without a line's blocks of one category, if all else were the same."""
        owner = self.owners.index(line)
        rules = [rule for rule in range(len(RULES)) if category(rule) == what]
        return int((self.used - self.total((self.owner == owner) & np.isin(self.rules, rules))).max())

    def line_of(self, stack: int, event: int | None = None) -> str:
        """The user's line of a stack; if it has none, the op and the part of the step, as far as they are known."""
        origin = self.origins.of(stack)
        if origin.line:
            return origin.line
        phase = origin.phase or (PHASES[self.parts.phase[event]] if event is not None else "")
        known = " in ".join(text for text in (origin.op, phase if phase != "user" else "") if text)
        return f"({known or 'no stack'})"

    def _owned(self) -> tuple[list[str], np.ndarray]:
        """Find the line that allocated each block."""
        blocks = self.blocks
        older = (blocks.born < 0) & (blocks.stack == 0)
        phase = np.where(older, len(PHASES), self.parts.phase[np.maximum(blocks.born, 0)])
        pairs, which = np.unique(np.stack([blocks.stack.astype(np.int64), phase]), axis=1, return_inverse=True)
        firsts = np.zeros(pairs.shape[1], np.int64)
        firsts[which.reshape(-1)[::-1]] = np.maximum(blocks.born, 0)[::-1]
        texts = [
            "(there before the recording)" if code == len(PHASES) else self.line_of(int(stack), int(first))
            for (stack, code), first in zip(pairs.T.tolist(), firsts.tolist(), strict=True)
        ]
        names = sorted(set(texts))
        place = {name: number for number, name in enumerate(names)}
        return names, np.array([place[text] for text in texts], np.int64)[which.reshape(-1)]
