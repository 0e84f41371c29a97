"""Reductions. ``dim`` is an axis, several, or ``None`` for all; negative axes count from the end.

All raise DimensionError if an axis is outside the tensor.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from .. import dtypes
from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..dtypes import is_floating
from ..errors import ArgumentError, DTypeError
from ..ops import reduce as ops
from ..ops.base import refuse_bools
from . import choose, compare, elementwise
from .door import AS_IS, FLOAT32, FLOAT32_RESULT, public
from .scan import given_dtype
from .sort import ValuesIndices
from .sort import median as median

Dim = int | Sequence[int] | None


@public()
def axes_of(input: Tensor, dim: Dim) -> tuple[int, ...]:
    """``dim`` as a tuple of axes that are not negative; empty and ``None`` mean all.

    Raises:
        DimensionError: an axis outside the tensor.
        RuntimeError: an axis given twice.
    """
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(input.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    ndim = input.ndim  # (a comprehension that uses the tensor would keep it alive in an error's traceback)
    axes = tuple([normalize_dim(d, ndim) for d in dims])
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"dim {dims} appears multiple times in the list of dims")
    return () if input.ndim == 0 else axes


@public("torch", "Tensor", cuda=FLOAT32_RESULT)
def sum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over ``dim``; integers are summed in int64. Saves nothing."""
    return apply(ops.Sum, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=given_dtype(dtype))


@public("torch", "Tensor")
def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over ``dim``, of floating tensors. Saves nothing."""
    return apply(ops.Mean, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=given_dtype(dtype))


@public("torch", "Tensor", cpu=FLOAT32, cuda=FLOAT32_RESULT)
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over ``dim``. Saves: input and output."""
    return apply(ops.Prod, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=given_dtype(dtype))


def _variance(input: Tensor, dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None, **what: bool) -> Any:
    if isinstance(dim, bool):  # var(x, False)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    if dim is None:  # along dimensions PyTorch lets the gradient's divisor be negative; of all elements it is 0 at least
        correction = builtins.min(correction, input.numel())
    return apply(ops.Var, input, axes=axes_of(input, dim), correction=correction, keepdim=keepdim, **what)


@public("torch", "Tensor")
def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The variance over ``dim``, divided by the count less ``correction`` (1).

    Saves: input and the means.

    Raises:
        DTypeError: ``input`` is not floating.
    """
    return _variance(input, dim, unbiased, keepdim, correction)


@public("torch", "Tensor")
def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The standard deviation over ``dim``: the root of :func:`var`. Raises as :func:`var`.

    Saves: input, the means and the output.
    """
    return _variance(input, dim, unbiased, keepdim, correction, root=True)


@public("torch", "Tensor")
def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over ``dim``, as one op. Saves: input and the means."""
    return _variance(input, dim, unbiased, keepdim, correction, with_mean=True)


@public("torch", "Tensor")
def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over ``dim``, as one op. Saves: input and both outputs."""
    return _variance(input, dim, unbiased, keepdim, correction, root=True, with_mean=True)


