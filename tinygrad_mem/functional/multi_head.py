"""Attention of several heads between two projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from ..scope import local
from . import attention
from .door import LOWER, public
from .dropout import dropout, want_probability
from .join import cat
from .linalg import linear
from .softmax import softmax


def _canonical(mask: Tensor | None, name: str) -> Tensor | None:
    """The mask in the form of scaled_dot_product_attention: bool, where True is visible, or numbers to add."""
    if mask is None:
        return None
    if mask.dtype == np.bool_:
        return mask.logical_not()
    if not mask.is_floating_point():
        raise DTypeError(f"only bool and floating types of {name} are supported, found {mask.dtype}")
    return mask


def _added(mask: Tensor, query: Tensor) -> Tensor:
    """A mask as numbers to add to the scores, in query's dtype."""
    if mask.dtype != np.bool_:
        return mask.to(query.dtype)
    zero = query.new_zeros(1).expand(*mask.shape)
    return zero.masked_fill(mask.logical_not(), float("-inf"))


def _joined(keys: Tensor | None, pairs: Tensor | None, query: Tensor) -> Tensor | None:
    """One mask from two: of keys (N, 1, 1, S), and of pairs (N or 1, heads or 1, L, S). It is bool, or of query's dtype."""
    if keys is None or pairs is None:
        one = pairs if keys is None else keys
        return one if one is None or one.dtype == np.bool_ else one.to(query.dtype)
    if keys.dtype == pairs.dtype == np.bool_:
        return keys.logical_and(pairs)
    return _added(keys, query) + _added(pairs, query)


def _masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, shape: tuple[int, int, int, int]
) -> tuple[Tensor | None, Tensor | None]:
    """Both masks with four axes, checked against scores of ``shape`` (N, heads, L, S)."""
    count, heads, rows, columns = shape
    keys, pairs = _canonical(key_padding_mask, "key_padding_mask"), _canonical(attn_mask, "attn_mask")
    if keys is not None:
        if tuple(keys.shape) != (count, columns):
            raise ShapeError(
                f"multi_head_attention: expecting key_padding_mask of shape {(count, columns)}, but got {tuple(keys.shape)}"
            )
        keys = keys.reshape(count, 1, 1, columns)
    if pairs is not None:
        if tuple(pairs.shape) == (rows, columns):
            pairs = pairs.reshape(1, 1, rows, columns)
        elif tuple(pairs.shape) == (count * heads, rows, columns):
            pairs = pairs.reshape(count, heads, rows, columns)
        else:
            raise ShapeError(
                f"The shape of the {pairs.ndim}D attn_mask is {tuple(pairs.shape)}, but should be "
                f"{(rows, columns)}, or {(count * heads, rows, columns)} with one for each head"
            )
    return keys, pairs


def _longer(mask: Tensor | None, by: int) -> Tensor | None:
    """A mask with ``by`` more columns, which are visible."""
    if mask is None or not by:
        return mask
    shape = (*mask.shape[:-1], by)
    more = mask.new_ones(shape) if mask.dtype == np.bool_ else mask.new_zeros(shape)
    return cat([mask, more], -1)


