"""Embeddings, with the arguments of ``torch.nn.functional``."""

from __future__ import annotations

import math
import operator
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DimensionError, DTypeError, NotOfferedError, ShapeError
from ..ops import embedding as ops
from ..ops.base import want_real
from .door import public

_NOT_BOTH = "embedding_backward: scale_grad_by_freq not supported with sparse gradients: leave one of them out"


@public("nn.functional")
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of ``weight`` (rows, features) at the indices ``input``, of any shape: input's shape and features.

    Args:
        padding_idx: a row that gets no gradient; a negative one counts from the end.
        max_norm: looked-up rows with a larger ``norm_type``-norm are scaled down to it, in ``weight`` itself.
        scale_grad_by_freq: divide the gradient of a row by the number of times that it was looked up.
        sparse: the gradient is a :class:`~tinygrad_mem.autograd.gradients.SparseTensor`: the indices and a row for each, not an
            array of the table's size. Rows of ``padding_idx`` are in it, with zeros: its bytes depend on no values.

    An index outside of the table is refused on the cpu. On a GPU, where a check would make the host wait, its row is nan, and
    it gives no gradient. On ``meta`` indices have no values.

    Saves: the indices; not the table. The gradient is of the table's size, or with ``sparse`` 8 bytes an index and its row.

    Raises:
        DimensionError: an index outside of the table (on the cpu), or ``padding_idx`` is.
        DTypeError: the indices are not int64 or int32.
        ArgumentError: ``sparse`` with ``scale_grad_by_freq``.
    """
    if sparse and scale_grad_by_freq:
        raise ArgumentError(_NOT_BOTH)
    _want_integers("embedding", input)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: 'weight' must be 2-D, found {list(weight.shape)}")
    if padding_idx is not None:
        padding_idx = operator.index(padding_idx)
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            raise DimensionError(f"Padding_idx must be within num_embeddings, found {padding_idx} for {weight.shape[0]} rows")
        padding_idx %= weight.shape[0]
    if max_norm is not None:
        _shrink("embedding", weight, input, max_norm, norm_type)
    return apply(ops.Embedding, input, weight, padding=padding_idx, by_frequency=scale_grad_by_freq, sparse=sparse)


def _shrink(name: str, weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale looked-up rows down to ``max_norm``, in the table."""
    want_real(name, max_norm=max_norm, norm_type=norm_type)
    if norm_type == -math.inf:
        raise NotOfferedError(f"{name}: norm_type=-inf, the smallest entry, is not offered: use another norm")
    apply_(ops.EmbeddingRenorm, weight.detach(), index, max_norm=float(max_norm), norm_type=float(norm_type))


def _want_integers(name: str, *tensors: Tensor | None) -> None:
    for x in tensors:
        if x is not None and x.dtype.name not in ("int64", "int32"):
            raise DTypeError(
                "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
                f"but got {x.dtype} instead ({name})"
            )


