"""Norms of ``linalg``, which differ from functions of the same name in ``torch``."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..errors import NotOfferedError, ShapeError
from . import reduce
from .door import public


@public("linalg")
def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The ``ord``-norm over ``dim``, or of all elements. Saves: x and the output; x alone for ``ord`` 1."""
    return reduce.norm(x, ord, dim, keepdim, dtype)


@public("linalg")
def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector norm, or of a matrix (two dimensions) and with ``ord="fro"`` the root of the sum of its squares.

    Raises:
        ShapeError: ``"fro"`` of no matrix, ``dim`` names neither one nor two dimensions, or is missing beside ``ord`` where
            there are more than two.
        NotOfferedError: another norm of a matrix.
    """
    axes = dim if isinstance(dim, (tuple, list)) else None
    if axes is not None and len(axes) not in (1, 2):
        raise ShapeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(axes)}")
    if ord is not None and dim is None and A.ndim > 2:
        raise ShapeError(
            f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D. vector_norm takes all"
        )
    matrix = A.ndim == 2 if dim is None else axes is not None and len(axes) == 2
    if isinstance(ord, str) and not matrix:
        raise ShapeError(f"linalg.norm: a matrix norm needs a 2-D tensor or two dimensions, found {list(A.shape)} and {dim=}")
    if matrix and ord not in (None, "fro"):
        raise NotOfferedError(f"linalg.norm: ord={ord!r} of a matrix is not offered: use 'fro', or vector_norm")
    return reduce.norm(A, 2 if ord is None else ord, dim, keepdim, dtype)
