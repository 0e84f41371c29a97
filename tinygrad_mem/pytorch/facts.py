"""The log of a recording: PyTorch's events as events of a log, and each block with its deduced category."""

from __future__ import annotations

import numpy as np

from ..memory.log import RECORD, Kind, Log
from ..memory.sizes import bytes_text
from .categories import RULES, rules_of
from .lifetimes import lifetimes
from .recording import Action, Recording
from .settings import parse
from .stacks import Origins
from .steps import PHASES, steps

_CHUNK = 1 << 16  # events that are converted at once
_NONE = 255
_KINDS = np.full(max(Action) + 1, _NONE, np.uint8)  # for events that are about no block
_KINDS[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = Kind.RESERVE
_KINDS[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = Kind.RELEASE
_KINDS[Action.OOM] = Kind.MARK
_LATEST = 1 << 52  # µs, some 140 years


def log_of(recording: Recording, origins: Origins) -> Log:
    """The log of a recording; ``origins`` are the facts that its stacks show."""
    return _Writer(recording, origins).write()


class _Writer:
    """Converts the events of a recording to those of a log."""

    def __init__(self, recording: Recording, origins: Origins) -> None:
        self._recording = recording
        self._log = Log(f"cuda:{recording.device}")
        self._blocks, parts = lifetimes(recording), steps(recording, origins)
        rules = rules_of(self._blocks, parts, origins)
        self._rules, self._phase = rules, parts.phase
        self._roles = self._codes([each.category.name for each in RULES])
        self._notes = self._codes([f"{each.certainty}: {each.why}" for each in RULES])
        self._phases = self._codes([name or "unknown" for name in PHASES])
        numbers = np.unique(np.concatenate([self._blocks.stack, self._blocks.end_stack]))
        said = [origins.of(number) for number in numbers.tolist()]
        self._ops, self._lines = np.zeros((2, int(numbers.max(initial=0)) + 1), np.uint32)
        self._ops[numbers] = self._codes([origin.op for origin in said])
        self._lines[numbers] = self._codes([origin.line for origin in said])
        times = recording.events["time"]
        self._began = times.min(initial=_LATEST)

    def _codes(self, texts: list[str]) -> np.ndarray:
        return np.array(self._log.codes(texts), np.uint32)

    def write(self) -> Log:
        """Write the blocks of the beginning, and then the events."""
        self._append(self._beginning())
        blocks, count = self._blocks, len(self._recording.events)
        known = np.flatnonzero(blocks.born >= 0)
        born, freed = np.full((2, count + 1), -1, np.int32)  # by event: the block that it allocates, and frees
        born[blocks.born[known]] = known
        freed[blocks.freed] = np.arange(len(blocks))
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            self._append(self._write_events(start, born[start:stop], freed[start:stop]))
        return self._log

    def _append(self, records: np.ndarray) -> None:
        if len(records):
            self._log.extend(records, np.arange(len(self._log.texts), dtype=np.uint32))

    def _beginning(self) -> np.ndarray:
        """Write the segments and blocks that existed when the recording began."""
        segments, _ = self._recording.at_beginning(parse(self._recording.settings))
        older = np.flatnonzero(self._blocks.born < 0)
        records = np.zeros(len(segments) + len(older), RECORD)
        first, rest = records[: len(segments)], records[len(segments) :]
        first["kind"], rest["kind"] = Kind.RESERVE, Kind.OLDER
        first["address"] = [segment.address for segment in segments]
        first["rounded"] = [segment.size for segment in segments]
        self._write_mallocs(rest, older)
        records["phase"] = self._phases[0]
        return records

    def _write_events(self, start: int, born: np.ndarray, freed: np.ndarray) -> np.ndarray:
        """Write the events from number ``start`` on. An allocation at an address that was not freed first frees the block
        there."""
        events = self._recording.events[start : start + len(born)]
        kinds = _KINDS[events["action"]]
        ends, births, others = (np.flatnonzero(each) for each in (freed >= 0, born >= 0, kinds != _NONE))
        place = np.concatenate([2 * ends, 2 * births + 1, 2 * others])
        about = place // 2
        records = np.zeros(len(place), RECORD)
        records["time"] = (np.minimum(events["time"][about], _LATEST) - self._began).astype(np.int64).clip(0) * 1000
        records["phase"] = self._phases[self._phase[start + about]]
        first, rest = len(ends), len(ends) + len(births)
        self._write_ends(records[:first], freed[ends])
        records["kind"][first:rest] = Kind.MALLOC
        self._write_mallocs(records[first:rest], born[births])
        self._of_segments(records[rest:], events[others], kinds[others])
        return records[np.argsort(place, kind="stable")]

    def _write_mallocs(self, records: np.ndarray, blocks: np.ndarray) -> None:
        """Fill in the facts of new blocks."""
        stack = self._blocks.stack[blocks]
        records["address"], records["requested"] = self._blocks.address[blocks], self._blocks.requested[blocks]
        records["rounded"] = self._blocks.size[blocks]
        records["op"], records["line"] = self._ops[stack], self._lines[stack]
        records["role"], records["note"] = self._roles[self._rules[blocks]], self._notes[self._rules[blocks]]

    def _write_ends(self, records: np.ndarray, blocks: np.ndarray) -> None:
        stack = self._blocks.end_stack[blocks]
        records["kind"] = Kind.FREE
        records["address"], records["rounded"] = self._blocks.address[blocks], self._blocks.size[blocks]
        records["op"], records["line"] = self._ops[stack], self._lines[stack]

    def _of_segments(self, records: np.ndarray, events: np.ndarray, kinds: np.ndarray) -> None:
        """Write reserved and released segments, and a mark for each request that failed."""
        records["kind"], records["address"], records["rounded"] = kinds, events["address"], events["size"]
        for at in np.flatnonzero(kinds == Kind.MARK).tolist():
            asked, left = (bytes_text(int(events[name][at])) for name in ("size", "address"))
            records["note"][at] = self._codes([f"out of memory: {asked} asked, the driver had {left} left"])[0]
            records["address"][at] = records["rounded"][at] = 0
