"""Attention. The scores of all tokens are never in memory at once, neither in forward nor in backward.

The formulas compute the whole matrix of scores; the kernels compute tiles of it (``fast/attention_tiles.py``). Backward needs
only ``lse``, the logarithm of each row's sum of e**score: one number per row. Half precision is computed in float32.
"""

from itertools import pairwise
from math import prod as _prod

import numpy as np

from ...dtypes import is_half
from ...errors import ArgumentError, ShapeError
from ..formula import formula
from .fast import attention_backward as _backward
from .fast import attention_forward
from .fast.attention_tiles import Job, grouped

# --- the formulas; runs with dropout are not compared, because each tile draws its own mask


def _scores(q, k, scale, cap):
    scores = q @ k.swapaxes(-1, -2) * scale
    return scores if cap is None else np.tanh(scores / cap) * cap


def _weights(q, k, mask, scale, window, offset=0, cap=None):
    """(softmax, lse) of the scores of q (batch, head, row, E) with k, with equal heads; 0 and inf for rows without keys."""
    scores = _scores(q, k, scale, cap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    ahead = np.arange(k.shape[2]) - np.arange(q.shape[2])[:, None] - offset  # the distance of a column from its row
    left, right = (np.inf if n is None else n for n in window)
    scores = np.where((-left <= ahead) & (ahead <= right), scores, -np.inf)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(-1, keepdims=True))
    lse[lse == -np.inf] = np.inf
    return np.exp(scores - lse), lse[..., 0]


