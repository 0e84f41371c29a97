"""File formats of a track: one that ``load`` reads, and three for other programs.

Each module here writes one format: ``write(log, file)``. It reads the log a chunk at a time, so that ten million events need
no more memory than the log itself.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from ...files import replacing
from ..log import Log
from ..record import Record
from . import native, snapshot, table, trace


class Format(NamedTuple):
    """One file format for a log."""

    ending: str  # of its files
    write: Callable[[Log, IO[bytes]], None]
    packs: bool  # .gz may follow: programs that read this format can unpack it
    purpose: str  # the program that reads it, in a few words


FORMATS = {
    "trace": Format(".trace.json", trace.write, True, "Perfetto"),  # before the shorter ending
    "json": Format(".json", native.write, True, "memory.load reads it back"),
    "csv": Format(".csv", table.write, True, "pandas and spreadsheets"),
    "snapshot": Format(".pickle", snapshot.write, False, "PyTorch's memory_viz"),
}


def save(self: Record, path: Path | str, format: str | None = None) -> None:
    """Write the track to a file, in the format of the ending of ``path``. An error leaves no half-written file.

    ========================  ============  ================================================================
    ending                    ``format``    what it is for
    ========================  ============  ================================================================
    ``.json``                 ``json``      every event; :func:`load` reads it as a track with the same answers
    ``.csv``                  ``csv``       one row per event, with the bytes of each category after it
    ``.trace.json``           ``trace``     https://ui.perfetto.dev: counters by category, phases, modules and ops
    ``.pickle``               ``snapshot``  https://pytorch.org/memory_viz and ``torch.cuda._memory_viz``
    ========================  ============  ================================================================

    With ``.gz`` after any of the first three the file is compressed. A running track is written as it is now.

    Raises:
        ValueError: there is no such format.
    """
    name = os.path.basename(os.fspath(path)).lower()
    bare = name.removesuffix(".gz")
    if format is not None and format not in FORMATS:
        raise ValueError(f"save: there is no format {format!r}; the formats are {', '.join(FORMATS)}")
    chosen = _by_ending(bare) if format is None else FORMATS[format]
    if bare != name and not chosen.packs:
        raise ValueError(f"save: {chosen.purpose} cannot read a gzip file; remove .gz from {name!r}")
    with replacing(path) as file:
        if bare == name:
            chosen.write(self.log, file)
        else:
            # level 1: a tenth of the size; higher levels take ten times as long. No time stamp: same log, same file
            with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
                chosen.write(self.log, packed)  # type: ignore[arg-type]


def _by_ending(name: str) -> Format:
    found = next((f for f in FORMATS.values() if f".{name}".endswith(f.ending)), None)
    if found is None:
        endings = ", ".join(f"{f.ending} ({f.purpose})" for f in FORMATS.values())
        raise ValueError(
            f"save: the ending of {name!r} names no format. The endings are {endings}, and .gz after all but the last; "
            "or give format="
        )
    return found
