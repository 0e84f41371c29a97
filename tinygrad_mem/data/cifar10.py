"""CIFAR-10's own files, in the binary version: records of one label byte and 3 x 32 x 32 pixel bytes.

Source: Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import FileFormatError

_RECORD = 1 + 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_batch(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 3, 32, 32) and labels (count,) of one file, as unsigned bytes.

    Raises:
        FileFormatError: not a whole number of records, or a label above 9.
    """
    data = np.fromfile(path, np.uint8)
    if not data.size or data.size % _RECORD:
        raise FileFormatError(
            f"{path}: {data.size:,} bytes are not a whole number of CIFAR-10 records of {_RECORD} bytes; the file is "
            "truncated, or not of the binary version (cifar-10-binary.tar.gz)"
        )
    records = data.reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise FileFormatError(
            f"{path}: a label is {records[:, 0].max()}, the classes end at 9; is this CIFAR-10's binary version?"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def load_cifar10(folder: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, then the held-out ones, from the six original files.

    Args:
        folder: the folder of the files, or the one above it (which holds ``cifar-10-batches-bin``).

    Returns:
        Images as float32 in [0, 1], (count, 3, 32, 32); labels as int64, (count,).

    Raises:
        FileNotFoundError: a file is not there.
        FileFormatError: a file is not of the binary version, or is truncated.
    """
    where = Path(folder)
    if (where / "cifar-10-batches-bin").is_dir():
        where /= "cifar-10-batches-bin"
    for name in (*_TRAIN, "test_batch.bin"):
        if not (where / name).is_file():
            other = (where / name).with_suffix("")
            if other.is_file():
                raise FileFormatError(f"{other}: this is the Python (pickle) version; download cifar-10-binary.tar.gz instead")
            raise FileNotFoundError(f"CIFAR-10: there is no {name} in {where}")
    train = [read_batch(where / name) for name in _TRAIN]
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    test_images, test_labels = read_batch(where / "test_batch.bin")
    return _scale_to_one(images), labels.astype(np.int64), _scale_to_one(test_images), test_labels.astype(np.int64)


def _scale_to_one(images: np.ndarray) -> np.ndarray:
    scaled = images.astype(np.float32)
    scaled /= np.float32(255)
    return scaled
