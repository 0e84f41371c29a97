"""Norms of ``linalg``, which differ from functions of the same name in ``torch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, NotOfferedError, ShapeError
from . import reduce
from .door import public


@public("linalg")
def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The ``ord``-norm over ``dim``, or of all elements. Saves: x and the output; x alone for ``ord`` 1."""
    return reduce.norm(x, ord, dim, keepdim, dtype)


@public("linalg")
def matrix_norm(
    A: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The norm of matrices in the dimensions ``dim``: ``"fro"``, 1, -1, inf or -inf.

    Raises:
        NotOfferedError: a norm by singular values (2, -2, ``"nuc"``).
        ValueError: another ``ord``.
        ShapeError: ``dim`` does not name two dimensions.
    """
    axes = {normalize_dim(d, A.ndim) for d in dim} if A.ndim > 1 else set()
    if len(axes) != 2 or len(dim) != 2:
        raise ShapeError(
            f"linalg.matrix_norm: the tensor must have 2 dimensions at least, and dim name two of them: found {list(A.shape)} "
            f"and dim {tuple(dim)}"
        )
    if ord == "fro":
        return reduce.norm(A, 2, dim, keepdim, dtype)
    if ord in (2, -2, "nuc"):
        raise NotOfferedError(f"linalg.matrix_norm: ord={ord!r} needs singular values; use 'fro', 1, -1, inf or -inf")
    if isinstance(ord, str) or abs(ord) not in (1, float("inf")):
        raise ArgumentError(f"linalg.matrix_norm: Order {ord!r} not supported; use 'fro', 1, -1, inf or -inf")
    summed, kept = (dim[0], dim[1]) if abs(ord) == 1 else (dim[1], dim[0])
    sums = reduce.norm(A, 1, summed, True, dtype)
    result = (reduce.amax if ord > 0 else reduce.amin)(sums, kept, True)
    return result if keepdim else result.squeeze(tuple(dim))


@public("linalg")
def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector norm, or with ``ord`` and two dimensions a matrix norm, by PyTorch's rules.

    Raises:
        ShapeError: a matrix norm of no matrices, or ``dim`` names neither one nor two dimensions.
    """
    if isinstance(dim, (tuple, list)) and len(dim) not in (1, 2):
        raise ShapeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dim)}")
    if ord is not None and (
        isinstance(ord, str)
        or (dim is not None and not isinstance(dim, int) and len(dim) == 2)
        or (dim is None and A.ndim == 2)
    ):
        if dim is None and A.ndim != 2:
            raise ShapeError(f"linalg.norm: a matrix norm needs a 2-D tensor or two dimensions, found {list(A.shape)}")
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
