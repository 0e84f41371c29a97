"""Matrix products beyond ``np.matmul``: products that add to their result, and control of BLAS's threads.

After a product, BLAS's threads wait for more work in a busy loop, on the cores that our threads need next: a step of an LSTM
took 1.5 times as long. So BLAS uses one thread, and ours share large products.

NumPy bundles OpenBLAS; ctypes finds its functions in NumPy's shared libraries. If there is no such library (another BLAS,
another platform), everything still works: products are added tile by tile, and BLAS keeps its threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ....interrupts import lock, signal_safe
from .threads import GRAIN, SCRATCH, scratch, split

_NAMES = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))  # prefixes and suffixes of names in builds of OpenBLAS
_ROWS, _NO, _YES = map(ctypes.c_int, (101, 111, 112))  # cblas: row-major, plain, transposed


def _open() -> tuple[Any, str, str] | None:
    """The OpenBLAS that NumPy uses, and the prefix and suffix of its names."""
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


def kernels() -> str | None:
    """The name of OpenBLAS's kernels, "SkylakeX" say; ``None`` for another BLAS."""
    name = _function("openblas_get_corename", [], ctypes.c_char_p)
    return None if name is None else name().decode()


for_avx512 = kernels() in ("SkylakeX", "Cooperlake", "SapphireRapids")  # as OPENBLAS_CORETYPE says, or the processor


def _gemm_of(name: str, real: Any) -> Any:
    pointer, enum = ctypes.c_void_p, ctypes.c_int
    sizes = [enum, enum, enum, _long, _long, _long]
    return _function(name, [*sizes, real, pointer, _long, pointer, _long, real, pointer, _long])


_GEMM = {
    np.dtype(np.float32): _gemm_of("cblas_sgemm", ctypes.c_float),
    np.dtype(np.float64): _gemm_of("cblas_dgemm", ctypes.c_double),
}
_single_users = 0
_single_before = 1


