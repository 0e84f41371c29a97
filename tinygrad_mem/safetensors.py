"""The safetensors format: a length, a JSON header, bytes. No code runs when a file is read.

The header is checked against the file's size before anything is allocated, so that a hostile file cannot take more memory than
it has bytes.

Source: huggingface/safetensors, its README's *Format* section (the code is ours).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from .dtypes import ALL
from .errors import FileFormatError

_CODES = dict(zip(["F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "BOOL"], ALL, strict=True))
_NAMES = {dtype: code for code, dtype in _CODES.items()}
_LONGEST = 100_000_000  # bytes of a header, the format's own bound
_METADATA = "__metadata__"
_SPACE = re.compile(r"[ \t\n\r]*")
_ENTRY = 4096  # characters that are read of what a header says of one tensor: 64 dimensions need half of them
_MOST = (1 << 63) - 1  # of a number, and of an array's bytes
_CONVERT = (
    "Convert it where PyTorch is installed: "
    "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
)
_OTHERS = (
    (b"PK\x03\x04", f"a zip archive, such as a PyTorch checkpoint (.pt) or .npz; pickles inside can run code. {_CONVERT}"),
    (b"\x80", f"a pickle, such as an old PyTorch checkpoint, which can run code when it is opened. {_CONVERT}"),
    (b"\x93NUMPY", "a NumPy array: read it with numpy.load(path), then from_numpy()"),
    (b"\x89HDF", "an HDF5 file: read it with h5py, then from_numpy()"),
    (b"GGUF", "a GGUF file, which is not read here"),
)


class Entry(NamedTuple):
    """The place of one tensor: ``begin`` and ``end`` count from the end of the header."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def write_header(file: IO[bytes], tensors: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: dict | None) -> list[str]:
    """Write the header. Returns the names in the order of their data: widest dtypes first, so that all are aligned."""
    order = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
    places, at = {}, 0
    for name in order:
        dtype, shape = tensors[name]
        begin, at = at, at + dtype.itemsize * math.prod(shape)
        places[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, at]}
    header: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    header.update((name, places[name]) for name in tensors)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    return order


def read_header(file: IO[bytes], size: int, what: str) -> tuple[list[Entry], dict[str, str]]:
    """Read and check the header. Returns its entries and the metadata; ``file`` is then at the first byte of data.

    Args:
        size: the remaining bytes of the file.
        what: the file's name, for messages.

    Raises:
        FileFormatError: truncated, hostile, or of another format.
    """
    start = file.read(8)
    length, fits = int.from_bytes(start, "little"), min(max(size - 8, 0), _LONGEST)
    if len(start) < 8 or length > fits:  # a length that fits may begin with the bytes of another format
        for magic, found in _OTHERS:
            if start.startswith(magic) and (magic != b"\x80" or start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
                raise FileFormatError(f"{what}: this is {found}")
    if len(start) < 8:
        raise FileFormatError(f"{what}: a safetensors file has 8 bytes of header length at least, found {len(start)} bytes")
    if length > fits:
        raise FileFormatError(
            f"{what}: not a safetensors file, or truncated: its header should have {length:,} bytes, "
            f"the file has {max(size - 8, 0):,} after the header's length (at most {_LONGEST:,} are read)"
        )
    try:
        text = file.read(length).decode()
        if text[:1] != "{":
            raise FileFormatError(f"{what}: the header should be a JSON object, it begins with {text[:20]!r}")
        found, end = _object(text, 0, lambda name, at: _value(name, text, at, what))
        if _skip(text, end) != len(text):
            raise ValueError(f"something follows its end at character {end:,}")
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what}: the header is not JSON: {error}") from None
    metadata = found.pop(_METADATA, {})
    entries = list(found.values())
    _check_layout(entries, size - 8 - length, what)
    return entries, metadata


def check_bools(data: np.ndarray, entry: Entry, what: str) -> None:
    """Check bytes of a tensor. Raises: FileFormatError: the tensor is of bools, and one is neither 0 nor 1."""
    if entry.dtype.kind == "b" and data.view(np.uint8).max(initial=0) > 1:
        raise FileFormatError(f"{what}: tensor {entry.name!r} is BOOL and holds bytes that are neither 0 nor 1")


