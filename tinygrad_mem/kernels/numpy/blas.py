"""What ``np.matmul`` does not offer: products that add to their result, and BLAS on one thread while our threads run.

NumPy bundles OpenBLAS; its functions are found through ctypes in NumPy's own shared libraries. Where there is no such
library (another BLAS, another platform) everything still works: products are added tile by tile, and BLAS keeps its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .threads import scratch

_NAMES = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))  # how builds of OpenBLAS prefix and suffix their names
_ROWS, _NO, _YES = 101, 111, 112  # cblas: row-major, plain, transposed


def _open() -> tuple[Any, str, str] | None:
    """The OpenBLAS that NumPy uses, with its names' prefix and suffix."""
    import os

    root = Path(np.__file__).parent
    places = [root.parent / "numpy.libs", root / ".dylibs"]
    for path in sorted(p for place in places if place.is_dir() for p in place.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOLOAD", 0) | ctypes.DEFAULT_MODE)
        except OSError:
            continue
        for prefix, suffix in _NAMES:
            if hasattr(library, f"{prefix}openblas_set_num_threads{suffix}"):
                return library, prefix, suffix
    return None


_library = _open()


def _function(name: str, arguments: list, result: Any = None) -> Any:
    if _library is None:
        return None
    library, prefix, suffix = _library
    function = getattr(library, f"{prefix}{name}{suffix}", None)
    if function is not None:
        function.argtypes, function.restype = arguments, result
    return function


_set_threads = _function("openblas_set_num_threads", [ctypes.c_int])
_get_threads = _function("openblas_get_num_threads", [], ctypes.c_int)
_long = ctypes.c_int64 if _library is not None and "64" in _library[2] else ctypes.c_int


def _gemm_of(name: str, real: Any) -> Any:
    pointer, enum = ctypes.c_void_p, ctypes.c_int
    sizes = [enum, enum, enum, _long, _long, _long]
    return _function(name, [*sizes, real, pointer, _long, pointer, _long, real, pointer, _long])


_GEMM = {
    np.dtype(np.float32): _gemm_of("cblas_sgemm", ctypes.c_float),
    np.dtype(np.float64): _gemm_of("cblas_dgemm", ctypes.c_double),
}
_omatcopy = _function(
    "cblas_somatcopy",
    [ctypes.c_int, ctypes.c_int, _long, _long, ctypes.c_float, ctypes.c_void_p, _long, ctypes.c_void_p, _long],
)
_single_lock = threading.Lock()
_single_users = 0
_single_before = 1


@contextlib.contextmanager
def single(wanted: bool = True) -> Iterator[None]:
    """While open, BLAS computes on the calling thread only: our own threads share the work."""
    global _single_users, _single_before
    if not wanted or _set_threads is None:
        yield
        return
    with _single_lock:
        if _single_users == 0:
            _single_before = _get_threads()
            if _single_before != 1:
                _set_threads(1)
        _single_users += 1
    try:
        yield
    finally:
        with _single_lock:
            _single_users -= 1
            if _single_users == 0 and _single_before != 1:
                _set_threads(_single_before)


def _layout(a: np.ndarray) -> tuple[int, int] | None:
    """(plain or transposed, leading dimension) of a matrix as cblas reads it in rows, or ``None``."""
    (rows, columns), (down, right), size = a.shape, a.strides, a.itemsize
    if (right == size or columns == 1) and down >= size * columns and down % size == 0:
        return _NO, down // size
    if (down == size or rows == 1) and right >= size * rows and right % size == 0:
        return _YES, right // size
    return None


def add_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out += a @ b, of matrices of one dtype; ``out`` has contiguous rows."""
    gemm = _GEMM.get(out.dtype)
    if gemm is not None and out.strides[1] == out.itemsize and out.strides[0] >= out.itemsize * out.shape[1]:
        left, right = _layout(a), _layout(b)
        if left is not None and right is not None:
            (m, k), n = a.shape, b.shape[1]
            where = [x.__array_interface__["data"][0] for x in (a, b, out)]
            step = out.strides[0] // out.itemsize
            gemm(_ROWS, left[0], right[0], m, n, k, 1.0, where[0], left[1], where[1], right[1], 1.0, where[2], step)
            return
    rows, columns = out.shape
    width = min(columns, 1 << 13)
    height = max((1 << 15) // width, 1)
    for i in range(0, rows, height):
        for j in range(0, columns, width):
            part = out[i : i + height, j : j + width]
            tile = scratch(part.shape, out.dtype)
            np.matmul(a[i : i + height], b[:, j : j + width], out=tile)
            part += tile


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """out = a @ b, or out += a @ b."""
    if add:
        add_product(a, b, out)
    else:
        np.matmul(a, b, out=out)


def channels_first(x: np.ndarray, out: np.ndarray) -> None:
    """out (N, C, H, W) = x (N, H, W, C), float32; both have rows without gaps."""
    images, height, width, channels = x.shape
    size = x.itemsize
    if _omatcopy is None or x.dtype != np.float32 or x.strides[3] != size or out.strides[3] != size or x.size == 0:
        np.copyto(out, x.transpose(0, 3, 1, 2))
        return
    whole = x.strides[1] == width * x.strides[2] and out.strides[2] == width * size
    count, rows, line = (1, height * width, 0) if whole else (height, width, 1)
    source, target = x.__array_interface__["data"][0], out.__array_interface__["data"][0]
    for n in range(images):
        for h in range(count):
            a = source + n * x.strides[0] + h * line * x.strides[1]
            b = target + n * out.strides[0] + h * line * out.strides[2]
            _omatcopy(_ROWS, _YES, rows, channels, 1.0, a, x.strides[2] // size, b, out.strides[1] // size)
