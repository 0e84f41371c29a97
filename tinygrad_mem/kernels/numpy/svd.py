"""Singular vectors, through LAPACK: its results are written into the workspace."""

import numpy as np
from numpy.linalg import _umath_linalg as _lapack

from ..formula import formula

# It is private. The public np.linalg.svd has no ``out``: it allocates its results beside the pool, where they are not counted,
# and computes float32 in float64, which takes twice as much of LAPACK's memory.


def left_vectors_workspace(shape, dtype):
    """Bytes of workspace for the SVD of (n, m) numbers, n <= m: its results U, S and V."""
    n, m = shape
    return (n * n + n + n * m) * dtype.itemsize


@formula(None, "singular vectors are unique up to their signs: tests/optim/test_projected.py compares with NumPy's")
def left_vectors(x, work, out):
    """out = the first left singular vectors of (n, m) numbers, n <= m, as columns: those of the largest singular values."""
    n, m = x.shape
    results = work[: (n * n + n + n * m)]
    u, s, v = results[: n * n].reshape(n, n), results[n * n : n * n + n], results[n * n + n :].reshape(n, m)
    _lapack.svd_s(x, out=(u, s, v))
    np.copyto(out, u[:, : out.shape[1]])
