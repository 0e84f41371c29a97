"""Running sums, products and extrema along one dimension. All raise DimensionError if it is outside the tensor."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import DTypeError
from ..ops import scan as ops
from .door import FLOAT32_RESULT, public
from .sort import ValuesIndices


def given_dtype(dtype: Any) -> Any:
    """The dtype, or ``None`` without one."""
    return None if dtype is None else dtypes.as_dtype(dtype)


@public("torch", "Tensor", cuda=FLOAT32_RESULT)
def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running sums along ``dim``; integers and bools in int64. Saves nothing. Raises: DTypeError: ``dtype`` is bool."""
    return apply(ops.CumSum, input, axis=normalize_dim(dim, input.ndim), dtype=_numbers("cumsum", dtype))


@public("Tensor")
def cumsum_(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """:func:`cumsum` in place. Raises: DTypeError: ``dtype`` is not that of the tensor."""
    if dtype is not None and given_dtype(dtype) != input.dtype:
        raise DTypeError(f"Bad in-place call: input tensor dtype {input.dtype} and output tensor dtype {dtype} should match")
    return apply_(ops.CumSum, input, axis=normalize_dim(dim, input.ndim), dtype=_numbers("cumsum_", input.dtype))


@public("torch", "Tensor", cuda=FLOAT32_RESULT)
def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running products along ``dim``; integers and bools in int64. Saves: input and output. Raises: DTypeError: as cumsum."""
    return apply(ops.CumProd, input, axis=normalize_dim(dim, input.ndim), dtype=_numbers("cumprod", dtype))


def _numbers(name: str, dtype: Any) -> Any:
    """The dtype of the result. Raises: DTypeError: the input is bool."""
    found = given_dtype(dtype)
    if found == dtypes.bool:
        raise DTypeError(f"{name} is not implemented for bool: give another dtype")
    return found


@public("torch", "Tensor")
def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """The running largest along ``dim``, and the index where it was last seen. Saves: the indices, 8 bytes an element."""
    return ValuesIndices(*apply(ops.CumExtremum, input, axis=normalize_dim(dim, input.ndim), largest=True))


@public("torch", "Tensor")
def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """The running smallest along ``dim``, and the index where it was last seen. Saves: the indices, 8 bytes an element."""
    return ValuesIndices(*apply(ops.CumExtremum, input, axis=normalize_dim(dim, input.ndim), largest=False))
