"""A writer of pickles that needs little memory. It uses the few opcodes of protocol 4 that PyTorch's viewer reads.

Python's pickler needs everything in memory as objects, some 10 GB for ten million events. Here the opcodes of an event are a
row of bytes that differs between events in the values only, and a chunk of events is one NumPy array of such rows. Nothing
here reads a pickle.

Source: Python's ``Lib/pickletools.py``, which documents each opcode.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_DICT, _MARK, _SETITEMS, _LIST, _APPEND, _PAIR = b"}", b"(", b"u", b"]", b"a", b"\x86"
_INT = b"\x8a\x08"  # eight bytes follow, signed, little end first
_MEMOIZE, _GET_SHORT, _GET = b"\x94", b"h", b"j"  # store a value in the memo; push one, its number in one byte or four


class Items:
    """A list whose items are given as pieces of opcodes, so that it is never in memory as a whole."""

    def __init__(self, pieces: Iterable[bytes | bytearray]) -> None:
        self.pieces = pieces


def pickled(value: Any) -> Iterator[bytes | bytearray]:
    """The pickle of ``value`` in pieces: text, whole numbers, lists, pairs, dicts, and :class:`Items`."""
    yield b"\x80\x04"  # protocol 4: the newest that the viewer reads
    yield from _opcodes(value)
    yield b"."


def texts(values: Iterable[str]) -> Items:
    """A list of texts that are not in memory at once."""
    return Items(b"".join(_opcodes(text)) + _APPEND for text in values)


def _opcodes(value: Any) -> Iterator[bytes | bytearray]:
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace")
        yield b"\x8c" + bytes([len(text)]) + text if len(text) < 256 else b"X" + len(text).to_bytes(4, "little") + text
    elif isinstance(value, int):
        yield _INT + value.to_bytes(8, "little", signed=True)
    elif isinstance(value, Items):
        yield _LIST
        yield from value.pieces
    elif isinstance(value, list):
        yield _LIST
        for item in value:
            yield from _opcodes(item)
            yield _APPEND
    elif isinstance(value, dict):
        yield _DICT + _MARK
        for pair in value.items():
            for part in pair:
                yield from _opcodes(part)
        yield _SETITEMS
    else:
        for part in value:
            yield from _opcodes(part)
        yield _PAIR


class Memo:
    """Values that are written once and referred to by their number afterwards. They must be the first in the pickle's memo."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._written: list[bytes] = []

    def __getitem__(self, key: Hashable) -> int:
        return self._numbers[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._numbers

    def add(self, key: Hashable, value: Any) -> None:
        """Add ``value`` under ``key``; its number is ``self[key]``."""
        self._numbers[key] = len(self._written)
        self._written.append(b"".join(_opcodes(value)) + _MEMOIZE + _APPEND)

    def items(self) -> Items:
        """The values as a list, to be written before anything that refers to them."""
        return Items(self._written)


class PickledDicts:
    """Dicts with the same keys.

    Args:
        memo: gets the keys.
        numbers: keys whose values are whole numbers.
        meant: keys whose values are given by their number in the memo.
    """

    def __init__(self, memo: Memo, numbers: Iterable[str], meant: Iterable[str]) -> None:
        row, fields = bytearray(_DICT + _MARK), {}
        for keys, opcode, kind in ((numbers, _INT, "<i8"), (meant, _GET, "<u4")):
            for key in keys:
                memo.add(key, key)
                row += _GET_SHORT + bytes([memo[key]]) + opcode
                fields[key] = np.dtype(kind), len(row)
                row += bytes(fields[key][0].itemsize)
        self._row = bytes(row + _SETITEMS + _APPEND)
        kinds, offsets = zip(*fields.values(), strict=True)
        self._dtype = np.dtype({"names": [*fields], "formats": kinds, "offsets": offsets, "itemsize": len(self._row)})

    def of(self, columns: Mapping[str, Any], count: int) -> bytearray:
        """The opcodes that append ``count`` dicts with these values to a list."""
        written = bytearray(self._row * count)
        rows = np.frombuffer(written, self._dtype)
        for name, column in columns.items():
            rows[name] = column
        return written
