"""The memory inside calls, in a file of the user's cache folder: one process runs them, later ones read it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ...files import replacing
from .described import AloneCall, Made, Within

_FORMAT = "4"  # another one whenever what is learned of a call, or how a call is described, changes
_MOST = 20_000  # calls in a file: about 4 MB
_LIBRARIES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "TORCH_")  # variables that begin so
_VARYING = {"processor", "physical id", "core id", "apicid", "initial apicid", "cpu mhz", "bogomips", "microcode"}
_PLAIN = (int, float, bool, str, type, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Remembered:
    """The memory of calls that were run on this machine, with these libraries.

    Args:
        folder: ``None``: nothing is read or written.
    """

    def __init__(self, folder: Path | None) -> None:
        machine = _machine()
        self._file = folder / f"inside-{machine}.json" if folder is not None and machine else None
        self._known, self._new = self._read_file(), dict[str, list]()

    def get(self, call: AloneCall) -> Within | None:
        """The memory of a call; ``None``: no process has learned it."""
        found = self._known.get(_key(call)) if self._known else None
        try:
            return None if found is None else Within(found[0], found[1], tuple(map(_made_from_json, found[2])))
        except (TypeError, ValueError, AttributeError, IndexError, KeyError):
            return None  # a damaged file: it is learned again

    def add(self, call: AloneCall, found: Within) -> None:
        """Remember what a call takes."""
        sure = not found.unknown and not found.more
        if self._file is not None and sure and call.func.namespace == "aten" and _plain(call[1:]):
            made = [None if each is None else [*each[:2], str(each.dtype), each.size] for each in found.made]
            self._new[_key(call)] = [found.peak, found.kept, made]

    def save(self) -> None:
        """Write what is new, if that is possible, beside what other processes have written meanwhile."""
        if self._file is None or not self._new:
            return
        known = {**self._read_file(), **self._new}
        self._known, self._new = known if len(known) <= _MOST else self._new, {}
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._file) as file:
                file.write(json.dumps(self._known).encode())

    def _read_file(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def _machine() -> str:
    """A hash of what memory depends on beside the call: the processor, PyTorch and its libraries, their settings; ``""``:
    the processor is not known."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return ""
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().lower() not in _VARYING]
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_LIBRARIES))
    parts = [_FORMAT, torch.__version__, str(torch.version.git_version), torch.__config__.show(), *lines, *settings]
    return sha256("\n".join(parts).encode()).hexdigest()[:12]


def _key(call: AloneCall) -> str:
    return sha256(repr(call).encode()).hexdigest()[:32]


def _plain(value: Any) -> bool:
    """True if the text of the value describes it completely."""
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _made_from_json(found: Any) -> Made | None:
    if found is None:
        return None
    sizes, strides, dtype, size = found
    return Made(tuple(sizes), tuple(strides), getattr(torch, dtype.removeprefix("torch.")), size)