class single:
    """Inside, BLAS uses the calling thread only, because our own threads share the work."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _single_users, _single_before
        if _set_threads is None:
            return
        begun = False
        try:
            with lock:
                _single_users += 1
                begun = True
                if _single_users == 1:
                    _single_before = _get_threads()
                    if _single_before != 1:
                        _set_threads(1)
        except BaseException:  # an interrupt, raised after a call
            if begun:
                self.__exit__()
            raise

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        global _single_users
        try:
            del exc
        finally:
            if _set_threads is not None:
                with lock:
                    _single_users -= 1
                    if _single_users == 0 and _single_before != 1:
                        _set_threads(_single_before)


_ALONE = (1 << 18, 1 << 13)  # multiplications up to which BLAS wakes no threads: of matrices, of a matrix and a vector
_SHARE = 1 << 24  # multiplications that are worth one of our threads


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b as ``np.matmul``; of a large product, each of our threads makes some matrices, rows or columns."""
    vector = out.ndim < 2 or min(out.shape[-2:]) == 1
    if out.size * a.shape[-1] <= _ALONE[vector] or not out.ndim:
        np.matmul(a, b, out=out)
        return
    two = a.ndim == b.ndim == 2
    product = few_rows(len(a), b) if two and a.flags.c_contiguous else np.matmul
    with single():
        matrices = a.ndim > 1 and b.ndim > 1
        numbers = (_SHARE if matrices else GRAIN) // a.shape[-1] + 1  # of out, for each thread

        def cut(count: int, run: Callable[[int, int], Any]) -> None:
            split(count, run, numbers * count // out.size + 1)

        if out.ndim > 2 or (out.ndim == 2 and not matrices):
            apart = [x.ndim == out.ndim + (not matrices) and len(x) == len(out) for x in (a, b)]  # else one for all
            cut(len(out), lambda i, j: np.matmul(a[i:j] if apart[0] else a, b[i:j] if apart[1] else b, out=out[i:j]))
        elif a.ndim > 1 and (b.ndim == 1 or len(out) >= out.shape[1]):
            cut(len(out), lambda i, j: np.matmul(a[i:j], b, out=out[i:j]))
        else:
            cut(out.shape[-1], lambda i, j: product(a, b[:, i:j], out=out[..., i:j]))


SMALL = 10**6  # multiplications up to which OpenBLAS does not copy its operands
LEAST = 96  # the fewest columns that are worth a product


Product = tuple[np.ndarray, np.ndarray, np.ndarray]  # the operands of ``multiply``: left, right, out


def multiply(products: Sequence[Product]) -> None:
    for a, b, out in products:
        np.matmul(a, b, out=out)


def by_columns(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> list[Product]:
    """The products of out = a @ b of stacks of matrices. If ``a`` is small, of some columns each: OpenBLAS then copies nothing.

    That is up to twice as fast.
    """
    most = SMALL // (a.shape[-2] * a.shape[-1])
    return _by_width(a, b, out, most if most >= LEAST else out.shape[-1])


def _by_width(a: np.ndarray, b: np.ndarray, out: np.ndarray, most: int) -> list[Product]:
    """The products of out = a @ b of stacks of matrices, of at most ``most`` columns each."""
    columns = out.shape[-1]
    if columns <= most:
        return [(a, b, out)]
    even = _equal_parts(columns, most)
    width = columns // even if even else most // 16 * 16 or most
    whole = columns // width * width
    products = [(a[..., None, :, :], _in_columns(b[..., :whole], width), _in_columns(out[..., :whole], width))]
    if whole < columns:
        products.append((a, b[..., whole:], out[..., whole:]))
    return products


def _in_columns(a: np.ndarray, width: int) -> np.ndarray:
    """(..., rows, columns) as (..., parts, rows, width), a view."""
    return a.reshape(*a.shape[:-1], a.shape[-1] // width, width).swapaxes(-3, -2)


@lru_cache(256)
def _equal_parts(count: int, most: int) -> int:
    """A number of equal parts of at most ``most``, the fewest if possible; 0: there are none of nearly that size."""
    fewest = -(-count // most)
    return next((n for n in range(fewest, 2 * fewest + 1) if count % n == 0), 0)


_FEW = 64  # rows of a product that are few, and half of them if terms are added up in parts
_RESULTS = 1200  # of a product with a transposed matrix, up to which OpenBLAS does not copy that
_NARROW = 8  # the fewest columns of such a part
_TERMS, _WIDTH = 256, 64  # of a part of a product with another matrix


def few_rows(rows: int, b: np.ndarray) -> Callable[..., Any]:
    """The product ``(a, b, out=)`` for an ``a`` of ``rows`` contiguous rows, or of fewer; in parts if ``b`` allows it.

    Then OpenBLAS's kernels for AVX-512 copy nothing: 0.2 to 0.5 of the time with 8 rows, 0.5 to 1.0 with 32. Those for AVX2
    copy in any case.
    """
    if not (for_avx512 and b.dtype == np.float32 and 1 < rows <= _FEW):
        return np.matmul
    terms, columns = b.shape
    if b.T.flags.c_contiguous:
        return _by_results if _columns(rows, terms) >= _NARROW else np.matmul
    parts = _equal_parts(terms, _TERMS)
    room = parts == 1 or 0 < parts * rows * columns * b.itemsize <= SCRATCH // 2
    few = 2 * rows <= _FEW and rows * b.size > SMALL and columns % _WIDTH == 0
    return _by_terms if few and room and b.flags.c_contiguous else np.matmul


def _columns(rows: int, terms: int) -> int:
    """The most columns of a part of a product with a transposed matrix."""
    return min(_RESULTS // rows, SMALL // (rows * terms))


def _by_results(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b, where b.T is contiguous, some columns at a time."""
    multiply(_by_width(a, b, out, _columns(*a.shape)))


def _by_terms(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b, some terms and columns at a time."""
    parts = _equal_parts(len(b), _TERMS)
    if parts == 1:
        multiply(_by_width(a, b, out, _WIDTH))
        return
    sums = scratch((parts, *out.shape), out.dtype, 0, 2)
    multiply(_by_width(a.reshape(len(a), parts, -1).swapaxes(0, 1), b.reshape(parts, -1, b.shape[1]), sums, _WIDTH))
    np.add.reduce(sums, axis=0, out=out)


def _layout(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[ctypes.c_int, int] | None:
    """(plain or transposed, leading dimension) of a matrix, as cblas reads it in rows, or ``None``."""
    (rows, columns), (down, right) = shape, strides
    if (right == size or columns == 1) and down >= size * columns and down % size == 0:
        return _NO, down // size
    if (down == size or rows == 1) and right >= size * rows and right % size == 0:
        return _YES, right // size
    return None


@lru_cache(1024)
def _forms(size: int, a: tuple, a_strides: tuple, b: tuple, b_strides: tuple, strides: tuple) -> tuple | None:
    """The forms of a and b, three sizes, three leading dimensions, as cblas takes them for ``out += a @ b``, or ``None``.

    They follow from shapes and strides. They are numbers of C: Python's are converted at each call, for 50 ns each.
    """
    left, right = _layout(a, a_strides, size), _layout(b, b_strides, size)
    if left is None or right is None or strides[1] != size or strides[0] < size * b[1]:
        return None
    return left[0], right[0], *map(_long, (a[0], b[1], a[1], left[1], right[1], strides[0] // size))


def _address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def add_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out += a @ b, of matrices of one dtype; ``out`` has contiguous rows."""
    gemm, forms = _GEMM.get(out.dtype), _forms(out.itemsize, a.shape, a.strides, b.shape, b.strides, out.strides)
    if gemm is None or forms is None:
        _add_tiles(a, b, out)
        return
    left, right, m, n, k, p, q, r = forms
    gemm(_ROWS, left, right, m, n, k, 1.0, _address(a), p, _address(b), q, 1.0, _address(out), r)


def _add_tiles(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """:func:`add_product` without cblas."""
    rows, columns = out.shape
    width = min(columns, 1 << 13)
    height = max((1 << 15) // width, 1)
    for i in range(0, rows, height):
        for j in range(0, columns, width):
            part = out[i : i + height, j : j + width]
            tile = scratch(part.shape, out.dtype)
            np.matmul(a[i : i + height], b[:, j : j + width], out=tile)
            part += tile


def add_products(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out += a @ b, of stacks (n, rows, columns), one matrix after another: without :func:`add_product`'s work for each.

    That work takes as long as 200,000 multiplications.
    """
    gemm, down, across, strides = _GEMM.get(out.dtype), a.strides, b.strides, out.strides
    forms = _forms(out.itemsize, a.shape[1:], down[1:], b.shape[1:], across[1:], strides[1:])
    if gemm is None or forms is None:
        for each in zip(a, b, out, strict=True):
            _add_tiles(*each)
        return
    left, right, m, n, k, p, q, r = forms
    add = partial(gemm, _ROWS, left, right, m, n, k, 1.0)
    x, y, z, dx, dy, dz = _address(a), _address(b), _address(out), down[0], across[0], strides[0]
    for _ in range(len(out)):
        add(x, p, y, q, 1.0, z, r)
        x += dx
        y += dy
        z += dz


def add_runs(a: np.ndarray, b: np.ndarray, out: np.ndarray, runs: Sequence[tuple[int, int, int, int]]) -> None:
    """``out[k : k + n] += a[i : i + n] @ b[j]`` for each (j, k, i, n) of ``runs``; b is a stack of matrices."""
    gemm, forms = _GEMM.get(out.dtype), _forms(out.itemsize, a.shape, a.strides, b.shape[1:], b.strides[1:], out.strides)
    if gemm is None or forms is None:
        for j, k, i, n in runs:
            _add_tiles(a[i : i + n], b[j], out[k : k + n])
        return
    left, right, _, columns, terms, p, q, r = forms
    x, y, z, dx, dy, dz = _address(a), _address(b), _address(out), a.strides[0], b.strides[0], out.strides[0]
    for j, k, i, n in runs:
        gemm(_ROWS, left, right, n, columns, terms, 1.0, x + i * dx, p, y + j * dy, q, 1.0, z + k * dz, r)


def add_turned_runs(a: np.ndarray, b: np.ndarray, out: np.ndarray, runs: Sequence[tuple[int, int, int, int]]) -> None:
    """``out[j] += a[k : k + n].T @ b[i : i + n]`` for each (j, k, i, n) of ``runs``; out is a stack of matrices."""
    gemm, turned = _GEMM.get(out.dtype), a.T
    forms = _forms(out.itemsize, turned.shape, turned.strides, b.shape, b.strides, out.strides[1:])
    if gemm is None or forms is None:
        for j, k, i, n in runs:
            _add_tiles(turned[:, k : k + n], b[i : i + n], out[j])
        return
    left, right, rows, columns, _, p, q, r = forms
    x, y, z, dx, dy, dz = _address(a), _address(b), _address(out), a.strides[0], b.strides[0], out.strides[0]
    for j, k, i, n in runs:
        gemm(_ROWS, left, right, rows, columns, n, 1.0, x + k * dx, p, y + i * dy, q, 1.0, z + j * dz, r)


_TURN = {
    np.dtype(kind): _function(
        name, [ctypes.c_int] * 2 + [_long] * 2 + [real, ctypes.c_void_p, _long] + [ctypes.c_void_p, _long]
    )
    for kind, name, real in (
        (np.float32, "cblas_somatcopy", ctypes.c_float),
        (np.float64, "cblas_domatcopy", ctypes.c_double),
    )
}


def copy_turned(a: np.ndarray, out: np.ndarray) -> None:
    """out = a.T, of contiguous matrices: a third of NumPy's time where one of them has few columns."""
    turn = _TURN.get(out.dtype)
    if turn is None or a.dtype != out.dtype:
        np.copyto(out, a.T, casting="same_kind")
        return
    rows, columns = a.shape
    turn(_ROWS, _YES, rows, columns, 1.0, _address(a), columns, _address(out), rows)


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
    """out = a @ b, or out += a @ b."""
    if add:
        add_product(a, b, out)
    else:
        matmul(a, b, out)
