"""Select before the last layer: only positions that have a label reach the projection onto the vocabulary.

The logits of a language model are its largest tensor: positions times vocabulary. A loss that ignores most positions needs no
logits there: masked language modelling labels 15 % of the positions, instruction tuning only the answers, a classifier one.
"""

from __future__ import annotations

import numpy as np

from ..autograd.tensor import Tensor
from ..errors import DataDependenceError, ShapeError, pins_nothing
from ..functional.choose import nonzero
from ..functional.gather import index_select


@pins_nothing
def labelled_positions(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """The positions whose labels are not ``ignore_index``: int64, counted through ``labels`` row by row.

    Raises:
        DataDependenceError: on meta, where labels have no values: compute the positions with the data.
    """
    if labels.device.kind == "meta":
        raise DataDependenceError(
            "labelled_positions: how many labels are not ignored depends on their values, and there are none on meta; make "
            "the positions where the labels are made (numpy.flatnonzero), and give them as data"
        )
    return nonzero(labels.flatten().ne(ignore_index)).flatten()


@pins_nothing
def select_labelled(
    hidden: Tensor, labels: Tensor, ignore_index: int = -100, positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Select the rows of ``hidden`` (..., width) that have a label: returns rows (count, width) and their labels (count,).

    Their mean loss is the mean loss over all positions with ``ignore_index``; the gradients are equal too.

    Memory: logits, their gradient and what the loss keeps shrink to ``count / labels.numel()`` of their size. Added are the
    selected rows, ``count * width`` numbers, and the positions, 8 bytes each.
    Price: one gather, and one scatter in backward.
    Do not use when: nearly all positions have a label; then compute the cross-entropy in chunks.

    Args:
        labels: (...), whole numbers.
        positions: the result of :func:`labelled_positions`, if it is known already.

    Raises:
        ShapeError: hidden and labels are not of the same positions.
        DataDependenceError: on meta, without ``positions``.
    """
    if hidden.ndim < 1 or tuple(hidden.shape[:-1]) != tuple(labels.shape) or labels.dtype.kind not in "iu":
        raise ShapeError(
            f"select_labelled: labels are whole numbers, one for each row of hidden: hidden {list(hidden.shape)}, labels "
            f"{np.dtype(labels.dtype)} {list(labels.shape)}"
        )
    if positions is None:
        positions = labelled_positions(labels, ignore_index)
    rows = hidden.reshape(labels.numel(), hidden.shape[-1])
    return index_select(rows, 0, positions), index_select(labels.flatten(), 0, positions)
