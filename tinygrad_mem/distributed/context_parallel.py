"""Context parallel: each rank has some of the tokens, and keys and values go around in a ring."""

from __future__ import annotations

import math
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic
from ..errors import DTypeError, ShapeError
from ..functional.attention import scaled_dot_product_attention
from ..functional.door import LOWER, public
from ..ops.attention import _check, _laid_out_as, _readable
from ..ops.base import Array, Context, Op
from .buffers import buffer
from .group import ProcessGroup, Work
from .groups import own_group


class RingAttention(Op):
    """:class:`Attention` of this rank's queries over the keys of all ranks; rank r has the r-th part of both.

    A rank computes with its own block of keys and values, then with that of the rank before it, and so on; each block is sent
    to the next rank while it is used. The results of two blocks are joined by their lse, the logarithm of the sum of e**score.
    In backward the blocks go around again, each with its gradients, to which every rank adds. All ranks ask for the
    same memory, though with ``causal`` a rank skips the blocks behind its own.

    Half precision is computed in float32 copies of one block at a time.

    Saves q, k, v, y, and lse (``math.prod(y.shape[:3]) * max(4, y.itemsize)`` bytes), which are this rank's.

    Source: Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*, 2023.
    """

    saves = ("q", "k", "v", "y", "lse")

    @staticmethod
    def forward(ctx, q, k, v, *, group, causal, scale):
        _check(q, k, v, "ring_attention")
        ctx.group, ctx.causal, ctx.scale = group, causal, scale
        wide = arithmetic(q.dtype)
        rows = _wide(ctx, q, wide)
        y = _laid_out_as(ctx, rows, (*q.shape[:3], v.shape[3]))
        sums = ctx.empty((1, 2, math.prod(q.shape[:3])), wide)  # lse of the blocks so far, and of one more
        before, block = sums[0].reshape(2, *q.shape[:3])
        for step, here in _ring(ctx, _packed(ctx, k, v), group):
            keys, values = _unpacked(ctx.cast(here, wide), k, v)
            part = y if step == 0 else _laid_out_as(ctx, rows, y.shape)
            work = ctx.workspace(ctx.kernels.attention_workspace(q.shape, k.shape, v.shape, wide, False))
            if _seen(group, step, causal):
                options = (None, scale, _window(causal and step == 0), 0.0, (0, 0), work)
                ctx.kernels.attention(rows, keys, values, *options, part, before if step == 0 else block)
            del keys, values, here, work
            if step:
                _join(ctx, y, part, sums, _seen(group, step, causal))
            del part
        lse = ctx.copy(before)
        out = y if q.dtype == wide else ctx.copy(y, q.dtype)
        ctx.save(q=q, k=k, v=v, y=out, lse=lse)
        return out

    @staticmethod
    def backward(ctx, gy):
        q, k, v, y, lse = (ctx.take(name) for name in ("q", "k", "v", "y", "lse"))
        wide, group = lse.dtype, ctx.group
        seed, rows, result = (_wide(ctx, x, wide) for x in (gy, q, y))
        goal: Any = None
        travelling: Any = None  # the gradients of a block, from the ranks that have added to them
        for step, here in _ring(ctx, _packed(ctx, k, v), group):
            keys, values = _unpacked(ctx.cast(here, wide), k, v)
            own, gq = ctx.empty(here.shape, wide), _laid_out_as(ctx, rows, q.shape)
            work = ctx.workspace(ctx.kernels.attention_workspace(q.shape, k.shape, v.shape, wide, True))
            seen = _seen(group, step, ctx.causal)
            if seen:
                options = (None, result, lse, ctx.scale, _window(ctx.causal and step == 0), 0.0, (0, 0), work)
                ctx.kernels.attention_backward(seed, rows, keys, values, *options, gq, *_unpacked(own, k, v), None)
            else:
                ctx.kernels.fill(0, out=own)
            del keys, values, here, work
            if goal is None:
                goal = gq  # a rank sees its own block
            elif seen:
                ctx.kernels.add(goal, gq, out=goal)
            del gq
            travelling = _passed_on(ctx, group, travelling, own)
            del own
        gk, gv = _unpacked(_shifted(ctx, group, travelling), k, v)
        del travelling
        return tuple(g if g.dtype == q.dtype else ctx.copy(g, q.dtype) for g in (goal, gk, gv))


def _wide(ctx: Context, x: Array, wide: Any) -> Array:
    """``x`` in the wide dtype, where products can read its rows in place."""
    return _readable(ctx, x) if x.dtype == wide else ctx.copy(x, wide)


def _ring(ctx: Context, mine: Array, group: ProcessGroup) -> Any:
    """``(step, block)``: in step i the block of the rank i places before this one. Blocks are used while they are sent on."""
    here: Any = mine
    del mine
    for step in range(group.size()):
        work = coming = None
        if step < group.size() - 1:
            coming = buffer(ctx.device, here.shape, here.dtype)
            work = _shift(group, coming, here)
        yield step, here
        if work is not None:
            work.wait()
        here = coming


