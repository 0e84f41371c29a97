"""The CTC loss: for sequences with unknown alignment to their labels."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..dtypes import int32, int64
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from ..ops import ctc as ops
from ..scope import local, run_by
from . import elementwise
from .convert import to
from .creation import tensor
from .door import FLOAT32, public
from .loss import reduction_of

Lengths = Tensor | Sequence[int] | int


@public("nn.functional", cpu=FLOAT32)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-ln of the probability of the targets, summed over all their alignments to the rows of the input.

    ``mean`` first divides each loss by the length of its target (at least 1). As in PyTorch, the gradient assumes that the
    input comes from ``log_softmax``.

    Args:
        log_probs: (T, N, C) or (T, C): logarithms of probabilities, float32 or float64.
        targets: (N, S), or all targets in a line; (S) with (T, C). Labels are 0 to C - 1, without ``blank``.
        input_lengths, target_lengths: (N) whole numbers each, or one with (T, C). Sizes depend on them: a prediction wants
            numbers that the program gives.
        blank: the label for "no label".
        zero_infinity: the loss of a target that is too long for its input is 0, without a gradient, instead of inf.

    Saves: the input, the targets, and 24 bytes a sample. PyTorch keeps T * (2 * S + 1) sums a sample besides; here backward
    makes them again.

    Raises:
        DTypeError: the input is not float32 or float64, or targets or lengths are not whole numbers.
        ShapeError: shapes and lengths that do not fit together.
        ArgumentError: ``blank`` is not a label.
        ArgumentTypeError: ``blank`` or a length is not a whole number.
        DimensionError: the input has no second dimension; a target is not a label (on a GPU the loss is nan).

    Source: Graves et al., *Connectionist temporal classification*, 2006.
    """
    reduction = reduction_of(reduction)
    normalize_dim(1, log_probs.ndim)
    alone = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if alone else log_probs
    if x.ndim != 3 or not x.size(2):
        raise ShapeError(f"ctc_loss: expected log_probs of shape (T, N, C) or (T, C), found {list(log_probs.shape)}")
    if targets.dtype not in (int32, int64):
        raise DTypeError(f"ctc_loss: expected targets of int64 or int32, found {targets.dtype}")
    if not 0 <= _whole_number("blank", blank) < x.size(2):
        raise ArgumentError(f"ctc_loss: blank must be in label range, 0 to {x.size(2) - 1}, found {blank}")
    rows, labels = _lengths("input_lengths", input_lengths, x.size(1)), _lengths("target_lengths", target_lengths, x.size(1))
    if max(rows, default=0) > x.size(0):
        raise ShapeError(f"ctc_loss: expected input_lengths of at most {x.size(0)}, the rows of log_probs, found {max(rows)}")
    starts = _starts(targets.unsqueeze(0) if alone and targets.ndim == 1 else targets, labels)
    line = to(targets, dtype=int64).reshape(-1)
    host = run_by(local.run_uncounted, np.array, [rows, labels, starts], dtype=int64)
    spans = tensor(host, device=x.device).reshape(3, x.size(1))
    states = 2 * max(labels, default=0) + 1
    losses = apply(ops.CTCLoss, x, line, spans, states=states, blank=int(blank), zero_infinity=bool(zero_infinity))
    if reduction == "mean":
        sizes = tensor([max(n, 1) for n in labels], dtype=x.dtype, device=x.device)
        return elementwise.div(losses, sizes).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.reshape(()) if alone else losses


def _lengths(name: str, lengths: Any, count: int) -> list[int]:
    """One integer per sample."""
    if isinstance(lengths, Tensor):
        if lengths.dtype.kind not in "iu":
            raise DTypeError(f"ctc_loss: expected {name} to be whole numbers, found {lengths.dtype}")
        lengths = lengths.reshape(-1).tolist()
    found = [_whole_number(name, n) for n in ([lengths] if isinstance(lengths, int) else lengths)]
    if len(found) != count or min(found, default=0) < 0:
        raise ShapeError(f"ctc_loss: expected {name} of {count} numbers, one a sample, none below 0, found {found}")
    return found


def _whole_number(name: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ArgumentTypeError(f"ctc_loss: {name} must be whole numbers, found {number!r}") from None


def _starts(targets: Tensor, lengths: list[int]) -> list[int]:
    """The index at which each target begins in the concatenated targets."""
    if targets.ndim == 2 and targets.size(0) == len(lengths):
        if max(lengths, default=0) > targets.size(1):
            raise ShapeError(f"ctc_loss: expected target_lengths of at most {targets.size(1)}, found {max(lengths)}")
        return [i * targets.size(1) for i in range(len(lengths))]
    if targets.ndim != 1 or sum(lengths) > targets.size(0):
        raise ShapeError(
            f"ctc_loss: expected targets of shape ({len(lengths)}, S), or {sum(lengths)} in a line, the sum of target_lengths; "
            f"found {list(targets.shape)}"
        )
    return [sum(lengths[:i]) for i in range(len(lengths))]
