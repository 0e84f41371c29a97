"""MNIST's own files, gzipped or not: images and labels in the idx format.

Source: LeCun, Cortes and Burges, *The MNIST database of handwritten digits*: a big-endian magic number (the dtype and the
number of dimensions), the sizes, the bytes.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import FileFormatError
from ..files import unpacking

_PIECE = 1 << 20


def read_idx(path: str | os.PathLike, ndim: int) -> np.ndarray:
    """Read the unsigned bytes of an idx file of ``ndim`` dimensions; a file that ends in ``.gz`` is decompressed.

    The header's sizes are checked against the data as it is read: a wrong header cannot make it allocate more than the file
    has.

    Raises:
        FileFormatError: another format, truncated, or longer than its header says.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            return _read(path, unpacking(file, str(path)) if path.suffix == ".gz" else file, ndim)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise FileFormatError(f"{path}: not a whole gzip file ({error}); download it again") from None


def _read(path: Path, file: IO[bytes], ndim: int) -> np.ndarray:
    header = file.read(4 + 4 * ndim)
    if len(header) < 4 + 4 * ndim:
        raise FileFormatError(f"{path}: an idx header of {4 + 4 * ndim} bytes was expected, the file has {len(header)}")
    magic, *sizes = struct.unpack(f">{1 + ndim}I", header)
    if magic != 0x800 + ndim:
        raise FileFormatError(
            f"{path}: expected an idx file of unsigned bytes with {ndim} dimension(s) (magic {0x800 + ndim}), found {magic}"
        )
    expected = math.prod(sizes)
    data = bytearray()
    while len(data) <= expected and (piece := file.read(min(_PIECE, expected + 1 - len(data)))):
        data += piece
    if len(data) != expected:
        found = f"only {len(data):,}" if len(data) < expected else "more"
        raise FileFormatError(f"{path}: its header says {' x '.join(map(str, sizes))} = {expected:,} bytes, there are {found}")
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _find(folder: Path, name: str) -> Path:
    for candidate in (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise FileNotFoundError(f"MNIST: there is no {name} or {name}.gz in {folder}")


def load_mnist(folder: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, then the held-out ones, from the four original files in ``folder``.

    Returns:
        Images as float32 in [0, 1], (count, 1, 28, 28); labels as int64, (count,).

    Raises:
        FileNotFoundError: a file is not there.
        FileFormatError: a file is not what it should be, or there are not as many labels as images.
    """
    parts: list[np.ndarray] = []
    for prefix in ("train", "t10k"):
        where = Path(folder)
        images = read_idx(_find(where, f"{prefix}-images-idx3-ubyte"), 3)
        labels = read_idx(_find(where, f"{prefix}-labels-idx1-ubyte"), 1)
        if len(images) != len(labels):
            raise FileFormatError(f"MNIST: {folder} has {len(images):,} {prefix} images and {len(labels):,} labels")
        if labels.size and labels.max() > 9:
            raise FileFormatError(f"MNIST: a {prefix} label is {labels.max()}, digits end at 9")
        parts += [images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int64)]
    return parts[0], parts[1], parts[2], parts[3]