def _shift(group: ProcessGroup, out: Array, array: Array) -> Work:
    """Send ``array`` to the next rank, and get ``out`` from the one before."""
    sizes = [[0] * group.size() for _ in range(2)]
    sizes[0][(group._rank + 1) % group.size()] = array.size
    sizes[1][(group._rank - 1) % group.size()] = out.size
    return group.all_to_all(out, array, sizes[1], sizes[0])


def _shifted(ctx: Context, group: ProcessGroup, array: Array) -> Array:
    """The ``array`` of the rank before this one."""
    out = buffer(ctx.device, array.shape, array.dtype)
    _shift(group, out, array).wait()
    return out


def _passed_on(ctx: Context, group: ProcessGroup, travelling: Array | None, own: Array) -> Array:
    """The gradients of the block at hand: those that came from the rank before, and this rank's."""
    if travelling is None:
        return own
    total = _shifted(ctx, group, travelling)
    ctx.kernels.add(total, own, out=total)
    return total


def _seen(group: ProcessGroup, step: int, causal: bool) -> bool:
    """True if this rank's rows see the block of that step. It changes no memory, so a prediction need not know the rank."""
    return not causal or step <= group._rank


def _packed(ctx: Context, k: Array, v: Array) -> Array:
    """Keys and values as one contiguous line, to be sent."""
    out = buffer(ctx.device, (k.size + v.size,), k.dtype)
    for x, part in zip((k, v), _unpacked(out, k, v), strict=True):
        ctx.kernels.copy(x, out=part)
    return out


def _unpacked(line: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Views of a line as keys and values."""
    return line[: k.size].reshape(k.shape), line[k.size :].reshape(v.shape)


def _window(causal: bool) -> tuple[None, int | None]:
    return None, 0 if causal else None


def _join(ctx: Context, y: Array, part: Array, sums: Array, seen: bool) -> None:
    """y and its lse, the first of ``sums``, become those of both blocks: y += (part - y) * sigmoid(lse of part - lse of y)."""
    kernels, share = ctx.kernels, ctx.empty(sums.shape[2:], sums.dtype)
    if not seen:
        return
    before, block = sums[0]
    kernels.subtract(block, before, out=share)
    kernels.sigmoid(share, out=share)
    kernels.subtract(part, y, out=part)
    kernels.multiply(part, share.reshape(*y.shape[:3], 1), out=part)
    kernels.add(y, part, out=y)
    kernels.log_sum_exp(sums, share.reshape(1, share.size))
    kernels.copy(share, out=before)


@public(cpu=LOWER, cuda=LOWER)
def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, group: Any = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """``nn.functional.scaled_dot_product_attention`` of tokens that are divided over the ranks of a group, in order.

    query (N, heads, T, E), key and value (N, key heads, T, E or Ev): this rank's T tokens, as many on each rank
    -> (N, heads, T, Ev). Key heads divide heads. PyTorch has it as ``distributed.tensor.experimental.context_parallel``.

    Args:
        group: the ranks; by default all.
        is_causal: a token sees those before it, on this rank and on ranks before it. A later rank then has more to compute.
        scale: by default ``1 / sqrt(E)``.

    Saves: query, key, value, the output, and 4 bytes a row (8 of float64): of this rank's tokens.

    Memory: scores are never kept; besides this rank's tokens there are two blocks of keys and values at a time, and in backward
    two of their gradients. Half precision is computed in float32 copies of a block.

    Price: keys and values go to every rank in forward and in backward, and their gradients once.

    Do not use when: sequences are short: with more sequences than ranks, data parallel sends less.

    Raises:
        ArgumentError: this rank is not a member of the group.
        ShapeError: shapes that do not fit.
        DTypeError: different dtypes.
        DeviceError: a device that the group does not serve.
        RankError: the shapes differ between ranks.

    Source: Liu, Zaharia and Abbeel, *Ring Attention*, 2023.
    """
    found = own_group("ring_attention", group)
    if not query.ndim == key.ndim == value.ndim == 4 or key.shape[2] != value.shape[2] or query.shape[2] != key.shape[2]:
        raise ShapeError(
            "ring_attention: expected query (N, heads, T, E), key and value (N, key heads, T, ...) of the same tokens, found "
            f"{list(query.shape)}, {list(key.shape)}, {list(value.shape)}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise DTypeError(f"ring_attention: expected one dtype, found {query.dtype}, {key.dtype}, {value.dtype}: cast them")
    if found.size() == 1:
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=grouped)
    found.check_device("ring_attention", query)
    factor = 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    return apply(RingAttention, query, key, value, group=found, causal=bool(is_causal), scale=factor)
