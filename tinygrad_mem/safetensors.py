"""The safetensors format: a length, a JSON header, bytes. No code runs when a file is read.

Every word of a header is checked against the file's size before anything is allocated; the file of a stranger can waste no
more memory than it has bytes.

Source: huggingface/safetensors, its README's *Format* section (the code is ours).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from .dtypes import bfloat16
from .errors import FileFormatError

_CODES = {
    "F16": np.dtype(np.float16),
    "BF16": bfloat16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: code for code, dtype in _CODES.items()}
_LONGEST = 100_000_000  # bytes of a header, the format's own bound
_CONVERT = (
    "Convert it where PyTorch is installed: "
    "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
)
_OTHERS = (
    (
        b"PK\x03\x04",
        f"a zip archive, such as a PyTorch checkpoint (.pt) or .npz; pickles inside can run code. {_CONVERT}",
    ),
    (b"\x80", f"a pickle, such as an old PyTorch checkpoint, which can run code when it is opened. {_CONVERT}"),
    (b"\x93NUMPY", "a NumPy array: read it with numpy.load(path), then from_numpy()"),
    (b"\x89HDF", "an HDF5 file: read it with h5py, then from_numpy()"),
    (b"GGUF", "a GGUF file, which is not read here"),
)


class Entry(NamedTuple):
    """Where one tensor lies: ``begin`` and ``end`` count from the end of the header."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def write_header(file: IO[bytes], tensors: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: dict | None) -> list[str]:
    """Write the header; the names come back in the order in which their bytes follow: widest first, so all are aligned."""
    order = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
    places, at = {}, 0
    for name in order:
        dtype, shape = tensors[name]
        begin, at = at, at + dtype.itemsize * _product(shape)
        places[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, at]}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    header.update((name, places[name]) for name in tensors)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    return order


def read_header(file: IO[bytes], size: int, what: str) -> tuple[list[Entry], dict[str, str]]:
    """The checked entries, in the header's order, and the metadata; ``file`` then stands at the first byte of data.

    Args:
        size: bytes that the file has from here on.
        what: the file's name, for messages.

    Raises:
        FileFormatError: truncated, hostile, or of another format.
    """
    start = file.read(8)
    for magic, found in _OTHERS:
        if start.startswith(magic) and (magic != b"\x80" or start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
            raise FileFormatError(f"{what}: this is {found}")
    if len(start) < 8:
        raise FileFormatError(f"{what}: a safetensors file has 8 bytes of header length at least, found {len(start)} bytes")
    length = int.from_bytes(start, "little")
    if length > min(size - 8, _LONGEST):
        raise FileFormatError(
            f"{what}: not a safetensors file, or truncated: its header should have {length:,} bytes, "
            f"the file has {size - 8:,} after the header's length (at most {_LONGEST:,} are read)"
        )
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FileFormatError(f"{what}: the header should be a JSON object, found {type(header).__name__}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FileFormatError(f"{what}: __metadata__ should hold strings only")
    entries = [_entry(name, value, what) for name, value in header.items()]
    _check_layout(entries, size - 8 - length, what)
    return entries, metadata


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the name {key!r} appears twice")
        found[key] = value
    return found


def _entry(name: str, value: Any, what: str) -> Entry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise FileFormatError(f"{what}: tensor {name!r} needs dtype, shape and data_offsets, found {value!r:.100}")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in _CODES:
        raise FileFormatError(
            f"{what}: tensor {name!r} has dtype {code!r:.40}; offered are {', '.join(_CODES)}. Cast it before it is saved."
        )
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise FileFormatError(f"{what}: tensor {name!r} has shape {shape!r:.60} and data_offsets {offsets!r:.60}")
    begin, end = offsets
    needed = _CODES[code].itemsize * _product(shape)
    if end - begin != needed or len(shape) > 64:
        raise FileFormatError(
            f"{what}: tensor {name!r} ({code} {shape!r:.60}) needs {needed} bytes, its offsets span {end - begin}"
        )
    return Entry(name, _CODES[code], tuple(shape), begin, end)


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _product(shape: Iterable[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _check_layout(entries: list[Entry], size: int, what: str) -> None:
    """The tensors fill the data exactly: no hole, no overlap, nothing outside."""
    at = 0
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != at:
            how = "overlaps the one before it" if entry.begin < at else "leaves a hole before it"
            raise FileFormatError(f"{what}: tensor {entry.name!r} begins at byte {entry.begin}, expected {at}: it {how}")
        at = entry.end
    if at != size:
        how = "the file is truncated" if at > size else "something follows the tensors"
        raise FileFormatError(f"{what}: the tensors take {at:,} bytes, the file has {size:,}: {how}")
