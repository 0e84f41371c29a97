"""``with memory.track() as t:`` records what the pool does, answers questions about it, and shows the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import scope
from ..scope import local
from . import render
from .compare import compare
from .explain import explain
from .export import native, save
from .listener import Recorder
from .record import Record
from .replay import fits, replay


class Track(Record):
    """A :class:`Record` that shows itself. Each method is in the file that it is imported from."""

    compare, explain, fits, replay, save = compare, explain, fits, replay, save
    table, plot, to_html, _repr_html_ = render.table, render.plot, render.to_html, render.summary


def track(device: Any = None) -> Track:
    """Record what ``device``'s pool does during a ``with`` block; see :class:`Track`."""
    return Track(device)


def load(path: Path | str) -> Track:
    """Read a track that :meth:`Track.save` wrote as ``.json`` or ``.json.gz``. It answers all questions but those on tensors.

    Raises:
        FileFormatError: the file is of another kind, damaged, or incomplete.
    """
    return Track.of(native.read(path))


def mark(text: str) -> None:
    """Name this moment in every running track; without one, nothing happens.

    Code inside a prediction marks only the prediction's track, and no other code marks that one.
    """
    for each in scope.listeners:
        if isinstance(each, Recorder):
            device = each.device.host_of or each.device
            if device is local.dry or (local.dry is None and not device.whose):
                each.mark(text)
