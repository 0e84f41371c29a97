"""Dropout and its relatives, with the names and arguments of ``torch.nn.functional``."""

from __future__ import annotations

from ..autograd.tape import apply, apply_
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops import dropout as ops
from . import creation, elementwise


def _checked(p: float) -> float:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return p


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeros with probability ``p``, the rest scaled by ``1 / (1 - p)``; outside training the input itself.

    Saves: no array; the mask is drawn again in backward from the generator's ticket.

    Raises:
        ValueError: ``p`` is not a probability.
    """
    _checked(p)
    if not training or p == 0.0 or input.numel() == 0:
        return input
    run = apply_ if inplace else apply
    return run(ops.Dropout, input, p=p, ticket=input.device.generator.ticket())


def _channels(input: Tensor, p: float, training: bool, inplace: bool, n: int) -> Tensor:
    """Whole channels are dropped: the mask has one entry a channel, and is what is saved."""
    _checked(p)
    if input.ndim not in (n + 1, n + 2):
        raise ShapeError(f"dropout{n}d: expected a {n + 1}-D or {n + 2}-D input, found {list(input.shape)}")
    if not training or p == 0.0:
        return input
    mask = creation.zeros(*input.shape[: input.ndim - n], *[1] * n, dtype=input.dtype, device=input.device)
    if p < 1.0:
        mask.bernoulli_(1.0 - p)
        mask.div_(1.0 - p)
    return elementwise.mul_(input, mask) if inplace else elementwise.mul(input, mask)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, L) or (C, L). Saves: one number a channel."""
    return _channels(input, p, training, inplace, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, H, W) or (C, H, W). Saves: one number a channel."""
    return _channels(input, p, training, inplace, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, D, H, W) or (C, D, H, W). Saves: one number a channel."""
    return _channels(input, p, training, inplace, 3)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of SELU's outputs: dropped entries get SELU's lower limit.

    Saves: the mask, one byte an element.

    Source: Klambauer et al., *Self-normalizing neural networks*, 2017.
    """
    _checked(p)
    if not training or p == 0.0:
        return input
    low = -1.7580993408473766
    if p == 1.0:
        return elementwise.mul(input, 0.0)
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5
    dropped = creation.empty_like(input, dtype="bool").bernoulli_(p)
    out = elementwise.add(elementwise.mul(elementwise.masked_fill(input, dropped, low), scale), -scale * low * p)
    return input.copy_(out) if inplace else out
