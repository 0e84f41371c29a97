"""Dropout and its relatives, with the names and arguments of ``torch.nn.functional``.

None of them keeps a mask: backward draws it again from the generator's ticket, two numbers.
"""

from __future__ import annotations

import math
import warnings

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..dtypes import is_floating
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops import dropout as ops
from .door import public

_LOW = -1.7580993408473766  # SELU's lower limit: -scale * alpha


def want_probability(p: float) -> None:
    """Check that ``p`` is from 0 to 1. Raises: ArgumentError: it is not."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout probability has to be between 0 and 1, but got {p}")


def _drop(input: Tensor, p: float, training: bool, inplace: bool, length: int = 1, alpha: bool = False) -> Tensor:
    """Drop cells of ``length`` elements; ``alpha`` keeps mean and variance of SELU's outputs."""
    want_probability(p)
    if not training or p == 0.0 or input.numel() == 0:
        return input
    if not is_floating(input.dtype):
        raise DTypeError(f"dropout: result type float32 can't be cast to {input.dtype}; give a floating tensor")
    scale, shift, dropped = 0.0 if p == 1.0 else 1.0 / (1.0 - p), 0.0, 0.0
    if alpha and p < 1.0:
        scale = ((1 - p) * (1 + p * _LOW**2)) ** -0.5
        shift = -scale * _LOW * p
        dropped = scale * _LOW + shift
    run = apply_ if inplace else apply
    ticket = input.device.generator.ticket()
    return run(ops.Dropout, input, p=p, kept=(scale, shift), dropped=dropped, length=length, ticket=ticket)


@public("nn.functional")
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeros with probability ``p``, the rest scaled by ``1 / (1 - p)``; outside training the input itself.

    Saves: no array; the mask is drawn again in backward from the generator's ticket.

    Raises:
        ValueError: ``p`` is not a probability.
        DTypeError: the input is not floating.
    """
    return _drop(input, p, training, inplace)


def _channels(input: Tensor, p: float, training: bool, inplace: bool, leading: int) -> Tensor:
    """Drop whole channels: one draw for each entry of the ``leading`` dimensions."""
    return _drop(input, p, training, inplace, math.prod(input.shape[leading:]))


def _warn_deprecated(input: Tensor, n: int, note: str) -> None:
    message = f"dropout{n}d: found a {input.ndim}-D input {list(input.shape)}, which PyTorch has deprecated: {note}"
    warnings.warn(message, UserWarning, stacklevel=4)  # the line behind the door


@public("nn.functional")
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop whole channels of (N, C, L) or (C, L). Saves: no array. Raises: ShapeError: another number of dimensions."""
    if input.ndim not in (2, 3):
        raise ShapeError(f"dropout1d: expected a 2-D or 3-D input, found {list(input.shape)}")
    return _channels(input, p, training, inplace, input.ndim - 1)


@public("nn.functional")
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop whole channels of (N, C, H, W). Saves: no array.

    As in PyTorch, other inputs are accepted with a warning: the first two dimensions are channels, so that rows of length L of
    (N, C, L), or single elements of (N, C), are dropped.

    Raises:
        ShapeError: fewer than 2 dimensions.
    """
    if input.ndim < 2:
        raise ShapeError(f"dropout2d: Feature dropout requires at least 2 dimensions in the input, found {list(input.shape)}")
    if input.ndim == 3:
        _warn_deprecated(input, 2, "it is read as (N, C, L); use dropout1d, or unsqueeze(0) a (C, H, W)")
    elif input.ndim != 4:
        _warn_deprecated(input, 2, "the first two dimensions count channels; use dropout for single elements")
    return _channels(input, p, training, inplace, 2)


@public("nn.functional")
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop whole channels of (N, C, D, H, W) or (C, D, H, W). Saves: no array.

    As in PyTorch, inputs of other dimensions are accepted with a warning, as by :func:`dropout2d`: the first dimension has the
    channels; for (N, C, D, H, W) the first two.

    Raises:
        ShapeError: no dimension.
    """
    if input.ndim == 0:
        raise ShapeError("dropout3d: expected at least 1 dimension, found a 0-d tensor")
    if input.ndim not in (4, 5):
        _warn_deprecated(input, 3, "the first dimension counts channels; use dropout for single elements")
    return _channels(input, p, training, inplace, 2 if input.ndim == 5 else 1)


@public("nn.functional")
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of SELU's outputs: dropped entries get SELU's lower limit. Saves: no array.

    Source: Klambauer et al., *Self-normalizing neural networks*, 2017.
    """
    return _drop(input, p, training, inplace, alpha=True)