class Heads:
    """The change from (L, N, E), or (N, L, E), to (N, heads, L, E / heads), and back: views both ways."""

    def __init__(self, count: int, batch_first: bool) -> None:
        self.count, self.batch_first = count, batch_first

    def size(self, x: Tensor) -> tuple[int, int]:
        """Batch and length."""
        return (x.shape[0], x.shape[1]) if self.batch_first else (x.shape[1], x.shape[0])

    def split(self, x: Tensor) -> Tensor:
        x = x.reshape(*x.shape[:2], self.count, x.shape[2] // max(self.count, 1))
        return x.permute(0, 2, 1, 3) if self.batch_first else x.permute(1, 2, 0, 3)

    def split_thirds(self, x: Tensor) -> Tensor:
        """(N, 3, heads, L, E / heads)."""
        x = x.reshape(*x.shape[:2], 3, self.count, x.shape[2] // (3 * max(self.count, 1)))
        return x.permute(0, 2, 3, 1, 4) if self.batch_first else x.permute(1, 2, 3, 0, 4)

    def join(self, x: Tensor) -> Tensor:
        count, _, rows, _ = x.shape
        x = x.permute(0, 2, 1, 3) if self.batch_first else x.permute(2, 0, 1, 3)
        return x.reshape(*((count, rows) if self.batch_first else (rows, count)), x.shape[2] * x.shape[3])

    def append(self, x: Tensor, row: Tensor | None) -> Tensor:
        """``x`` with one more token at the end, the same for the whole batch; by default zeros."""
        count, _ = self.size(x)
        shape = (count, 1, x.shape[2]) if self.batch_first else (1, count, x.shape[2])
        more = x.new_zeros(shape) if row is None else row.expand(*shape)
        return cat([x, more], 1 if self.batch_first else 0)


def _weighted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """The result, and the softmax as a matrix, which the caller needs."""
    scores = (q * (1.0 / math.sqrt(max(q.shape[-1], 1)))) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + _added(mask, q)
    weights = dropout(softmax(scores, -1), p)
    return weights @ v, weights


def _attention(
    tensors: tuple[Tensor, Tensor, Tensor],
    heads: Heads,
    in_proj: tuple[Tensor | None, tuple | None, Tensor | None],
    extra: tuple[Tensor | None, Tensor | None, bool],
    static: tuple[Tensor | None, Tensor | None],
    out_proj: tuple[Tensor, Tensor | None],
    p: float,
    masks: tuple[Tensor | None, Tensor | None, bool],
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a batch of 3-d tensors; the weights are (N, heads, L, S), a static tensor is (N * heads, S, E / heads)."""
    query, key, value = tensors
    (packed, separate, bias), (bias_k, bias_v, add_zero), (key_padding_mask, attn_mask, causal) = in_proj, extra, masks
    count, rows = heads.size(query)
    plain = bias_k is None and bias_v is None and not add_zero and static == (None, None)
    columns = heads.size(key)[1] if static[0] is None else static[0].shape[1]
    keys, pairs = _masks(key_padding_mask, attn_mask, (count, heads.count, rows, columns))
    causal = causal and not need_weights and bias_k is None and not add_zero  # all queries see appended tokens: no triangle
    if causal:
        pairs = None  # the hint says that the mask is the triangle, which needs no memory in tiles
    learned = any(mask is not None and mask.requires_grad for mask in (keys, pairs))
    if plain and packed is not None and query is key and key is value and not need_weights and not learned:
        x = heads.split_thirds(linear(query, packed, bias))
        y = attention._attend_itself(x, _joined(keys, pairs, x), p, causal)
        return linear(heads.join(y), *out_proj), None
    thirds = [slice(i * query.shape[2], (i + 1) * query.shape[2]) for i in range(3)]
    if separate is None:
        assert packed is not None
        separate = tuple(packed[third] for third in thirds)
    biases = (None, None, None) if bias is None else [bias[third] for third in thirds]
    q, k, v = (linear(t, w, b) for t, w, b in zip(tensors, separate, biases, strict=True))
    if bias_k is not None and bias_v is not None:
        k, v = heads.append(k, bias_k), heads.append(v, bias_v)
    more = int(bias_k is not None)
    q = heads.split(q)
    k, v = (
        heads.split(t) if given is None else given.reshape(count, heads.count, *given.shape[1:])
        for t, given in zip((k, v), static, strict=True)
    )
    if add_zero:
        k, v = (cat([t, t.new_zeros((*t.shape[:2], 1, t.shape[3]))], 2) for t in (k, v))
        more += 1
    mask = _joined(_longer(keys, more), _longer(pairs, more), q)
    if local.autocast is not None:  # a learned row, or a static tensor, has its own dtype
        k, v = k.to(q.dtype), v.to(q.dtype)
    if need_weights:
        y, weights = _weighted(q, k, v, mask, p)
        return linear(heads.join(y), *out_proj), weights
    return linear(heads.join(attention._attend(q, k, v, mask, p, causal, None, False)), *out_proj), None


def _refuse(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int) -> None:
    """Refuse shapes that do not fit this width. Raises: ShapeError: with what was found."""
    ndim = query.ndim
    if ndim not in (2, 3) or not ndim == key.ndim == value.ndim:
        raise ShapeError(
            "multi_head_attention: query, key and value must all be batches of sequences (3 dimensions) or single ones (2): "
            f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    if query.shape[-1] != embed_dim:
        raise ShapeError(f"was expecting embedding dimension of {embed_dim}, but got {query.shape[-1]}")
    if heads < 1 or embed_dim % heads:
        raise ShapeError(f"embed_dim {embed_dim} not divisible by num_heads {heads}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(f"key shape {tuple(key.shape)} does not match value shape {tuple(value.shape)}")


def _refuse_weights(key: Tensor, value: Tensor, width: int, in_proj: tuple, extra: tuple) -> None:
    """Refuse weights of another width.

    Raises:
        ArgumentTypeError: there is none.
        ShapeError: with what was found.
    """
    packed, separate, bias = in_proj
    if separate is None:
        if packed is None:
            raise ArgumentTypeError("use_separate_proj_weight is False but in_proj_weight is None")
        if key.shape != value.shape:
            raise ShapeError(f"key shape {tuple(key.shape)} does not match value shape {tuple(value.shape)}")
        if tuple(packed.shape) != (3 * width, width):
            raise ShapeError(f"in_proj_weight must have shape {(3 * width, width)}, found {tuple(packed.shape)}")
    elif any(w is None or w.shape[0] != width for w in separate):
        raise ArgumentTypeError(f"use_separate_proj_weight is True: q_, k_ and v_proj_weight must have {width} rows each")
    if bias is not None and tuple(bias.shape) != (3 * width,):
        raise ShapeError(f"in_proj_bias must have shape {(3 * width,)}, found {tuple(bias.shape)}")
    if (extra[0] is None) != (extra[1] is None):
        raise ArgumentTypeError("bias_k and bias_v are set together, or neither is")


@public("nn.functional", cpu=LOWER, cuda=LOWER)
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The arithmetic of :class:`nn.MultiheadAttention`: query (L, N, E), key (S, N, E), value (S, N, E) -> (L, N, E), weights.

    Without a batch all of them are (L, E). The weights are asked for by ``need_weights``: (N, L, S), or with
    ``average_attn_weights=False`` (N, heads, L, S). They are a matrix in memory then, and what made them is kept; without them
    memory is linear in the tokens (:func:`scaled_dot_product_attention`).

    Saves: what its parts save.

    Raises:
        ShapeError: shapes that do not fit, ``num_heads`` that does not divide the embedding, ``is_causal`` without a mask.
        DTypeError: a mask that is neither bool nor floating.
        ValueError: ``dropout_p`` is no probability.
    """
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    return multi_head(
        *(query, key, value, embed_dim_to_check, Heads(num_heads, batch_first=False)),
        (in_proj_weight, separate, in_proj_bias),
        (bias_k, bias_v, add_zero_attn),
        (out_proj_weight, out_proj_bias),
        dropout_p if training else 0.0,
        (key_padding_mask, attn_mask, is_causal),
        *(need_weights, average_attn_weights, (static_k, static_v)),
    )


@public()
def multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: Heads,
    in_proj: tuple[Tensor | None, Any, Tensor | None],
    extra: tuple[Tensor | None, Tensor | None, bool],
    out_proj: tuple[Tensor, Tensor | None],
    dropout_p: float,
    masks: tuple[Tensor | None, Tensor | None, bool],
    need_weights: bool,
    average: bool,
    static: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:
    """:func:`multi_head_attention_forward` that also takes (N, L, E), without transposing it.

    Args:
        in_proj: one weight or three, and a bias.
        extra: a token behind the keys and one behind the values, and whether one of zeros follows.
        masks: of keys and of pairs, and ``is_causal``.
    """
    _refuse(query, key, value, embed_dim, heads.count)
    _refuse_weights(key, value, embed_dim, in_proj, extra)
    keys, pairs, causal = masks
    if causal and pairs is None:
        raise ArgumentError("Need attn_mask if specifying the is_causal hint.")
    want_probability(dropout_p)
    tensors, axis = (query, key, value), 0 if heads.batch_first else 1
    if query.ndim == 2:
        made = {id(t): t.unsqueeze(axis) for t in tensors}  # equal inputs stay one tensor
        tensors = (made[id(query)], made[id(key)], made[id(value)])
        masks = (None if keys is None else keys.unsqueeze(0), pairs, causal)
    y, weights = _attention(tensors, heads, in_proj, extra, static, out_proj, dropout_p, masks, need_weights)
    if weights is not None and average:
        weights = weights.mean(1)
    if query.ndim == 3:
        return y, weights
    return y.squeeze(axis), None if weights is None else weights.squeeze(0)
