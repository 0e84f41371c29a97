"""Readers of original distribution files, on small files in their exact format."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.profiles import every
from tinygrad_mem.data.cifar10 import load_cifar10
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.data.mnist import load_mnist, read_idx
from tinygrad_mem.errors import FileFormatError


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, zipped: bool, dotted: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    written = {}
    for prefix, count in (("train", 20), ("t10k", 5)):
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
            (f"{prefix}-labels-idx1-ubyte", rng.integers(0, 10, count, dtype=np.uint8)),
        ):
            written[name] = array
            path = folder / (name.replace("-idx", ".idx") if dotted else name)
            if zipped:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return written


@pytest.mark.parametrize(("zipped", "dotted"), [(False, False), (True, False), (False, True), (True, True)])
def test_mnist(tmp_path, zipped, dotted):
    written = write_mnist(tmp_path, zipped=zipped, dotted=dotted)
    train_x, train_y, test_x, test_y = load_mnist(tmp_path)
    assert train_x.shape == (20, 1, 28, 28)
    assert test_x.shape == (5, 1, 28, 28)
    assert train_x.dtype == test_x.dtype == np.float32
    assert train_y.dtype == test_y.dtype == np.int64
    np.testing.assert_allclose(train_x[:, 0], written["train-images-idx3-ubyte"] / 255, rtol=1e-6)
    np.testing.assert_array_equal(test_y, written["t10k-labels-idx1-ubyte"])


BAD_IDX = {
    "empty": (b"", "an idx header of 16 bytes was expected, the file has 0"),
    "half a header": (struct.pack(">II", 0x803, 1), "the file has 8"),
    "labels": (idx(np.zeros(30, np.uint8)), "found 2049"),
    "floats": (struct.pack(">4I", 0xD03, 1, 1, 1) + b"\0" * 4, "found 3331"),
    "truncated": (idx(np.zeros((2, 3, 3), np.uint8))[:-1], r"2 x 3 x 3 = 18 bytes, there are only 17"),
    "too long": (idx(np.zeros((2, 3, 3), np.uint8)) + b"x", "18 bytes, there are more"),
    "hostile": (struct.pack(">4I", 0x803, *[2**32 - 1] * 3) + b"x", "there are only 1"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", BAD_IDX)
def test_bad_idx_files_are_refused(tmp_path, name, zipped):
    content, message = BAD_IDX[name]
    path = tmp_path / ("x.gz" if zipped else "x")
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(FileFormatError, match=message):
        read_idx(path, 3)


@pytest.mark.parametrize("content", [b"not gzip at all", gzip.compress(idx(np.zeros((9, 99, 99), np.uint8)))[:-30]])
def test_damaged_gzip_files_are_refused(tmp_path, content):
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a whole gzip file"):
        read_idx(path, 3)


def test_mnist_folders_that_are_not_right(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no train-images-idx3-ubyte or .* in .*nowhere"):
        load_mnist(tmp_path / "nowhere")
    write_mnist(tmp_path, zipped=False)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(FileFormatError, match="has 20 train images and 19 labels"):
        load_mnist(tmp_path)
    labels.write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(FileFormatError, match="a train label is 10, digits end at 9"):
        load_mnist(tmp_path)


def write_cifar10(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    written = {}
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = rng.integers(0, 256, (3, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
        written[name] = records
    return written


@pytest.mark.parametrize("nested", [False, True])
def test_cifar10(tmp_path, nested):
    folder = tmp_path / "cifar-10-batches-bin" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    written = write_cifar10(folder)
    train_x, train_y, test_x, test_y = load_cifar10(tmp_path)
    assert train_x.shape == (15, 3, 32, 32)
    assert test_x.shape == (3, 3, 32, 32)
    assert (train_x.dtype, test_y.dtype) == (np.float32, np.int64)
    second = written["data_batch_2.bin"]
    np.testing.assert_array_equal(train_y[3:6], second[:, 0])
    np.testing.assert_allclose(train_x[3:6].reshape(3, -1), second[:, 1:] / 255, rtol=1e-6)


def test_cifar10_folders_that_are_not_right(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no data_batch_1\.bin in"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}")
    with pytest.raises(FileFormatError, match=r"Python \(pickle\) version; download cifar-10-binary"):
        load_cifar10(tmp_path)
    write_cifar10(tmp_path)
    with (tmp_path / "data_batch_4.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(FileFormatError, match="9,220 bytes are not a whole number of CIFAR-10 records of 3073 bytes"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_4.bin").write_bytes(b"\xff" * 3073)
    with pytest.raises(FileFormatError, match="a label is 255"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_4.bin").write_bytes(b"")
    with pytest.raises(FileFormatError, match="0 bytes are not a whole number"):
        load_cifar10(tmp_path)


def test_digits_are_split_the_same_way_every_time():
    train_x, train_y, test_x, test_y = load_digits()
    assert train_x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert train_x.dtype == np.float32
    assert train_y.dtype == np.int64
    assert 0 <= train_x.min() < train_x.max() == 1
    assert np.bincount(test_y).min() > 25
    assert 16 * sum(images.sum(dtype=float) for images in (train_x, test_x)) == 561_718
    if every(2) == 1:  # to import scikit-learn takes a second
        theirs, held_out = pytest.importorskip("sklearn.datasets").load_digits(), np.arange(1797) % 5 == 0
        for images, labels, part in ((train_x, train_y, ~held_out), (test_x, test_y, held_out)):
            np.testing.assert_array_equal(16 * images[:, 0], theirs.images[part])
            np.testing.assert_array_equal(labels, theirs.target[part])
    assert all(np.array_equal(a, b) for a, b in zip(load_digits(), (train_x, train_y, test_x, test_y), strict=True))


def test_without_scikit_learn_the_error_says_how_to_get_it():
    program = "import sys; sys.modules['sklearn'] = None\nfrom tinygrad_mem.data.digits import load_digits\nload_digits()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "load_digits needs sklearn, which is not installed: pip install scikit-learn" in done.stderr
    assert "ModuleNotFoundError" in done.stderr