@public("nn.functional")
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of ``weight`` (rows, features) in each bag of indices: (bags, features).

    The looked-up rows are never all in memory, as they are in ``embedding(input, weight).sum(1)``. A bag without indices gives
    zeros.

    Args:
        input: indices (bags, length), or flat (n): then bag b begins at ``offsets[b]`` and ends where the next one begins.
        offsets: (bags), rising from 0; for a flat input only.
        max_norm, norm_type, scale_grad_by_freq: as of :func:`embedding`.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; of equal largest rows the first gets the gradient.
        sparse: the gradient is rows, as of :func:`embedding`; not for ``"max"``.
        per_sample_weights: a factor for each looked-up row, of the input's shape and the table's dtype; for ``"sum"`` only.
        include_last_offset: ``offsets`` (bags + 1) has the end of the last bag too.
        padding_idx: a row that is left out of bags, and gets no gradient; a negative one counts from the end.

    Saves: the indices, the offsets, the weights per sample, and the table if these need a gradient; or, for ``"max"``, 4 bytes
    an element of the result.

    Raises:
        DimensionError: an index outside of the table (on the cpu), or ``padding_idx`` is.
        DTypeError: indices or offsets that are not int64 or int32, weights per sample of another dtype than the table.
        ShapeError, ArgumentError: arguments that do not fit together; on the cpu, offsets that do not rise from 0 to
            at most the length of the input.
        NotOfferedError: weights per sample with another mode than ``"sum"``.
    """
    index, offsets, bags = _bags_of(input, offsets, include_last_offset)
    if weight.ndim != 2:
        raise ShapeError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim} (embedding_bag)")
    _check_mode(mode, sparse, scale_grad_by_freq)
    if per_sample_weights is not None:
        _check_shares(per_sample_weights, input, weight, mode)
    rows = weight.shape[0]
    if padding_idx is not None:
        padding_idx = operator.index(padding_idx)
        if not -rows <= padding_idx < rows:
            raise DimensionError(
                f"padding_idx must be within the number of embeddings, {-rows} through {rows - 1}, but got {padding_idx}"
            )
        padding_idx %= rows
    if max_norm is not None:
        _shrink("embedding_bag", weight, index, max_norm, norm_type)
    if mode == "max":
        return apply(ops.EmbeddingBagMax, index, weight, offsets, bags=bags, padding=padding_idx)
    how: dict[str, Any] = {"bags": bags, "padding": padding_idx, "mean": mode == "mean", "sparse": sparse}
    return apply(ops.EmbeddingBag, index, weight, offsets, per_sample_weights, by_frequency=scale_grad_by_freq, **how)


def _bags_of(input: Tensor, offsets: Tensor | None, include_last: bool) -> tuple[Tensor, Tensor | None, int]:
    """The indices and the offsets, in one dtype, and the number of bags."""
    _want_integers("embedding_bag", input, offsets)
    if input.ndim == 2:
        if offsets is not None:
            raise ShapeError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences. "
                f"However, found offsets of shape {list(offsets.shape)}"
            )
        return input, None, input.shape[0]
    if input.ndim != 1:
        raise ShapeError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim} (embedding_bag)")
    if offsets is None or offsets.ndim != 1:
        found = "None" if offsets is None else f"shape {list(offsets.shape)}"
        raise ShapeError(f"offsets has to be a 1D Tensor but got {found}: it has the start of each bag in a 1D input")
    if include_last and not offsets.shape[0]:
        raise ShapeError("include_last_offset: number of offset should be at least 1")
    bags = offsets.shape[0] - include_last
    return (input, offsets, bags) if input.dtype == offsets.dtype else (input.long(), offsets.long(), bags)


def _check_mode(mode: str, sparse: bool, by_frequency: bool) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"mode has to be one of sum, mean or max, found {mode!r} (embedding_bag)")
    if mode == "max" and (sparse or by_frequency):
        what = "sparse weights" if sparse else "scaling the gradient by the frequency"
        raise ArgumentError(f"max mode does not support {what}: leave it out, or use 'sum' or 'mean' (embedding_bag)")
    if sparse and by_frequency:
        raise ArgumentError(_NOT_BOTH)


def _check_shares(shares: Tensor, input: Tensor, weight: Tensor, mode: str) -> None:
    if shares.shape != input.shape:
        raise ShapeError(
            f"embedding_bag: If per_sample_weights ({list(shares.shape)}) is not None, then it must have the same shape as the "
            f"input ({list(input.shape)})"
        )
    if mode != "sum":
        raise NotOfferedError(
            f"embedding_bag: per_sample_weights is only supported for mode='sum' (got mode={mode!r}). Divide the weights by "
            "the sizes of the bags, and use 'sum'."
        )
    if shares.dtype != weight.dtype:
        raise DTypeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 'per_sample_weights'; "
            f"but type {weight.dtype} does not equal {shares.dtype} (embedding_bag)"
        )
