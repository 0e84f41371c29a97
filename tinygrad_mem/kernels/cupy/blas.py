"""Matrix products of cuBLAS on views, which can add to their result; float16 is accumulated in float32.

``cupy.matmul`` copies operands and results that are not contiguous, into memory that it allocates. These do not.
"""

from __future__ import annotations

import ctypes

from ...scope import local as _local

_REAL = {"e": 2, "f": 0, "d": 1}  # cudaDataType of half, float, double
_COMPUTE = {"e": 68, "f": 68, "d": 70}  # cublasComputeType: 32 bits, 64 bits
_DEFAULT = -1  # the algorithm
_NARROW, _HALF_ONE = 64, 0x3C00  # 16 bits, for ``backends.accumulate_in``; the bits of a float16 1


def _layout(a):
    """(transposed, leading dimension, stride of the batch) of (batch, rows, columns) read in rows."""
    size = a.itemsize
    (_, rows, columns), (batch, down, right) = a.shape, a.strides
    if right == size or columns == 1:
        lead = columns if rows == 1 else down // size
        if lead >= columns:
            return 0, lead, batch // size
    lead = rows if columns == 1 else right // size
    if (down == size or rows == 1) and lead >= rows:
        return 1, lead, batch // size
    raise ValueError(f"no axis of the last two is contiguous: shape {a.shape}, strides {a.strides}")


def gemm(a, b, out, add=False):
    """out = a @ b (or += a @ b) of (batch, m, k), (batch, k, n), (batch, m, n); a batch of one in a or b is repeated."""
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    batch, m, n = out.shape
    k = a.shape[2]
    if out.size == 0:
        return
    kind = "e" if a.dtype.char == "e" else out.dtype.char
    narrow = kind == "e" and _local.narrow_sums == "e"
    scalar = ctypes.c_double if kind == "d" else ctypes.c_uint16 if narrow else ctypes.c_float
    one, beta = scalar(_HALF_ONE if narrow else 1), scalar((_HALF_ONE if narrow else 1) if add else 0)
    left, right, result = _layout(a), _layout(b), _layout(out)
    if result[0]:
        raise ValueError("the rows of a product must be contiguous")
    # cuBLAS is column-major: the transposed product out^T = b^T a^T in the same memory
    cublas.gemmStridedBatchedEx(
        get_cublas_handle(),
        right[0],
        left[0],
        n,
        m,
        k,
        ctypes.addressof(one),
        b.data.ptr,
        _REAL[b.dtype.char],
        right[1],
        right[2] if b.shape[0] > 1 else 0,
        a.data.ptr,
        _REAL[a.dtype.char],
        left[1],
        left[2] if a.shape[0] > 1 else 0,
        ctypes.addressof(beta),
        out.data.ptr,
        _REAL[out.dtype.char],
        result[1],
        result[2],
        batch,
        _NARROW if narrow else _COMPUTE[kind],
        _DEFAULT,
    )
