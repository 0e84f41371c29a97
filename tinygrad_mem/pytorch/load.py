"""A track of a PyTorch snapshot: the file's events as a log, and the categories that can be deduced."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..errors import FileFormatError
from ..memory.export import native
from ..memory.log import Log
from ..memory.track import Track
from .facts import log_of
from .recording import Action, Recording
from .snapshot import Snapshot, read
from .stacks import Origins

_HUGE, _HIGH = 1 << 48, 1 << 62  # limits of sizes and addresses on real machines


def load(path: str | os.PathLike, device: int | None = None, progress: Callable[[int], object] = lambda count: None) -> Track:
    """A track of the memory snapshot of a PyTorch run, the file of ``torch.cuda.memory._dump_snapshot``.

    It answers as a track of this library does, except about modules, which a snapshot does not name. Bytes are those that
    PyTorch counts as allocated: a block ends when the program frees it, even if another stream still uses it. No code of the
    file is run. Categories are deduced from stacks and lifetimes; :attr:`Block.deduced` says how sure each is, and why.
    Without stacks most are unknown. An out-of-memory error becomes a mark.

    Args:
        path: the file, with or without gzip, of any version of PyTorch since 2.0.
        device: the number of the device, if the snapshot has several.
        progress: called with the number of bytes that were read since the last call.

    Raises:
        FileFormatError: the file is not a snapshot, is damaged or incomplete, or would run code.
        ValueError: there is no such device, or there are several and none is named.
    """
    return track_of(read(path, progress), device, Path(path).name)


def track_of(snapshot: Snapshot, device: int | None = None, what: str = "the snapshot") -> Track:
    """The track of a snapshot in memory; ``what`` names it in errors."""
    if snapshot.track is not None and device in (None, 0):
        return Track.of(_ours(snapshot.track, what))
    recording = snapshot.of(device)
    refuse_huge(recording, what)
    return Track.of(log_of(recording, Origins(snapshot.stacks)))


def _ours(texts: list[Any], what: str) -> Log:
    """The log of this library's track, if the snapshot was made from one: the file holds it beside PyTorch's data."""
    with TemporaryFile() as file:
        try:
            file.writelines(map(base64.b64decode, texts))
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{what}: the track in it is damaged: {error}") from None
        file.seek(0)
        return native.read_from(file, what)


def refuse_huge(recording: Recording, what: str) -> None:
    """Refuse numbers whose sums would overflow."""
    events = recording.events[recording.events["action"] != Action.OTHER]
    size = max([int(events["size"].max(initial=0)), *(segment.size for segment in recording.segments)])
    if size > _HUGE or int(events["address"].max(initial=0)) > _HIGH:
        raise FileFormatError(f"{what}: it is damaged: no card has {size:,} bytes, or such addresses")
