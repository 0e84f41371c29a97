"""A track in files: one that is read back, and three for other programs.

Each module here writes one format: ``write(log, file)``. All of them pass through the log a chunk at a time, so that ten
million events need no more room than the log itself.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from ...files import replacing
from ..log import Log
from . import native, snapshot, table, trace


class Format(NamedTuple):
    """One way to write a log.

    Attributes:
        ending: of the files that are written so.
        write: writes a log into a file.
        packs: whether ``.gz`` may follow: whoever reads this format unpacks it by himself.
        purpose: who reads it, in a few words.
    """

    ending: str
    write: Callable[[Log, IO[bytes]], None]
    packs: bool
    purpose: str


FORMATS = {
    "trace": Format(".trace.json", trace.write, True, "Perfetto"),  # before the shorter ending
    "json": Format(".json", native.write, True, "memory.load reads it back"),
    "csv": Format(".csv", table.write, True, "pandas and spreadsheets"),
    "snapshot": Format(".pickle", snapshot.write, False, "PyTorch's memory_viz"),
}


def save(log: Log, path: Path | str, format: str | None = None) -> None:
    """Write ``log`` to ``path``, whole or not at all; see :meth:`Track.save <tinygrad_mem.memory.Track.save>`."""
    name = os.path.basename(os.fspath(path)).lower()
    bare = name.removesuffix(".gz")
    chosen = _by_name(format) if format is not None else _by_ending(bare)
    if bare != name and not chosen.packs:
        raise ValueError(f"save: {chosen.purpose} cannot read a file packed by gzip; leave the .gz out of {name!r}")
    with replacing(path) as file:
        if bare == name:
            chosen.write(log, file)
        else:
            # level 1: a log packs to a tenth, and to little less at ten times the price; no time stamp: same log, same file
            with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
                chosen.write(log, packed)  # type: ignore[arg-type]


def _by_name(format: str) -> Format:
    if format not in FORMATS:
        raise ValueError(f"save: there is no format {format!r}; there are {', '.join(FORMATS)}")
    return FORMATS[format]


def _by_ending(name: str) -> Format:
    found = next((f for f in FORMATS.values() if f".{name}".endswith(f.ending)), None)
    if found is None:
        endings = ", ".join(f"{f.ending} ({f.purpose})" for f in FORMATS.values())
        raise ValueError(
            f"save: the ending of {name!r} names no format. There are {endings}, and .gz after all but the last; "
            "or give format="
        )
    return found
