"""Embeddings, with the arguments of ``torch.nn.functional``."""

from __future__ import annotations

from typing import Any, NoReturn

from ..autograd.inplace import apply_
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DimensionError, DTypeError, NotOfferedError, ShapeError
from ..ops import embedding as ops


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
        max_norm: rows that are looked up and have a larger ``norm_type``-norm are shrunk to it, in ``weight`` itself.
        scale_grad_by_freq: divide the gradient of a row by how often it was looked up.
        sparse: the gradient is a :class:`~tinygrad_mem.autograd.sparse.SparseTensor`: the indices and a row for each, not an
            array of the table's size. Rows of ``padding_idx`` are in it, with zeros: its bytes depend on no values.

    Saves: the indices; not the table. The gradient is of the table's size, or with ``sparse`` 8 bytes an index and its row.

    Raises:
        DimensionError: an index outside of the table (on the cpu), or ``padding_idx`` is.
        DTypeError: the indices are not int64 or int32.
        ArgumentError: ``sparse`` with ``scale_grad_by_freq``.
    """
    if sparse and scale_grad_by_freq:
        raise ArgumentError("embedding_backward: scale_grad_by_freq not supported with sparse gradients: leave one of them out")
    if input.dtype.name not in ("int64", "int32"):
        raise DTypeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {input.dtype} instead (embedding)"
        )
    if weight.ndim != 2:
        raise ShapeError(f"embedding: 'weight' must be 2-D, found {list(weight.shape)}")
    if padding_idx is not None:
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            raise DimensionError(f"Padding_idx must be within num_embeddings, found {padding_idx} for {weight.shape[0]} rows")
        padding_idx %= weight.shape[0]
    if max_norm is not None:
        apply_(ops.EmbeddingRenorm, weight.detach(), input, max_norm=float(max_norm), norm_type=float(norm_type))
    return apply(ops.Embedding, input, weight, padding=padding_idx, by_frequency=scale_grad_by_freq, sparse=sparse)


def embedding_bag(*args: Any, **kwargs: Any) -> NoReturn:
    """Not offered.

    Raises:
        NotOfferedError: always.
    """
    raise NotOfferedError("embedding_bag is not offered: use embedding(input, weight) and .sum(), .mean() or .amax() of a dim")
