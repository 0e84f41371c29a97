"""Values of images at places between their pixels."""

from ..errors import ShapeError
from .base import Op


class GridSample(Op):
    """x (N, C, *sizes) at the places grid (N, *outs, d): each a sum of the pixels around it.

    Saves grid, and x if grid needs a gradient.
    """

    saves = ("grid", "x")

    @staticmethod
    def forward(ctx, x, grid, *, mode, padding, align):
        if x.shape[0] != grid.shape[0] or grid.shape[-1] != x.ndim - 2:
            raise ShapeError(
                f"grid_sampler(): expected grid to have one place of {x.ndim - 2} numbers for outputs of {x.shape[0]} images, "
                f"but got input {list(x.shape)} and grid {list(grid.shape)}"
            )
        x, grid = ctx.contiguous(x), ctx.contiguous(grid)
        out = ctx.empty((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
        ctx.kernels.grid_sample(x, grid, mode, padding, align, out=out)
        ctx.options, ctx.shape = (mode, padding, align), x.shape
        ctx.save(grid=grid, x=x if ctx.needs[1] else None)
        return out

    @staticmethod
    def backward(ctx, gy):
        gy, gx, ggrid = ctx.contiguous(gy), None, None
        grid = ctx.take("grid")
        if ctx.needs[0]:
            gx = ctx.empty(ctx.shape, gy.dtype)
            work = ctx.workspace(ctx.kernels.grid_sample_input_workspace(ctx.shape, gy.dtype))
            ctx.kernels.grid_sample_input(gy, grid, *ctx.options, work, out=gx)
        if ctx.needs[1]:
            ggrid = ctx.empty(grid.shape, grid.dtype)
            ctx.kernels.grid_sample_grid(gy, ctx.take("x"), grid, *ctx.options, out=ggrid)
        return gx, ggrid