@public("torch", "Tensor")
def amax(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The largest over ``dim``; equal elements share the gradient. Saves: input and output."""
    return apply(ops.Extremum, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="amax")


@public("torch", "Tensor")
def amin(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The smallest over ``dim``; equal elements share the gradient. Saves: input and output."""
    return apply(ops.Extremum, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="amin")


def _argument(input: Tensor, dim: int | None, keepdim: bool, low: bool) -> Tensor:
    refuse_bools("argmin" if low else "argmax", input.array)
    if dim is None:
        flat = apply(ops.ArgExtremum, input.detach().reshape(-1), axis=0, keepdim=False, low=low)
        return flat.reshape((1,) * input.ndim) if keepdim else flat
    return apply(ops.ArgExtremum, input, axis=normalize_dim(dim, input.ndim), keepdim=keepdim, low=low)


@public("torch", "Tensor")
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first largest along ``dim``, or of all elements in a row: int64. No gradient.

    Raises:
        ShapeError: there is nothing to choose from.
        DTypeError: bools.
    """
    return _argument(input, dim, keepdim, False)


@public("torch", "Tensor")
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first smallest along ``dim``, or of all elements in a row: int64. No gradient.

    Raises:
        ShapeError: there is nothing to choose from.
        DTypeError: bools.
    """
    return _argument(input, dim, keepdim, True)


@public("torch", "Tensor")
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """The largest of all; or ``(values, indices)`` along ``dim``; or, of two tensors, the elementwise maximum.

    Saves: input and output; along ``dim`` the indices, 8 bytes each.

    Raises:
        ShapeError: there is nothing to choose from.
    """
    return _extremum(input, dim if other is None else other, keepdim, False, elementwise.maximum)


@public("torch", "Tensor")
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """The smallest of all; or ``(values, indices)`` along ``dim``; or, of two tensors, the elementwise minimum.

    Saves and raises as :func:`max`.
    """
    return _extremum(input, dim if other is None else other, keepdim, True, elementwise.minimum)


def _extremum(input: Tensor, dim: Any, keepdim: bool, low: bool, pairwise: Any) -> Any:
    if isinstance(dim, Tensor):
        return pairwise(input, dim)
    if dim is None:
        axes, kernel = tuple(range(input.ndim)), "amin" if low else "amax"
        return apply(ops.Extremum, input, axes=axes, keepdim=False, kernel=kernel, nans=True)
    return ValuesIndices(*apply(ops.ExtremumAlong, input, axis=normalize_dim(dim, input.ndim), keepdim=keepdim, low=low))


def _truth(input: Tensor, dim: Dim, keepdim: bool, kernel: str) -> Tensor:
    axes = () if isinstance(dim, (tuple, list)) and not dim else axes_of(input, dim)  # as in PyTorch: () is no dimension here
    return apply(ops.Truth, input, axes=axes, keepdim=keepdim, kernel=kernel)


@public("torch", "Tensor")
def all(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """bool: True if all elements are true; each alone for ``dim=()``. No gradient."""
    return _truth(input, dim, keepdim, "all")


@public("torch", "Tensor")
def any(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """bool: True if any element is true; each alone for ``dim=()``. No gradient."""
    return _truth(input, dim, keepdim, "any")


@public("torch", "Tensor")
def count_nonzero(input: Tensor, dim: Dim = None) -> Tensor:
    """The number of elements that are not zero, int64. No gradient."""
    return apply(ops.CountNonzero, input, axes=axes_of(input, dim))


@public("torch", "Tensor", cuda=AS_IS)
def nansum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum of the elements that are not nan. Saves: a mask, one byte an element."""
    return sum(choose.masked_fill(input, compare.isnan(input.detach()), 0), dim, keepdim, dtype=dtype)


@public("torch", "Tensor", cuda=AS_IS)
def nanmean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of the elements that are not nan; of none it is nan.

    The gradient of an element that is nan is 0. PyTorch's is nan where the mean is of none.

    Saves: a mask, one byte an element, and what a division saves.

    Raises:
        DTypeError: the input or ``dtype`` is not floating.
    """
    if not is_floating(input.dtype):
        raise DTypeError(f"nanmean(): expected input to have floating point dtype but got {input.dtype}; mean() takes others")
    if dtype is not None and not is_floating(given_dtype(dtype)):
        raise DTypeError(f"nanmean(): dtype must be a floating point dtype, got {dtype}")
    there = sum(compare.logical_not(compare.isnan(input.detach())), dim, keepdim)
    return elementwise.div(nansum(input, dim, keepdim, dtype=dtype), there)


@public("torch", "special", "Tensor", cuda=FLOAT32)
def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """``ln(sum(e**input))`` over ``dim``, without overflow. Saves: input and output."""
    return apply(ops.LogSumExp, input, axes=axes_of(input, dim), keepdim=keepdim)


@public("torch", "Tensor", cuda=FLOAT32_RESULT)
def norm(input: Tensor, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The p-norm over ``dim``: p a number, ``inf``, ``-inf`` or ``"fro"`` (2).

    Saves: input and output; input alone for p = 1.

    Raises:
        ValueError: another name for ``p``.
        DTypeError: ``input`` is not floating.
    """
    if isinstance(p, str) and p not in ("fro", "inf", "-inf"):
        raise ArgumentError(f"norm: p must be a number, inf, -inf or 'fro', found {p!r}")
    power = 2.0 if p is None or p == "fro" else float(p)
    x = input if dtype is None else input.to(dtypes.as_dtype(dtype))
    return apply(ops.Norm, x, axes=axes_of(x, dim), p=power, keepdim=keepdim)
