"""The log once more from its beginning, with what each event did: a chunk at a time, so that a long run needs no room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..attribution import Attribution
from ..log import Log


class LogPart(NamedTuple):
    """Events in a row; the columns are those of :class:`~tinygrad_mem.memory.attribution.Attribution`."""

    start: int  # number of the first of them in the log
    records: np.ndarray  # of RECORD
    block: np.ndarray
    before: np.ndarray
    after: np.ndarray
    size: np.ndarray


class _Passing(Attribution):
    """An attribution that hands on what it read and keeps only the blocks that live."""

    def __iter__(self) -> Iterator[LogPart]:
        for chunk in self._log.chunks():
            start, columns = self._read, self._fold(chunk)
            self._read += len(chunk)
            yield LogPart(start, chunk, *columns)


def walk(log: Log) -> Iterator[LogPart]:
    """Every event of the log as it is now."""
    return iter(_Passing(log))
