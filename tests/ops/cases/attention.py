"""Attention: the inputs, the result and one number a row are kept, whatever the options."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from tests.case import OpCase
from tinygrad_mem.functional import attention as ours

_T = torch.nn.functional.scaled_dot_product_attention


def _inputs(q, k, v, mask=None):
    def make(rng):
        made = [rng.standard_normal(s) for s in (q, k, v)]
        if mask == "bool":
            made.append(rng.random((q[-2], k[-2])) > 0.3)
        elif mask is not None:
            made.append(rng.standard_normal(mask))
        return made

    return make


def _saved(q, k, v, *rest):
    *mask, y = rest
    lse = q.size // q.shape[-1] * max(4, q.itemsize)
    return q.nbytes + k.nbytes + v.nbytes + y.nbytes + lse + sum(m.nbytes for m in mask)


def _row(name, q, k, v, mask=None, **options):
    return OpCase(
        name,
        "Attention",
        lambda *x: ours.scaled_dot_product_attention(*x, **options),
        lambda *x: _T(*x, **options),
        _inputs(q, k, v, mask),
        _saved,
    )


_Q, _K, _V = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)
_CU = np.array([0, 3, 3, 8])


def _packed(q, k, v):
    cu = q.new_tensor(_CU, dtype=torch.int64).tolist()
    parts = [_T(*(x[a:b].transpose(0, 1) for x in (q, k, v)), is_causal=True).transpose(0, 1) for a, b in pairwise(cu) if b > a]
    return torch.cat(parts)


def _packed_and_capped(q, k, v):
    """Scores between -0.7 and 0.7, written out."""
    found = []
    for a, b in pairwise(_CU.tolist()):
        queries, keys, values = (x[a:b].transpose(0, 1) for x in (q, k, v))
        scores = torch.tanh(queries @ keys.mT / 2 / 0.7) * 0.7
        hidden = torch.ones(b - a, b - a, dtype=torch.bool, device=q.device).triu(1)
        found.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1))
    return torch.cat(found)


def _varlen(q, k, v, softcap=None):
    import tinygrad_mem as tm

    cu = tm.tensor(_CU, device=q.device)
    return ours.varlen_attn(q, k, v, cu, cu, 5, 5, window_size=(-1, 0), softcap=softcap)


def _sequences(name, run, reference):
    return OpCase(
        name,
        "VarlenAttention",
        run,
        reference,
        lambda rng: [rng.standard_normal((8, 3, 4)) for _ in range(3)],
        lambda q, k, v, y: q.nbytes + k.nbytes + v.nbytes + y.nbytes + q.shape[0] * q.shape[1] * 8 + _CU.nbytes,
    )


def _self(x, mask):
    return ours._attend_itself(x, mask, 0.0, False)


CASES = [
    OpCase(
        "attention of one projection",
        "SelfAttention",
        _self,
        lambda x, mask: _T(x[:, 0], x[:, 1], x[:, 2], mask),
        lambda rng: [rng.standard_normal((2, 3, 4, 6, 5)), rng.random((2, 1, 6, 6)) > 0.2],
        lambda x, mask, y: x.nbytes + mask.nbytes + y.nbytes + y.size // 5 * 8,
    ),
    _row("attention", _Q, _K, _V),
    _row("causal attention", _Q, _K, _V, is_causal=True),
    _row("attention with a mask", _Q, _K, _V, "bool"),
    _row("attention with a bias", _Q, _K, _V, (2, 1, 5, 7), scale=0.3),
    _row("attention of groups", (2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), enable_gqa=True),
    _row("attention without heads", (6, 5, 4), (6, 7, 4), (6, 7, 4)),
    _row("attention in tiles", (1, 2, 150, 4), (1, 2, 600, 4), (1, 2, 600, 6), is_causal=True),
    _sequences("attention of sequences", _varlen, _packed),
    _sequences("attention of sequences with bounded scores", lambda *x: _varlen(*x, softcap=0.7), _packed_and_capped),
    OpCase(
        "attention with dropout",
        "Attention",
        lambda *x: ours.scaled_dot_product_attention(*x, dropout_p=0.4),
        lambda *x: _T(*x, dropout_p=0.4),
        _inputs(_Q, _K, _V),
        _saved,
        exact=False,
    ),
]
