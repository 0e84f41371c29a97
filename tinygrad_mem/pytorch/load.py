"""A track of a PyTorch snapshot: the facts that the file has, as our log has them, and the categories that can be told."""

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

_HUGE, _HIGH = 1 << 48, 1 << 62  # bytes of one request, and addresses, that no machine has


def load(path: str | os.PathLike, device: int | None = None, progress: Callable[[int], object] = lambda count: None) -> Track:
    """A track of the memory snapshot of a PyTorch run, the file of ``torch.cuda.memory._dump_snapshot``.

    It answers as a track of ours does, but for modules, of which a snapshot says nothing. Bytes are those that PyTorch counts
    as allocated; a block ends when its tensor does, also where another stream still works on it. No code of the file is run.

    Categories are told from stacks and lifetimes; :attr:`Block.told` says how sure each is, and why. Where a snapshot has no
    stacks most are unknown. An out-of-memory error is a mark.

    Args:
        path: the file, packed by gzip or not, of any version of PyTorch since 2.0.
        device: of a snapshot with several devices, which one.
        progress: called with the number of bytes that were read since the last call.

    Raises:
        FileFormatError: the file is no snapshot, is damaged, not whole, or would run code.
        ValueError: there is no such device, or there are several and none is named.
    """
    return track_of(read(path, progress), device, Path(path).name)


def track_of(snapshot: Snapshot, device: int | None = None, what: str = "the snapshot") -> Track:
    """A track of a snapshot that was read; ``what`` names it in errors.

    Raises:
        FileFormatError: it has numbers that no card has.
        ValueError: there is no such device, or there are several and none is named.
    """
    if snapshot.track is not None and device in (None, 0):
        return Track.of(_ours(snapshot.track, what))
    recording = snapshot.of(device)
    refuse_huge(recording, what)
    return Track.of(log_of(recording, Origins(snapshot.stacks)))


def _ours(texts: list[Any], what: str) -> Log:
    """The log of a track of ours, which its snapshot has beside what PyTorch's format has a place for."""
    with TemporaryFile() as file:
        try:
            file.writelines(map(base64.b64decode, texts))
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{what}: the track in it is damaged: {error}") from None
        file.seek(0)
        return native.read_from(file, what)


def refuse_huge(recording: Recording, what: str) -> None:
    """Refuse numbers whose sums would be wrong."""
    events = recording.events[recording.events["action"] != Action.OTHER]
    size = max([int(events["size"].max(initial=0)), *(segment.size for segment in recording.segments)])
    if size > _HUGE or int(events["address"].max(initial=0)) > _HIGH:
        raise FileFormatError(f"{what}: it is damaged: no card has {size:,} bytes, or such addresses")
