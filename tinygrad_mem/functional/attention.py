"""Scaled dot-product attention: memory linear in the number of tokens, not quadratic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops import attention as ops
from ..ops.base import want_real
from .door import LOWER, public
from .dropout import want_probability


def _dropout(input: Tensor, p: float) -> tuple[float, tuple[int, int]]:
    """The probability and its ticket. Raises: ArgumentError: ``p`` is not a probability."""
    want_probability(p)
    return float(p), input.device.generator.ticket() if p > 0.0 else (0, 0)


def _scale(query: Tensor, scale: float | None) -> float:
    if scale is None:
        return 1.0 / math.sqrt(max(query.shape[-1], 1))
    want_real("scaled_dot_product_attention", scale=scale)
    return float(scale)


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"


def _batch(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[tuple[int, ...], list[Tensor]]:
    """The leading axes of the result, and the three tensors as (batch, heads, tokens, numbers)."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.ndim < 2:
            raise ShapeError(
                f"scaled_dot_product_attention: Expected query, key, and value to all be at least 2 dimensional, but got "
                f"{name} {list(t.shape)}: tokens and numbers are the last two"
            )
    given = (query, key, value)
    depth = max(t.ndim for t in given)
    leads = [(1,) * (depth - t.ndim) + tuple(t.shape[:-2]) for t in given]
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"scaled_dot_product_attention: key and value must have the same number of tokens: {_shapes(*given)}")
    grouped = enable_gqa and depth > 2 and leads[0][-1] != leads[1][-1]
    try:
        if grouped:
            outer = np.broadcast_shapes(*(lead[:-1] for lead in leads))
            full = [(*outer, lead[-1]) for lead in leads]
        else:
            full = [tuple(np.broadcast_shapes(*leads))] * 3
    except ValueError:
        hint = "" if enable_gqa else "; heads of keys that several heads of queries share need enable_gqa=True"
        raise ShapeError(
            f"scaled_dot_product_attention: the batch dimensions do not broadcast: {_shapes(*given)}{hint}"
        ) from None
    return full[0], [_four(t, lead) for t, lead in zip(given, full, strict=True)]


def _four(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``t`` with the leading axes ``lead``, as (batch, heads, ., .), without a copy if possible."""
    shape = (*lead, *t.shape[-2:])
    if tuple(t.shape) != shape:
        t = t.expand(*shape)
    heads = lead[-1] if lead else 1
    four = (math.prod(lead[:-1]), heads, *shape[-2:])
    return t if len(shape) == 4 else t.reshape(four)


def _mask(mask: Tensor, query: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as (batch or 1, heads or 1, rows or 1, columns or 1), for scores of ``shape``."""
    if mask.dtype != np.bool_ and mask.dtype != query.dtype:
        raise DTypeError(
            "scaled_dot_product_attention: Expected attn_mask dtype to be bool or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {query.dtype} instead."
        )
    found = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)
    if mask.ndim > len(shape) or any(m not in (1, n) for m, n in zip(found, shape, strict=True)):
        raise ShapeError(
            f"scaled_dot_product_attention: attn_mask {list(mask.shape)} does not broadcast to the scores {list(shape)}: "
            "queries times keys behind the batch dimensions"
        )
    lead = found[:-2]
    if any(n > 1 for n in lead[:-1]):
        lead = (*shape[:-3], lead[-1])
    whole = (*lead, *found[-2:])
    if tuple(mask.shape) != whole:
        mask = mask.reshape(found).expand(*whole)
    return mask.reshape(math.prod(lead[:-1]), lead[-1] if lead else 1, *found[-2:])


