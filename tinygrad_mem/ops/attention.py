"""Attention without the matrix of scores: two ops, of a batch and of concatenated sequences.

Both save the inputs, from which the scores are computed again, and one number per row. Results and gradients have the memory
order of the inputs that they belong to (heads before or after tokens), so the next op needs no copy: the projection after
attention saves the same memory as attention does.
"""

from ..dtypes import arithmetic, is_floating
from ..errors import DTypeError, ShapeError
from .base import Op

MOST = 8192  # numbers per head: what the kernels' tiles are made for


def _readable(ctx, x):
    """``x`` where products can read its rows in place, else a copy."""
    size = x.itemsize
    rows = x.shape[-2] < 2 or x.strides[-2] >= size * x.shape[-1]
    if x.size == 0 or ((x.strides[-1] == size or x.shape[-1] == 1) and rows):
        return x
    return ctx.contiguous(x)


def _laid_out_as(ctx, x, shape):
    """An uninitialised buffer of ``shape`` whose axes, except the last, have the memory order of ``x``'s."""
    order = [*sorted(range(x.ndim - 1), key=lambda axis: -x.strides[axis]), x.ndim - 1]
    out = ctx.empty(tuple(shape[axis] for axis in order), x.dtype)
    return out if order == list(range(x.ndim)) else out.transpose([order.index(axis) for axis in range(x.ndim)])


def _check(q, k, v, name):
    """Raise for dtypes or sizes that do not fit, or heads that cannot be shared evenly; heads are axis 1."""
    if not q.dtype == k.dtype == v.dtype:
        raise DTypeError(
            f"{name}: Expected query, key, and value to have the same dtype, but got query.dtype: {q.dtype} "
            f"key.dtype: {k.dtype} and value.dtype: {v.dtype} instead."
        )
    if not is_floating(q.dtype):
        raise DTypeError(f"{name}: expected floating query, key and value, found {q.dtype}; cast them")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"{name}: heads of query and key must have one size, found {q.shape[-1]} and {k.shape[-1]}: {_shapes(q, k, v)}"
        )
    if max(q.shape[-1], v.shape[-1]) > MOST:
        raise ShapeError(f"{name}: {MOST} numbers a head at most, found {_shapes(q, k, v)}; use softmax(q @ k.mT) @ v")
    if k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1):
        raise ShapeError(f"{name}: key and value must have the same number of heads, a divisor of query's: {_shapes(q, k, v)}")


def _shapes(q, k, v):
    return f"query {list(q.shape)}, key {list(k.shape)}, value {list(v.shape)}"


def _workspace(ctx, q_shape, k_shape, v_shape, dtype, backward):
    return ctx.workspace(ctx.kernels.attention_workspace(q_shape, k_shape, v_shape, dtype, backward))


def _keep(ctx, q, k, v, y, lse, **others):
    """Save what the needed gradients require; those of the scores require v and y."""
    ctx.save(q=q, k=k, lse=lse, **others)
    if ctx.scored:
        ctx.save(v=v, y=y)


class Attention(Op):
    """softmax(q @ k.T * scale + mask) @ v, of q (B, heads, L, E), k (B, key heads, S, E), v (B, key heads, S, Ev).

    ``window``: how many columns before and after its own each row sees, ``None`` for all; the first row is at the first column.
    ``p``: dropout of the softmax, whose mask the ticket gives again. Neither the scores nor the softmax are kept: backward
    computes them again, tile by tile.

    Saves q, k, mask if given, lse (``math.prod(y.shape[:3]) * max(4, y.itemsize)`` bytes), v if
    ``needs["q"] or needs["k"] or needs["mask"]``, and y if ``needs["q"] or needs["k"] or needs["mask"]``; lse is the logarithm
    of the sum of e**score, a number per row.

    Source: Dao, *FlashAttention-2*, 2023; Rabe and Staats, *Self-attention does not need O(n^2) memory*, 2021.
    """

    saves = ("q", "k", "v", "mask", "y", "lse")

    @staticmethod
    def forward(ctx, q, k, v, mask, *, scale, window, p, ticket):
        _check(q, k, v, "scaled_dot_product_attention")
        ctx.settings = (scale, window, p, ticket)
        ctx.scored = ctx.needs[0] or ctx.needs[1] or ctx.needs[3]
        ctx.value_shape = v.shape
        batch, heads, rows, _ = q.shape
        y = _laid_out_as(ctx, q, (batch, heads, rows, v.shape[3]))
        lse = ctx.empty((batch, heads, rows), arithmetic(q.dtype))
        _keep(ctx, q, k, v, y, lse, mask=mask)
        if y.size == 0:
            return y
        parts = [_readable(ctx, x) for x in (q, k, v)]
        ctx.kernels.attention(*parts, mask, *ctx.settings, _workspace(ctx, q.shape, k.shape, v.shape, q.dtype, False), y, lse)
        return y

    @staticmethod
    def backward(ctx, gy):
        q, k, lse = ctx.take("q"), ctx.take("k"), ctx.take("lse")
        v, y = ctx.take("v"), ctx.take("y")
        gq, gk = (_laid_out_as(ctx, x, x.shape) if need else None for x, need in zip((q, k), ctx.needs, strict=False))
        gv = _laid_out_as(ctx, k if v is None else v, ctx.value_shape) if ctx.needs[2] else None
        mask = ctx.take("mask")
        gmask = ctx.zeros((*mask.shape[:2], q.shape[2], k.shape[2]), lse.dtype) if ctx.needs[3] else None
        parts = [x if x is None else _readable(ctx, x) for x in (gy, q, k, v)]
        if gy.size == 0:
            for g in (gq, gk, gv):
                if g is not None:
                    ctx.kernels.fill(0, out=g)
            return gq, gk, gv, gmask
        work = _workspace(ctx, q.shape, k.shape, ctx.value_shape, q.dtype, True)
        ctx.kernels.attention_backward(*parts, mask, y, lse, *ctx.settings, work, gq, gk, gv, gmask)
        return gq, gk, gv, gmask