def _shared(x, q):
    """Keys or values repeated, so that each query head has its own."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def _attention(q, k, v, mask, scale, window, p, offset=0, cap=None):
    weights, lse = _weights(q, _shared(k, q), mask, scale, window, offset, cap)
    return {} if p else {"out": weights @ _shared(v, q), "lse": lse}


def _attention_back(gy, q, k, v, mask, scale, window, p, gmask=None, offset=0, cap=None):
    if p:
        return {}
    keys = _shared(k, q)
    weights, _ = _weights(q, keys, mask, scale, window, offset, cap)
    found = {"gv": _by_key_head(weights.swapaxes(-1, -2) @ gy, k)}
    if v is not None:
        slopes = gy @ _shared(v, q).swapaxes(-1, -2)
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True))
        if cap is not None:
            slopes = slopes * (1 - (_scores(q, keys, scale, cap) / cap) ** 2)
        found |= {"gq": slopes @ keys * scale, "gk": _by_key_head(slopes.swapaxes(-1, -2) @ q * scale, k)}
        if gmask is not None:
            shared = tuple(axis for axis in (0, 1) if gmask.shape[axis] == 1)
            found["gmask"] = gmask + slopes.sum(shared, keepdims=True)
    return found


def _by_key_head(x, k):
    """Gradients of keys or values, summed over the heads that share them."""
    return x.reshape(len(x), k.shape[1], x.shape[1] // k.shape[1], *x.shape[2:]).sum(2)


def _each_sequence(cu_q, cu_k):
    """(rows, columns, distance of the last column from the last row) of each sequence with rows."""
    for rows, columns in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        if rows[1] > rows[0]:
            yield slice(*rows), slice(*columns), (columns[1] - columns[0]) - (rows[1] - rows[0])


def _varlen(q, k, v, cu_q, cu_k, scale, window, p, cap, out, lse):
    for rows, columns, offset in _each_sequence(cu_q, cu_k):
        parts = (_by_head(q, rows), _by_head(k, columns), _by_head(v, columns))
        found = _attention(*parts, None, scale, window, p, offset, cap)
        if p:
            return {}
        out[rows], lse[:, rows] = found["out"][0].swapaxes(0, 1), found["lse"][0]
    return {"out": out, "lse": lse}


def _varlen_back(gy, q, k, v, cu_q, cu_k, scale, window, p, cap):
    found = {"gq": np.zeros_like(q), "gk": np.zeros_like(k), "gv": np.zeros((*k.shape[:2], gy.shape[2]))}
    for rows, columns, offset in _each_sequence(cu_q, cu_k):
        parts = (_by_head(gy, rows), _by_head(q, rows), _by_head(k, columns), _by_head(v, columns))
        for name, g in _attention_back(*parts, None, scale, window, p, None, offset, cap).items():
            found[name][rows if name == "gq" else columns] = g[0].swapaxes(0, 1)
    return {} if p else found


# --- the fast ways


def attention_workspace(q_shape, k_shape, v_shape, dtype, backward):
    """Bytes of workspace: none, because tiles are in scratch; for backward of float16, one float32 per row."""
    return 4 * _prod(q_shape[:3]) if backward and is_half(dtype) else 0


def check_offsets(name, offsets, tokens, longest):
    """Check the offsets of sequences: they rise from 0 to the number of tokens, and no sequence is longer than the maximum."""
    found = offsets.tolist()
    if not found or found[0] != 0 or found[-1] != tokens:
        raise ShapeError(
            f"varlen_attn: {name} must begin with 0 and end with the number of tokens, {tokens}; found {_short(found)}"
        )
    lengths = [b - a for a, b in pairwise(found)]
    if min(lengths, default=0) < 0:
        raise ArgumentError(
            f"varlen_attn: {name} must not decrease: sequence n lasts from {name}[n] to {name}[n + 1]; found {_short(found)}"
        )
    if max(lengths, default=0) > longest:
        raise ArgumentError(
            f"varlen_attn: the longest sequence of {name} has {max(lengths)} tokens, more than max_{name[-1]}={longest}"
        )


def _short(values):
    return f"{values[:4]} ... {values[-2:]}" if len(values) > 8 else str(values)


def _mask_view(mask, heads):
    """(batch or 1, head or 1, row or 1, column or 1) by key head."""
    return mask[:, None] if mask is not None and mask.shape[1] == 1 else grouped(mask, heads)


def _job(q, k, v, mask, width, scale, window, offset, p, ticket, cap=None, first=0):
    heads = k.shape[1]
    return Job(grouped(q, heads), k, v, _mask_view(mask, heads), scale, window, offset, p, ticket, width, cap, first)


def _jobs(q, k, v, width, cu_q, cu_k, scale, window, p, ticket, cap):
    """(rows, columns, job) of each sequence with rows; its last row is at its last column."""
    first = 0
    for rows, columns, offset in _each_sequence(cu_q, cu_k):
        parts = (_by_head(q, rows), _by_head(k, columns), _by_head(v, columns))
        job = _job(*parts, None, width, scale, window, offset, p, ticket, cap, first)
        first += job.tiles()
        yield rows, columns, job


@formula(_attention)
def attention(q, k, v, mask, scale, window, p, ticket, work, out, lse):
    """out = softmax(q @ k.T * scale + mask) @ v; lse = the logarithms of the softmax's sums, inf where a row sees nothing.

    q (batch, head, row, E); k, v (batch, key head, column, E or Ev): key heads divide heads; mask (batch or 1, head or 1, row
    or 1, column or 1). Row i sees columns i - window[0] to i + window[1], ``None`` for all. p and ticket: dropout.
    """
    attention_forward.forward([(_job(q, k, v, mask, v.shape[3], scale, window, 0, p, ticket), out, lse)])


@formula(_varlen)
def varlen_attention(q, k, v, cu_q, cu_k, scale, window, p, ticket, cap, work, out, lse):
    """:func:`attention` of concatenated sequences: q, k, v, out (token, head, E), lse (head, token); rows cu_q[n] to
    cu_q[n + 1] see columns cu_k[n] to cu_k[n + 1], the last row of a sequence being at its last column. ``cap``, if not
    ``None``: scores become tanh(score / cap) * cap."""

    jobs = _jobs(q, k, v, v.shape[2], cu_q, cu_k, scale, window, p, ticket, cap)
    attention_forward.forward([(job, _by_head(out, rows), lse[None, :, rows]) for rows, _, job in jobs])


def _by_head(x, tokens):
    """(token, head, E) as (1, head, token, E), of these tokens; ``None`` stays."""
    return None if x is None else x[tokens].transpose(1, 0, 2)[None]


@formula(_attention_back)
def attention_backward(gy, q, k, v, mask, y, lse, scale, window, p, ticket, work, gq, gk, gv, gmask):
    """gq, gk, gv = the gradients; gmask += the mask's (batch or 1, head or 1, row, column), in the wide dtype.

    Those that are ``None`` are not wanted; v and y may be ``None`` where only gv is.
    """
    job, heads = _job(q, k, v, mask, gy.shape[3], scale, window, 0, p, ticket), k.shape[1]
    sums = _sums(work, y, lse)
    gy, y, lse, gq, sums = (grouped(g, heads) for g in (gy, y, lse, gq, sums))
    _backward.backward([_backward.Gradients(job, gy, y, lse, sums, gq, gk, gv, _mask_view(gmask, heads))])


@formula(_varlen_back)
def varlen_attention_backward(gy, q, k, v, cu_q, cu_k, y, lse, scale, window, p, ticket, cap, work, gq, gk, gv):
    """:func:`attention_backward` of concatenated sequences; what is in no sequence gets 0."""
    for g in (gq, gk, gv):
        if g is not None:
            g.fill(0)
    heads, inner, found = k.shape[1], _sums(work, y, lse), []
    for rows, columns, job in _jobs(q, k, v, gy.shape[2], cu_q, cu_k, scale, window, p, ticket, cap):
        grad, result, goal = (grouped(_by_head(x, rows), heads) for x in (gy, y, gq))
        sums, own = (grouped(None if x is None else x[None, :, rows], heads) for x in (lse, inner))
        to_key, to_value = _by_head(gk, columns), _by_head(gv, columns)
        found.append(_backward.Gradients(job, grad, result, sums, own, goal, to_key, to_value, None))
    _backward.backward(found)


def _sums(work, y, lse):
    """A place for sum(gy * y) of each row in half precision: of a rounded y it would be as far off as the gradient is."""
    return None if y is None or y.dtype == lse.dtype else work.view(lse.dtype)[: lse.size].reshape(lse.shape)