@public("nn.functional", cpu=LOWER, cuda=LOWER)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ key.mT * scale + mask) @ value``, without the matrix of scores: memory is linear in the tokens.

    query (..., heads, L, E), key (..., heads, S, E), value (..., heads, S, Ev) -> (..., heads, L, Ev); leading axes broadcast.
    float16 is computed in float32. The scores are computed in tiles of a fixed size, in forward and again in backward.

    Args:
        attn_mask: broadcasts to (..., heads, L, S): bool, where False hides a key; or of query's dtype, added to the scores. A
            floating mask may require a gradient, which is (L, S) for each of its batches and heads.
        dropout_p: the dropout of the softmax; pass 0 in evaluation.
        is_causal: query i attends to keys 0 to i; hidden tiles are skipped.
        scale: by default ``1 / sqrt(E)``.
        enable_gqa: key and value have fewer heads; each is shared by the same number of neighbouring heads of query.

    A query whose keys are all hidden gets 0, and gives no gradient.

    Saves: query, key, value, the mask, the output, and one number a row. No mask of dropout: it is drawn again.

    Memory: one number for each query row, instead of two matrices of (L, S) for each head.

    Price: the scores are computed again in backward.

    Do not use when: the scores themselves are needed, to inspect them or to change them before the softmax.

    Raises:
        ShapeError: shapes that do not fit, or both a mask and ``is_causal``.
        DTypeError: different dtypes, also that of the mask.
        ValueError: ``dropout_p`` is not a probability.

    Source: Dao et al., *FlashAttention*, 2022; Rabe and Staats, *Self-attention does not need O(n^2) memory*, 2021.
    """
    if attn_mask is not None and is_causal:
        raise ShapeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True; add it to the mask"
        )
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """:func:`scaled_dot_product_attention` with a mask and ``is_causal``: the triangle needs no memory."""
    lead, (q, k, v) = _batch(query, key, value, gqa)
    rows, columns = query.shape[-2], key.shape[-2]
    mask = None if mask is None else _mask(mask, query, (*lead, rows, columns))
    p, ticket = _dropout(query, p)
    window = (None, 0 if is_causal else None)
    y = apply(ops.Attention, q, k, v, mask, scale=_scale(query, scale), window=window, p=p, ticket=ticket)
    shape = (*lead, rows, value.shape[-1])
    return y if len(shape) == 4 else y.reshape(shape)


def _attend_itself(x: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool) -> Tensor:
    """:func:`_attend` of x (N, 3, heads, T, E), which is query, key and value; the mask gets no gradient."""
    mask = None if attn_mask is None else _mask(attn_mask.detach(), x, (x.shape[0], *x.shape[2:4], x.shape[3]))
    p, ticket = _dropout(x, dropout_p)
    window = (None, 0 if is_causal else None)
    return apply(ops.SelfAttention, x, mask, scale=_scale(x, None), window=window, p=p, ticket=ticket)


@public(cpu=LOWER, cuda=LOWER)
def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: Sequence[int] = (-1, -1),
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """:func:`scaled_dot_product_attention` of sequences of any lengths, concatenated: nothing is padded.

    query (T, heads, E), key (S, heads, E), value (S, heads, Ev) -> (T, heads, Ev), where T and S are the numbers of tokens of
    all sequences. Each token attends to its own sequence only.

    Args:
        cu_seq_q, cu_seq_k: cumulative lengths, int32 or int64: sequence n lasts from ``cu_seq_q[n]`` to ``cu_seq_q[n + 1]``;
            the first is 0, the last the number of tokens. A sequence may be empty.
        max_q, max_k: the longest lengths, or upper bounds of them.
        window_size: the number of keys before and after its own that a query attends to, -1 for all: (-1, 0) is causal. If a
            sequence has more keys than queries, its last query is at its last key.
        scale, enable_gqa, dropout_p: as of :func:`scaled_dot_product_attention`.
        softcap: a bound of the scores, as in Gemma 2: they become ``softcap * tanh(score / softcap)``.

    Saves: query, key, value, the output, the cumulative lengths, and one number a row and head.

    Raises:
        ShapeError: shapes that do not fit; cumulative lengths that do not begin with 0 or do not end with the tokens.
        ValueError: cumulative lengths that decrease, a sequence longer than ``max_q`` or ``max_k``, a wrong ``dropout_p`` or
            ``softcap``.
        DTypeError: different dtypes; cumulative lengths that are not integers.

    Source: Dao, *FlashAttention-2*, 2023.
    """
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.ndim != 3:
            raise ShapeError(f"varlen_attn: {name} must be (tokens, heads, numbers), found {list(t.shape)}")
    if key.shape[0] != value.shape[0]:
        raise ShapeError(f"varlen_attn: key and value must have the same number of tokens: {_shapes(query, key, value)}")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ShapeError(
            f"varlen_attn: different numbers of heads: {_shapes(query, key, value)}; heads that are shared need enable_gqa=True"
        )
    for name, t in (("cu_seq_q", cu_seq_q), ("cu_seq_k", cu_seq_k)):
        if t.ndim != 1 or t.dtype.kind not in "iu":
            raise DTypeError(f"varlen_attn: {name} must be a vector of int32 or int64, found {t.dtype} {list(t.shape)}")
    if cu_seq_q.shape != cu_seq_k.shape:
        raise ShapeError(
            f"varlen_attn: cu_seq_q and cu_seq_k must have the same length, found {cu_seq_q.numel()} and {cu_seq_k.numel()} "
            "offsets"
        )
    if len(window_size) != 2 or min(window_size) < -1:
        raise ArgumentError(
            f"varlen_attn: window_size must be (keys before, keys after), -1 for all, found {tuple(window_size)}"
        )
    if softcap is not None and not softcap > 0:
        raise ArgumentError(f"varlen_attn: softcap bounds the scores and must be positive, found {softcap!r}")
    left, right = (None if n == -1 else n for n in window_size)
    p, ticket = _dropout(query, dropout_p)
    how: dict[str, Any] = {"scale": _scale(query, scale), "window": (left, right), "p": p, "ticket": ticket, "cap": softcap}
    return apply(ops.VarlenAttention, query, key, value, cu_seq_q, cu_seq_k, longest=(max_q, max_k), **how)
