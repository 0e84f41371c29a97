"""Quantiles and the mode, from sorted lines."""

from __future__ import annotations

from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from . import choose, compare, creation, elementwise, gather, reduce, shape, unary
from .door import FLOAT32, public
from .index import ends
from .sort import sort

_BETWEEN = ("linear", "lower", "higher", "midpoint", "nearest")


@public("torch", "Tensor", cpu=FLOAT32)
def quantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The ``q``-quantile, interpolated between two elements if needed; nan if there is one.

    Args:
        q: from 0 to 1: a number, or a vector, whose results are in a new first dimension.
        dim: by default all elements.
        interpolation: between two elements: linear, lower, higher, midpoint or nearest.

    Saves: what its parts save: the indices of a sort, 8 bytes an element, and the indices and weights of the results.

    Raises:
        DTypeError: input is not float32 or float64, or ``q`` is of another dtype.
        ArgumentError: ``q`` is not between 0 and 1, or another interpolation.
        ShapeError: ``q`` has two dimensions or more; nothing to choose from.
    """
    if input.dtype.name not in ("float32", "float64"):
        raise DTypeError(f"quantile() input tensor must be either float or double dtype, found {input.dtype}")
    if interpolation not in _BETWEEN:
        raise ArgumentError(f"quantile() interpolation must be one of {', '.join(_BETWEEN)}, but got {interpolation}")
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise ArgumentError(f"quantile() q must be in the range [0, 1] but got {q}")
        q = creation.tensor(q, dtype=input.dtype, device=input.device)
    if q.ndim > 1:
        raise ShapeError(f"quantile() q must be a scalar or 1D tensor, found shape {list(q.shape)}")
    if q.dtype != input.dtype:
        raise DTypeError(f"quantile() q tensor must be same dtype as the input tensor, found {q.dtype} and {input.dtype}")
    found = ends(q.detach())
    if found and not 0 <= found[0] <= found[1] <= 1:
        raise ArgumentError("quantile() q values must be in the range [0, 1]")
    if not input.numel():
        raise ShapeError(f"quantile() input tensor must be non-empty, found shape {list(input.shape)}")
    axis = None if dim is None else normalize_dim(dim, input.ndim)
    line = shape.reshape(input, -1) if axis is None or not input.ndim else shape.movedim(input, axis, -1)
    found = _at_ranks(line, shape.reshape(q, -1), interpolation)  # (..., ranks)
    found = shape.movedim(found, -1, 0)
    if keepdim:
        kept = [1] * input.ndim if axis is None else [1 if a == axis else n for a, n in enumerate(input.shape)]
        found = shape.reshape(found, (found.size(0), *kept))
    return found if q.ndim else shape.select(found, 0, 0)


def _at_ranks(line: Tensor, q: Tensor, between: str) -> Tensor:
    """The ``q``-quantiles (k) of lines (..., n): (..., k)."""
    ordered = sort(line).values
    nan = compare.isnan(line.detach())
    rank = elementwise.mul(q, line.size(-1) - 1)
    rank = choose.masked_fill(shape.expand(rank, *line.shape[:-1], -1), reduce.any(nan, -1, True), line.size(-1) - 1)
    if between == "lower":
        rank = unary.floor(rank)
    elif between == "higher":
        rank = unary.ceil(rank)
    elif between == "nearest":
        rank = unary.round(rank)
    low = unary.floor(rank)
    below = gather.gather(ordered, -1, low.long())
    if between not in ("linear", "midpoint"):
        return below
    above = gather.gather(ordered, -1, unary.ceil(rank).long())
    return elementwise.lerp(below, above, elementwise.sub(rank, low) if between == "linear" else 0.5)
