"""Rearrangements that copy: none saves an array."""

import operator

from ..dtypes import fitting, result_type
from ..errors import ShapeError
from .base import Op


class Cat(Op):
    """Inputs concatenated along an axis. Saves nothing; the gradients are views of gy."""

    @staticmethod
    def forward(ctx, *xs, axis):
        first = next((x.shape for x in xs if x.shape != (0,)), (0,))
        for i, x in enumerate(xs):
            if x.shape == (0,):  # one without entries fits every shape, as in PyTorch
                continue
            if x.ndim != len(first) or any(n != m for a, (n, m) in enumerate(zip(x.shape, first, strict=True)) if a != axis):
                raise ShapeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size like {list(first)} but got size "
                    f"{list(x.shape)} for tensor number {i} in the list."
                )
        ctx.axis, ctx.sizes = axis, tuple(None if x.shape == (0,) else x.shape[axis] for x in xs)
        out = ctx.empty((*first[:axis], sum(n or 0 for n in ctx.sizes), *first[axis + 1 :]), result_type(*xs))
        for part, x in zip(_parts(out, ctx.axis, ctx.sizes), xs, strict=True):
            ctx.kernels.copy(x, out=part)
        return out

    @staticmethod
    def backward(ctx, gy):
        if sum(ctx.needs) == 1:  # alone, a view would keep all of gy alive: a copy of its part does not
            parts = _parts(gy, ctx.axis, ctx.sizes)
            only = ctx.needs.index(True)
            part = ctx.copy(parts[only])
            return tuple(part if i == only else None for i in range(len(parts)))
        return tuple(_parts(gy, ctx.axis, ctx.sizes))


def _parts(whole, axis, sizes):
    """Consecutive views of ``whole`` along ``axis``; for ``None`` an empty line."""
    parts, start = [], 0
    for size in sizes:
        if size is None:
            parts.append(whole[:0].reshape(-1))  # cut first: of a transposed gradient, reshape would copy
            continue
        parts.append(whole[(slice(None),) * axis + (slice(start, start + size),)])
        start += size
    return parts


class Flip(Op):
    """Axes in reverse order. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, axes):
        ctx.key = (
            ...,
            *(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim)),
        )  # ...: 0-d is an array too
        y = ctx.empty_like(x)
        ctx.kernels.copy(x[ctx.key], out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return gy[ctx.key]


class Triangle(Op):
    """The lower or upper triangle of the last two axes, 0 elsewhere. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, diagonal, lower):
        if x.ndim < 2:
            raise ShapeError(f"{'tril' if lower else 'triu'}: input tensor must have at least 2 dimensions, found {x.ndim}")
        diagonal = max(-x.shape[-2], min(operator.index(diagonal), x.shape[-1]))  # farther away it is the same
        ctx.where = (diagonal, lower)
        y = ctx.output_like(x)
        ctx.kernels.triangle(x, diagonal, lower, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.triangle(gy, *ctx.where, out=gx)
        return gx


class Pad(Op):
    """A constant around each axis, or a crop by negative amounts. Saves nothing; uncropped, the gradient is a view."""

    @staticmethod
    def forward(ctx, x, *, pairs, value):
        value = fitting(value, x.dtype)
        shape = tuple(n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True))
        ctx.shape = x.shape
        ctx.inner = tuple(slice(max(a, 0), n - max(b, 0)) for n, (a, b) in zip(shape, pairs, strict=True))
        ctx.outer = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs, strict=True))
        y = ctx.empty(shape, x.dtype)
        ctx.kernels.fill(value, out=y)
        ctx.kernels.copy(x[ctx.outer], out=y[ctx.inner])
        return y

    @staticmethod
    def backward(ctx, gy):
        part = gy[ctx.inner]
        if part.shape == ctx.shape:
            return part
        gx = ctx.zeros(ctx.shape, gy.dtype)
        ctx.kernels.copy(part, out=gx[ctx.outer])
        return gx
