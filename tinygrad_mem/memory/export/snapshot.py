"""A track as PyTorch's memory snapshot (``torch.cuda.memory._snapshot()``), for ``torch.cuda._memory_viz`` and its page.

Each event that changed the pool is an event of the device's trace; blocks that are older than the track come first. Frames are
the op (with its module as the file) and the user's line. Sizes are the pool's, rounded to 512, so that the page shows the
track's curve. The page gives a block one colour for its whole life. It is that of the category, among all that the block had,
which comes first in :class:`~tinygrad_mem.memory.Category`. The segments are those at the end.

The page has requirements that are not documented: protocol 4 at most, an event of category ``unknown``, ``free_requested``
before ``free_completed``, and a segment around every address.

Source: PyTorch 2.13, ``torch/cuda/memory.py``, ``torch/cuda/_memory_viz.py``, ``torch/utils/viz/MemoryViz.js``.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from ..attribution import CATEGORIES, NOWHERE, Attribution, Category, walk
from ..log import Kind, Log
from . import native
from .opcodes import Items, Memo, PickledDicts, pickled, texts
from .segments import LiveBlock, Segments

OURS = "tinygrad_mem_track"  # the key of the facts that PyTorch's format has no place for: pytorch.load reads them back
_ACTIONS = {Kind.OLDER: "alloc", Kind.MALLOC: "alloc", Kind.FREE: "free_requested", Kind.MARK: "snapshot"}
_ACTIONS |= {Kind.RESERVE: "segment_alloc", Kind.RELEASE: "segment_free"}
_COMPLETED = "free_completed"
_UNKNOWN = CATEGORIES.index(Category.UNTRACKED)
_PAGES = {
    Category.UNTRACKED: "unknown",
    Category.UNKNOWN: "unknown",
    Category.WEIGHT_CAST: "activation",
    Category.COMMUNICATION: "temporary",
}  # the page has ten colours
_NAMES = [_PAGES.get(category, category.name.lower()) for category in CATEGORIES]
# a block's label as one number: four times the code of a text, plus the kind of the text
_TENSOR, _GRADIENT, _STATE, _MARKED = range(4)
_OF = {_TENSOR: "", _GRADIENT: "gradient of ", _STATE: "state of "}


def write(log: Log, file: IO[bytes]) -> None:
    """Write the log's present events."""
    survey = _Survey(log)
    living = survey.living()
    survey.segments.settle((block.address for block in living), survey.loose)
    if survey.segments.rest:
        living.append(LiveBlock(survey.segments.rest, survey.loose, survey.loose, []))
    memo = Memo()
    trace = _Trace(survey, memo)
    whole = {
        "tinygrad_mem": memo.items(),  # first, because the rest refers to it
        "segments": survey.segments.described(living),
        "device_traces": [Items(trace.pieces())],
        OURS: texts(_packed(log)),  # PyTorch's programs pass over it
    }
    file.writelines(pickled(whole))


