"""Reductions. ``dim`` is an axis, several, or ``None`` for all; negative axes count from the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import dtypes
from ..autograd.tape import apply
from ..autograd.tensor import Tensor, normalize_dim
from ..errors import DimensionError
from ..ops import reduce as ops
from . import elementwise

Dim = int | Sequence[int] | None


class ValuesIndices(NamedTuple):
    """What reductions along one axis return: the values, and where they stood."""

    values: Tensor
    indices: Tensor


def axes_of(input: Tensor, dim: Dim) -> tuple[int, ...]:
    """``dim`` as a tuple of axes counted from the front; empty and ``None`` mean all.

    Raises:
        DimensionError: an axis outside the tensor.
        RuntimeError: an axis given twice.
    """
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(input.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    axes = tuple(normalize_dim(d, input.ndim) for d in dims)
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"dim {dims} appears multiple times in the list of dims")
    return () if input.ndim == 0 else axes


def sum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over ``dim``; integers are summed in int64. Saves nothing."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    return apply(ops.Sum, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=wanted)


def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over ``dim``, of floating tensors. Saves nothing."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    return apply(ops.Mean, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=wanted)


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over ``dim``. Saves: input and output."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    return apply(ops.Prod, input, axes=axes_of(input, dim), keepdim=keepdim, dtype=wanted)


def _correction(unbiased: bool | None, correction: float | None) -> float:
    return (1 if unbiased is None or unbiased else 0) if correction is None else correction


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The variance over ``dim``, divided by the count less ``correction`` (1). Saves: input and the means."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return apply(ops.Var, input, axes=axes_of(input, dim), correction=_correction(unbiased, correction), keepdim=keepdim)


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The standard deviation over ``dim``. Saves: what :func:`var` saves, and the output."""
    return elementwise.sqrt(var(input, dim, unbiased, keepdim, correction=correction))


def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> tuple:
    """The variance and the mean over ``dim``."""
    return var(input, dim, unbiased, keepdim, correction=correction), mean(
        input, None if isinstance(dim, bool) else dim, keepdim
    )


def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: Any = None
) -> tuple:
    """The standard deviation and the mean over ``dim``."""
    return std(input, dim, unbiased, keepdim, correction=correction), mean(
        input, None if isinstance(dim, bool) else dim, keepdim
    )


def amax(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The largest over ``dim``; equal elements share the gradient. Saves: input and output."""
    return apply(ops.Extremum, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="amax")


def amin(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The smallest over ``dim``; equal elements share the gradient. Saves: input and output."""
    return apply(ops.Extremum, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="amin")


def _argument(input: Tensor, dim: int | None, keepdim: bool, kernel: str) -> Tensor:
    if dim is None:
        flat = apply(ops.ArgExtremum, input.detach().reshape(-1), axis=0, keepdim=False, kernel=kernel)
        return flat.reshape((1,) * input.ndim) if keepdim else flat
    return apply(ops.ArgExtremum, input, axis=normalize_dim(dim, input.ndim), keepdim=keepdim, kernel=kernel)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first largest, int64. No gradient."""
    return _argument(input, dim, keepdim, "argmax")


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first smallest, int64. No gradient."""
    return _argument(input, dim, keepdim, "argmin")


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """The largest of all; or ``(values, indices)`` along ``dim``; or, of two tensors, the elementwise maximum."""
    return _extremum(input, dim if other is None else other, keepdim, "amax", "argmax", elementwise.maximum)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
    """The smallest of all; or ``(values, indices)`` along ``dim``; or, of two tensors, the elementwise minimum."""
    return _extremum(input, dim if other is None else other, keepdim, "amin", "argmin", elementwise.minimum)


def _extremum(input: Tensor, dim: Any, keepdim: bool, kernel: str, argument: str, pairwise: Any) -> Any:
    if isinstance(dim, Tensor):
        return pairwise(input, dim)
    if dim is None:
        return apply(ops.Extremum, input, axes=tuple(range(input.ndim)), keepdim=False, kernel=kernel)
    from .index import gather

    axis = normalize_dim(dim, input.ndim)
    if input.ndim == 0:
        return ValuesIndices(input.clone(), _argument(input, 0, False, argument))
    indices = apply(ops.ArgExtremum, input, axis=axis, keepdim=True, kernel=argument)
    values = gather(input, axis, indices)
    return ValuesIndices(values, indices) if keepdim else ValuesIndices(values.squeeze(axis), indices.squeeze(axis))


def all(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all are true: bool. No gradient."""
    return apply(ops.Truth, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="all")


def any(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether one is true: bool. No gradient."""
    return apply(ops.Truth, input, axes=axes_of(input, dim), keepdim=keepdim, kernel="any")


def count_nonzero(input: Tensor, dim: Dim = None) -> Tensor:
    """How many are not zero, int64. No gradient."""
    return sum(elementwise.ne(input.detach(), 0), dim)


def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """``ln(sum(e**input))`` over ``dim``, without overflow. Saves: input and output."""
    return apply(ops.LogSumExp, input, axes=axes_of(input, dim), keepdim=keepdim)


def norm(input: Tensor, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The p-norm over ``dim``: p a number, inf, -inf or ``"fro"`` (2). Saves: input and output for p = 2.

    Raises:
        ValueError: another name.
    """
    if isinstance(p, str) and p not in ("fro", "inf", "-inf"):
        raise ValueError(f"norm: p must be a number, inf or 'fro', found {p!r}")
    power = 2.0 if p in (None, "fro") else float(p)
    x = input if dtype is None else input.to(dtypes.as_dtype(dtype))
    if power == 2.0:
        return apply(ops.Norm, x, axes=axes_of(x, dim), keepdim=keepdim)
    size = elementwise.abs(x)
    if math.isinf(power):
        return (amax if power > 0 else amin)(size, dim, keepdim)
    if power == 0:
        return sum(elementwise.ne(x, 0).to(x.dtype), dim, keepdim)
    if power == 1:
        return sum(size, dim, keepdim)
    return elementwise.pow(sum(elementwise.pow(size, power), dim, keepdim), 1 / power)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all; or ``(values, indices)`` along ``dim``. Saves: indices."""
    from .index import gather
    from .sort import argsort

    if dim is None:
        if input.numel() == 0:
            raise DimensionError("median: the tensor is empty")
        return median(input.reshape(-1), 0).values
    axis = normalize_dim(dim, input.ndim)
    order = argsort(input.detach(), axis, stable=True)
    indices = order.narrow(axis, (input.size(axis) - 1) // 2, 1).contiguous()
    values = gather(input, axis, indices)
    return ValuesIndices(values, indices) if keepdim else ValuesIndices(values.squeeze(axis), indices.squeeze(axis))
