"""A function of a batch, computed for some rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ShapeError, is_whole, pins_nothing
from ..functional import creation, join
from ..recompute.checkpoint import checkpoint
from ..scope import local


@pins_nothing
def chunked(function: Callable[[Tensor], Tensor], input: Tensor, chunks: int, dim: int = 0) -> Tensor:
    """Compute ``function(input)`` for ``chunks`` parts of ``input`` along ``dim``, one after the other.

    Args:
        function: takes a tensor and returns one with as many entries along ``dim``. Each entry must depend only on the same
            entry of the input (no batch norm in training, no softmax over ``dim``).
        input: split as by ``chunk``: parts of ``ceil(size / chunks)`` entries; the last may be smaller.

    Memory:
        Temporaries of ``function`` exist for one part at a time. What it *saves* for backward is kept for all parts, as much as
        without ``chunked``: in training, put ``checkpoint`` around ``function`` or a part of it. Without gradients, the results
        are written directly into the output. With gradients they are joined: for a moment they exist twice.
    Price:
        More and smaller kernels; with gradients, a copy of the output.
    Do not use when:
        The function's temporaries are no larger than its output: the copy then costs more than they did.

    Returns:
        The results joined along ``dim``. Each is bit for bit the result of ``function`` for its part. A function that draws
        random numbers draws others for parts than for the whole.

    Raises:
        ArgumentError: ``chunks`` is not a positive whole number.
        ShapeError: a result has another size along ``dim`` than its part.

    >>> with no_grad():
    ...     scores = chunked(model, images, 16)
    """
    if not is_whole(chunks):
        raise ArgumentError(f"chunked: chunks is the number of parts of the input, expected 1 or more, found {chunks!r}")
    size = input.size(dim)
    step = max(-(-size // chunks), 1)
    if step >= size:
        return _run_checked(function, input, dim)
    # a part is cut just before its turn: backward then adds its gradient to the input's before it walks the next part
    parts = (input.narrow(dim, start, min(step, size - start)) for start in range(0, size, step))
    if local.grad_enabled:
        return join.cat([_run_checked(function, part, dim) for part in parts], dim)
    out, start = None, 0
    for part in parts:
        found = _run_checked(function, part, dim)
        if out is None:
            shape = list(found.shape)
            shape[dim] = input.shape[dim]
            out = creation.empty(*shape, dtype=found.dtype, device=found.device)
        out.narrow(dim, start, found.shape[dim]).copy_(found)
        start += found.shape[dim]
        del found
    assert out is not None
    return out


@pins_nothing
def tiled(function: Callable[[Tensor], Tensor], input: Tensor, tokens: int | None) -> Tensor:
    """Compute ``function(input)`` for some tokens at a time, in backward again: nothing of its inside is kept.

    Args:
        function: of each token alone, such as the MLP of a transformer: (..., tokens, width) -> (..., tokens, any width).
        tokens: the most tokens in a tile; ``None``: all are computed at once, and what the function saves is kept.

    Memory:
        Of the function's inside, one tile. Kept for backward: the input. The result exists twice for a moment, when the tiles
        are joined; in backward there is the gradient of the weights twice, the sum of the tiles before and this tile's.
    Price:
        The function's forward once more. Inside a block that is recomputed too, all tiles but the last run a third time.
    Do not use when:
        What the function keeps is small: its input stays, and each tile adds kernels and a sum of gradients.

    Results are those of the tiles, bit for bit. Gradients of weights are sums over tiles, and so rounded in another order.

    Raises:
        ArgumentError: ``tokens`` is not a positive whole number. DimensionError: ``input`` has one dimension.
        ShapeError: as :func:`chunked`.

    Source: Bekman et al., *Arctic long sequence training*, 2025.

    >>> y = tiled(mlp, x, 4096)
    """
    if tokens is None:
        return function(input)
    if not is_whole(tokens):
        raise ArgumentError(f"tiled: tokens is the number that is computed at a time, expected 1 or more, found {tokens!r}")
    return chunked(partial(checkpoint, function), input, max(-(-input.size(-2) // tokens), 1), -2)


def _run_checked(function: Callable[[Tensor], Tensor], part: Tensor, dim: int) -> Tensor:
    found: Any = function(part)
    if not isinstance(found, Tensor) or not -found.ndim <= dim < found.ndim or found.shape[dim] != part.shape[dim]:
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(
            f"chunked: of a part of shape {list(part.shape)} the function made {what}; it must return a tensor with as many "
            f"entries along dimension {dim}"
        )
    return found
