"""Matrix products of cuBLAS on views, which can add to their result; float16 is accumulated in float32.

``cupy.matmul`` copies operands and results that are not contiguous, into memory that it allocates, and multiplies batches of
float16 through float32 copies. These do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TYPES = {"e": (2, 68, np.float32), "f": (0, 68, np.float32), "d": (1, 70, np.float64)}
"""dtype -> cudaDataType_t, cublasComputeType_t (32F and 64F), and the dtype of alpha and beta."""
_NARROW = (2, 64, np.float16)  # cublasComputeType_t 16F, for ``backends.accumulate_in``
_HOST, _DEFAULT_ALGORITHM = 0, -1


def _layout(x: Any) -> tuple[int, int, int]:
    """(transposed, leading dimension, batch stride) of (batch, rows, columns) read in rows; a batch of one is repeated."""
    (batch, rows, columns), (step, down, right), size = x.shape, x.strides, x.itemsize
    if not x.size:  # of which the strides say nothing
        return 0, max(columns, 1), 0
    step = step // size if batch > 1 else 0
    if (right == size or columns == 1) and (down >= size * columns or rows == 1):
        return 0, max(down // size if rows > 1 else columns, columns), step
    if (down == size or rows == 1) and (right >= size * rows or columns == 1):
        return 1, max(right // size if columns > 1 else rows, rows), step
    raise ValueError(f"a product of strides {x.strides} and shape {x.shape}: make the array contiguous first")


def gemm(x: Any, y: Any, out: Any, alpha: float = 1.0, beta: float = 0.0, narrow: bool = False) -> None:
    """out = alpha * (x @ y) + beta * out, of (batch, m, k), (batch, k, n), (batch, m, n). The rows of out are contiguous.

    ``narrow``: products of float16 are added up in float16.
    """
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    if out.size == 0:
        return
    kind = "e" if x.dtype.char == "e" else out.dtype.char
    _, compute, real = _NARROW if kind == "e" and narrow else TYPES[kind]
    (x_how, x_lead, x_step), (y_how, y_lead, y_step), (turned, lead, step) = _layout(x), _layout(y), _layout(out)
    if turned:
        raise ValueError(f"the rows of a product's result must be contiguous, found strides {out.strides} of {out.shape}")
    x_kind, y_kind, out_kind = (TYPES[a.dtype.char][0] for a in (x, y, out))
    count, m, n = out.shape
    times, plus = np.full(1, alpha, real), np.full(1, beta, real)
    gpu: Any = device  # unknown to a type checker without a GPU
    handle = gpu.get_cublas_handle()
    before = cublas.getPointerMode(handle)
    cublas.setPointerMode(handle, _HOST)
    # fmt: off
    try:  # cuBLAS is column-major: out.T = y.T @ x.T in the same memory
        cublas.gemmStridedBatchedEx(
            handle, y_how, x_how, n, m, x.shape[2], times.ctypes.data,
            y.data.ptr, y_kind, y_lead, y_step, x.data.ptr, x_kind, x_lead, x_step, plus.ctypes.data,
            out.data.ptr, out_kind, lead, step, count, compute, _DEFAULT_ALGORITHM,
        )
    finally:
        cublas.setPointerMode(handle, before)
    # fmt: on