class SelfAttention(Op):
    """:class:`Attention` of x (B, 3, heads, L, E), which is query, key and value: one projection made them, with one gradient.

    Saves x, y, mask if given, and lse (``math.prod(y.shape[:3]) * max(4, y.itemsize)`` bytes).
    """

    saves = ("x", "mask", "y", "lse")

    @staticmethod
    def forward(ctx, x, mask, *, scale, window, p, ticket):
        batch, _, heads, rows, depth = x.shape
        if not is_floating(x.dtype) or depth > MOST:
            raise ShapeError(f"attention: floating numbers, {MOST} a head at most, found {x.dtype} {list(x.shape)}")
        ctx.settings = (scale, window, p, ticket)
        shape = (batch, heads, rows, depth)
        y, lse = _laid_out_as(ctx, x[:, 0], shape), ctx.empty(shape[:3], arithmetic(x.dtype))
        ctx.save(x=x, y=y, lse=lse, mask=mask)
        if y.size:
            parts = _thirds(_readable(ctx, x))
            ctx.kernels.attention(*parts, mask, *ctx.settings, _workspace(ctx, shape, shape, shape, x.dtype, False), y, lse)
        return y

    @staticmethod
    def backward(ctx, gy):
        x, y, lse, mask = (ctx.take(name) for name in ("x", "y", "lse", "mask"))
        gx = _laid_out_as(ctx, x, x.shape)
        if gy.size:
            work, parts = _workspace(ctx, y.shape, y.shape, y.shape, x.dtype, True), _thirds(_readable(ctx, x))
            grads = (*_thirds(gx), None)
            ctx.kernels.attention_backward(_readable(ctx, gy), *parts, mask, y, lse, *ctx.settings, work, *grads)
        return gx, None


def _thirds(x):
    return x[:, 0], x[:, 1], x[:, 2]


class VarlenAttention(Op):
    """:class:`Attention` of concatenated sequences: q (T, heads, E), k (S, key heads, E), v (S, key heads, Ev).

    ``cu_q`` and ``cu_k``, int32, say where the sequences begin, and where the last ends. The last row of a sequence is at its
    last column. Nothing is padded: a sequence of n tokens costs n rows of memory, and its own n * n scores of time. ``cap``, if
    not ``None``: scores become tanh(score / cap) * cap before they are hidden.

    Saves q, k, cu_q, cu_k, lse (``math.prod(y.shape[:2]) * max(4, y.itemsize)`` bytes), v if ``needs["q"] or needs["k"]``, and
    y if ``needs["q"] or needs["k"]``.

    Source: Dao, *FlashAttention-2*, 2023.
    """

    saves = ("q", "k", "v", "cu_q", "cu_k", "y", "lse")

    @staticmethod
    def forward(ctx, q, k, v, cu_q, cu_k, *, longest, scale, window, p, ticket, cap):
        _check(q, k, v, "varlen_attn")
        ctx.settings = (scale, window, p, ticket, cap)
        ctx.longest, ctx.value_shape = longest, v.shape
        ctx.scored = ctx.needs[0] or ctx.needs[1]
        for name, cu, x, most in (("cu_seq_q", cu_q, q, longest[0]), ("cu_seq_k", cu_k, k, longest[1])):
            ctx.kernels.check_offsets(name, cu, x.shape[0], most)
        y = ctx.empty((*q.shape[:2], v.shape[2]), q.dtype)
        lse = ctx.empty((q.shape[1], q.shape[0]), arithmetic(q.dtype))
        _keep(ctx, q, k, v, y, lse, cu_q=cu_q, cu_k=cu_k)
        if y.size:
            parts = [_readable(ctx, x) for x in (q, k, v)]
            work = _workspace(ctx, *_one_sequence(q, k, v.shape, longest), q.dtype, False)
            ctx.kernels.varlen_attention(*parts, cu_q, cu_k, *ctx.settings, work, y, lse)
        return y

    @staticmethod
    def backward(ctx, gy):
        q, k, lse, cu_q, cu_k = (ctx.take(name) for name in ("q", "k", "lse", "cu_q", "cu_k"))
        v, y = ctx.take("v"), ctx.take("y")
        shapes = (q.shape, k.shape, ctx.value_shape)
        grads = [ctx.empty(shape, q.dtype) if need else None for shape, need in zip(shapes, ctx.needs, strict=False)]
        if gy.size == 0:
            for g in grads:
                if g is not None:
                    ctx.kernels.fill(0, out=g)
            return (*grads, None, None)
        parts = [x if x is None else _readable(ctx, x) for x in (gy, q, k, v)]
        work = _workspace(ctx, *_one_sequence(q, k, ctx.value_shape, ctx.longest), q.dtype, True)
        ctx.kernels.varlen_attention_backward(*parts, cu_q, cu_k, y, lse, *ctx.settings, work, *grads)
        return (*grads, None, None)


def _one_sequence(q, k, v_shape, longest):
    """The shapes of attention over the longest of the sequences, as many of it as have all rows: the largest workspace."""
    (rows, columns), heads = longest, k.shape[1]
    return (
        (-(-q.shape[0] // max(rows, 1)), q.shape[1], rows, q.shape[2]),
        (1, heads, columns, k.shape[2]),
        (1, heads, columns, v_shape[2]),
    )