def _packed(log: Log) -> Iterator[str]:
    """The track's own file, packed by gzip, as text."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    for part in (*map(packer.compress, native.lines(log)), packer.flush()):
        if part:
            yield base64.b64encode(part).decode()


class _Survey:
    """Facts about blocks that are known only when they are freed, from one pass over the log.

    Attributes:
        category: by the number of the event that allocated a block: the first category among all that it had.
        label: of that block: its name, or its owner.
        loose: bytes in use in blocks whose addresses the log does not know.
    """

    def __init__(self, log: Log) -> None:
        self.texts = log.texts
        self.segments = Segments()
        self.loose = 0
        self.category, self.label = np.empty(0, np.uint8), np.empty(0, np.uint32)
        self._dead = np.empty(0, bool)
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        for records, part in walk(log):
            count = len(records)
            self.category = np.append(self.category, np.full(count, NOWHERE, np.uint8))
            self.label = np.append(self.label, np.zeros(count, np.uint32))
            self._dead = np.append(self._dead, np.zeros(count, bool))
            self.segments.read(records)
            self._add_part(records, part)
            self._parts.append((records, part.block))

    def _add_part(self, records: np.ndarray, part: Attribution) -> None:
        block, known = part.block, part.block >= 0
        np.minimum.at(self.category, block[known], part.after[known])
        self._dead[block[known & (part.after == NOWHERE)]] = True
        self.loose += int(part.size[~known & (part.after == _UNKNOWN)].sum())
        self.loose -= int(part.size[~known & (part.before == _UNKNOWN)].sum())
        self.loose -= int(part.size[known & (records["kind"] == Kind.OLDER) & (part.before == _UNKNOWN)].sum())
        for which, said in (
            (_GRADIENT, self._entries_of(records, "GRADIENT")),
            (_STATE, self._entries_of(records, "OPTIMIZER_STATE")),
            (_TENSOR, records["kind"] == Kind.NAME),
        ):
            said = said & known & (records["note"] > 0)
            self.label[block[said]] = records["note"][said] * 4 + which

    def _entries_of(self, records: np.ndarray, role: str) -> np.ndarray:
        code = self.texts.index(role) if role in self.texts else -1
        return (records["kind"] == Kind.ENTER) & (records["role"] == code)

    def events(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The shown events and their blocks: first the blocks that are older than the log, then all others in order."""
        for older in (True, False):
            for records, block in self._parts:
                kind = records["kind"]
                shown = np.isin(kind, [*_ACTIONS]) & ((records["address"] > 0) | (kind == Kind.MARK))
                shown &= (kind == Kind.OLDER) == older
                yield records[shown], block[shown]

    def living(self) -> list[LiveBlock]:
        """The blocks that were not freed."""
        found, start = [], 0
        for records, _ in self._parts:
            here = slice(start, start + len(records))
            for record in records[(self.category[here] != NOWHERE) & ~self._dead[here]]:
                address, rounded, requested, line, module, op = (
                    int(record[name]) for name in ("address", "rounded", "requested", "line", "module", "op")
                )
                found.append(LiveBlock(address, rounded, requested, self.frames(line, module, op)))
            start = here.stop
        return found

    def frames(self, line: int, module: int, op: int) -> list[dict[str, Any]]:
        """The frames of each event, innermost first."""
        frames = []
        if module or op:
            frames.append({"filename": self.texts[module] or "op", "line": 0, "name": self.texts[op] or "forward"})
        if line:
            place, _, function = self.texts[line].rpartition(" ")
            file, _, number = place.rpartition(":")
            frames.append({"filename": file, "line": int(number) if number.isdecimal() else 0, "name": function})
        return frames

    def metadata(self, phase: int, label: int) -> dict[str, str]:
        """The facts that the page shows beside an event's frames."""
        said, which = self.texts[label // 4], label % 4
        more = {"mark": said} if which == _MARKED else {"tensor": _OF[which] + said} if label else {}
        return {"phase": self.texts[phase], **more}


class _Trace:
    """The events of a survey as opcodes. Making it fills the memo, which is written first."""

    def __init__(self, survey: _Survey, memo: Memo) -> None:
        self._survey, self._memo = survey, memo
        numbers, meant = ("addr", "size", "stream", "time_us"), ("action", "frames", "category", "user_metadata")
        self._rows = PickledDicts(memo, numbers, meant)
        for text in dict.fromkeys([*_ACTIONS.values(), _COMPLETED, *_NAMES]):
            memo.add(text, text)
        memo.add((0, 0, 0), [])
        memo.add((0, 0), {})
        for records, block in survey.events():
            for keys, value in ((self._who(records), survey.frames), (self._what(records, block), survey.metadata)):
                for key in {*keys}:
                    if key not in memo:
                        memo.add(key, value(*key))
        self._actions = np.array([memo[_ACTIONS.get(kind, _COMPLETED)] for kind in Kind])
        self._categories = np.array([memo[name] for name in _NAMES])

    def _who(self, records: np.ndarray) -> Iterator[tuple]:
        return zip(*(records[name].tolist() for name in ("line", "module", "op")), strict=True)

    def _what(self, records: np.ndarray, block: np.ndarray) -> Iterator[tuple]:
        label = np.where(block >= 0, self._survey.label[block], 0)
        label = np.where(records["kind"] == Kind.MARK, records["note"] * 4 + _MARKED, label)
        return zip(records["phase"].tolist(), label.tolist(), strict=True)

    def pieces(self) -> Iterator[bytearray]:
        """The trace, a chunk of the log at a time."""
        segments, last = self._survey.segments, 0
        if segments.rest:
            yield self._row("alloc", segments.rest, self._survey.loose, 0)
        for records, block in self._survey.events():
            if len(records):
                yield self._events(records, block)
                last = int(records["time"][-1]) // 1000
        for address, size in segments.emptied.items():
            yield self._row("segment_free", address, size, last)
        yield self._row("snapshot", 0, 0, last)

    def _row(self, action: str, address: int, size: int, time: int) -> bytearray:
        memo = self._memo
        meant = {"action": memo[action], "category": memo["unknown"], "frames": memo[0, 0, 0], "user_metadata": memo[0, 0]}
        return self._rows.of({"addr": address, "size": size, "time_us": time, **meant}, 1)

    def _events(self, records: np.ndarray, block: np.ndarray) -> bytearray:
        memo, free = self._memo, records["kind"] == Kind.FREE
        category = np.where(block >= 0, self._survey.category[block], _UNKNOWN)
        columns = {
            "addr": records["address"],
            "size": np.where(records["kind"] == Kind.MARK, 0, records["rounded"]),
            "time_us": records["time"] // 1000,
            "action": self._actions[records["kind"]],
            "category": self._categories[category],
            "frames": np.array([memo[key] for key in self._who(records)]),
            "user_metadata": np.array([memo[key] for key in self._what(records, block)]),
        }
        twice = np.repeat(np.arange(len(records)), 1 + free)  # a free is requested, and then completed
        columns = {name: column[twice] for name, column in columns.items()}
        columns["action"][1:][twice[1:] == twice[:-1]] = memo[_COMPLETED]
        return self._rows.of(columns, len(twice))