def _object(text: str, at: int, value: Callable[[str, int], tuple[Any, int]]) -> tuple[dict[str, Any], int]:
    """The JSON object that begins at ``at``, and its end; ``value`` reads the value of a name, and returns it with its end.

    It is read pair by pair: ``json.loads`` would need forty times the bytes of a hostile header before it can be checked.
    """
    found: dict[str, Any] = {}
    at = _after("{", text, at)
    while text[at : at + 1] != "}" or found:
        name, at = _string(text, at)
        if name in found:
            raise ValueError(f"the name {name!r:.80} appears twice")
        found[name], at = value(name, _after(":", text, _skip(text, at)))
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        at = _after(",", text, at)
    return found, at + 1


def _skip(text: str, at: int) -> int:
    """The place where the white space from ``at`` on ends."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _after(sign: str, text: str, at: int) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign} at character {at:,}, found {text[at : at + 20]!r}")
    return _skip(text, at + 1)


def _string(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        raise ValueError(f"expected a name at character {at:,}, found {text[at : at + 20]!r}")
    found, end = _JSON.raw_decode(text, at)
    found.encode()  # JSON can write half of a character, which no text can hold
    return found, end


def _value(name: str, text: str, at: int, what: str) -> tuple[Any, int]:
    """A tensor's entry, or the metadata."""
    if name == _METADATA:
        if text[at : at + 1] != "{":
            raise FileFormatError(f"{what}: {_METADATA} should be a JSON object, it begins with {text[at : at + 20]!r}")
        return _object(text, at, lambda name, at: _metadatum(text, at, what))
    try:
        value, length = _JSON.raw_decode(text[at : at + _ENTRY])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{what}: the header is not JSON where it describes tensor {name!r:.80} in {_ENTRY:,} characters at most: {error}"
        ) from None
    return _entry(name, value, what), at + length


def _metadatum(text: str, at: int, what: str) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        raise FileFormatError(f"{what}: {_METADATA} should hold strings only, found {text[at : at + 20]!r}")
    return _string(text, at)


def no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook`` for ``json`` that refuses repeated names."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the name {key!r:.80} appears twice")
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


_JSON = json.JSONDecoder(object_pairs_hook=no_duplicates, parse_constant=_no_constant)


def _entry(name: str, value: Any, what: str) -> Entry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise FileFormatError(f"{what}: tensor {name!r:.80} needs dtype, shape and data_offsets, found {value!r:.100}")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in _CODES:
        raise FileFormatError(
            f"{what}: tensor {name!r:.80} has dtype {code!r:.40}; offered are {', '.join(_CODES)}. Cast it before it is saved."
        )
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise FileFormatError(f"{what}: tensor {name!r:.80} has shape {shape!r:.60} and data_offsets {offsets!r:.60}")
    begin, end = offsets
    needed = _CODES[code].itemsize * math.prod(shape)
    if end - begin != needed:
        raise FileFormatError(
            f"{what}: tensor {name!r:.80} ({code} {shape!r:.60}) needs {needed} bytes, its offsets span {end - begin}"
        )
    if len(shape) > 64 or _CODES[code].itemsize * math.prod(n or 1 for n in shape) > _MOST:
        raise FileFormatError(f"{what}: tensor {name!r:.80} has shape {shape!r:.60}, which is more than an array can have")
    return Entry(name, _CODES[code], tuple(shape), begin, end)


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _MOST for n in value)


def _check_layout(entries: list[Entry], size: int, what: str) -> None:
    """Check that the tensors fill the data exactly, without holes or overlaps."""
    at = 0
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != at:
            how = "overlaps the one before it" if entry.begin < at else "leaves a hole before it"
            raise FileFormatError(f"{what}: tensor {entry.name!r:.80} begins at byte {entry.begin}, expected {at}: it {how}")
        at = entry.end
    if at != size:
        how = "the file is truncated" if at > size else "something follows the tensors"
        raise FileFormatError(f"{what}: the tensors take {at:,} bytes, the file has {size:,}: {how}")
