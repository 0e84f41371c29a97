"""The way back through the steps of a recurrent layer, one direction of it."""

from __future__ import annotations

from typing import Any

from .recurrent_run import bias_row, cast, copied, fill, named, project


class Backward:
    """One direction's way back: its chunks from the last to the first."""

    def __init__(self, ctx, run, way, x, gy, gx, states):
        self.ctx, self.run, self.way, self.kind = ctx, run, way, run.kind
        self.x, self.gy, self.gx, self.grads = x, gy, gx, states
        self.w_ih, self.w_hh = self.saved("w_ih"), self.saved("w_hh")
        needs = ctx.needs[3 + 4 * way : 7 + 4 * way]
        self.needs = (*needs, *[False] * (4 - len(needs)))
        rows, width = ctx.saved[named("w_hh", way)].shape
        shapes = ((rows, run.x_shape[1]), (rows, width), (1, rows), (1, rows))
        self.made = [ctx.zeros(s, run.wide) if need else None for s, need in zip(shapes, self.needs, strict=True)]
        for chunk in reversed(run.order(way)):
            self.chunk(chunk)
        for name in ("gates", "cells"):
            if named(name, way) in ctx.saved:
                ctx.take(named(name, way))

    def saved(self, name):
        """A weight, in the dtype of the arithmetic; ``None`` where it was not saved."""
        array: Any = self.ctx.saved.get(named(name, self.way))
        return None if array is None else cast(self.ctx, array, self.run.wide)

    def weights(self):
        """The gradients of w_ih, w_hh, b_ih and b_hh, of those that are wanted."""
        return [*self.made[:2], *(None if b is None else b.reshape(b.shape[1]) for b in self.made[2:])]

    def chunk(self, chunk):
        ctx, run, kind = self.ctx, self.run, self.kind
        start, stop, sizes = run.chunks[chunk]
        gates = self.gates(chunk)
        before = ctx.empty((stop - start, run.width), run.wide)
        gy = None if self.gy is None else rows_of(ctx, run.half(self.gy, self.way)[start:stop], run.wide)
        kind.steps_backward(ctx.kernels, gates, self.w_hh, sizes, bool(self.way), self, chunk, before, gy)
        del gy
        self.accumulate(gates, before, start, stop)

    def gates(self, chunk):
        """The gates of a chunk in a buffer that may be written: as they were saved, or made again."""
        ctx, run, kind = self.ctx, self.run, self.kind
        start, stop, sizes = run.chunks[chunk]
        saved = ctx.saved.get(named("gates", self.way))
        if saved is not None and saved.dtype == run.wide and not (ctx.keeps_graph or ctx.packed):
            return saved[start:stop]
        part = ctx.empty((stop - start, run.columns), run.wide)
        if saved is not None:
            ctx.kernels.copy(saved[start:stop], out=part)
        elif not kind.keeps:
            ctx.kernels.copy(run.half(ctx.saved["y"], self.way)[start:stop], out=part)
        else:
            weights = [self.w_ih, self.w_hh, *(self.saved(name) for name in ("b_ih", "b_hh"))]
            project(ctx, run, cast(ctx, self.x[start:stop], run.wide), self.w_ih, bias_row(ctx, run, weights), part)
            states = [self.state(chunk), *([self.cell(chunk)] if kind.cell else [])]
            kind.steps(ctx.kernels, part, self.w_hh, sizes, bool(self.way), states, None, run)
        return part

    def state(self, chunk):
        """A copy of the state before a chunk: the output of the step before it, what the layer began with, or 0."""
        ctx, run = self.ctx, self.run
        state = ctx.empty(run.states, run.wide)
        h0 = ctx.saved.get("h0")
        fill(ctx, None if h0 is None else h0[self.way], state)
        count, (start, stop, _) = run.edges[self.way][chunk], run.chunks[chunk]
        if count:
            y = run.half(ctx.saved["y"], self.way)
            first = stop if self.way else start - count
            ctx.kernels.copy(y[first : first + count], out=state[:count])
        return state

    def cell(self, chunk):
        """A copy of the cell before a chunk."""
        return copied(self.ctx, self.ctx.saved[named("cells", self.way)][chunk])

    def fill_previous(self, chunk, before):
        """before = the state before each row's step."""
        start, stop, sizes = self.run.chunks[chunk]
        y = self.run.half(self.ctx.saved["y"], self.way)[start:stop]
        self.ctx.kernels.previous_states(y, sizes, bool(self.way), self.state(chunk), out=before)

    def accumulate(self, gates, before, start, stop):
        """Add what a chunk's gates give to the gradients of the weights; write that of its inputs."""
        ctx, run, kind, kernels = self.ctx, self.run, self.kind, self.ctx.kernels
        w_ih, w_hh, b_ih, b_hh = self.made
        state = run.block(gates, kind.state, kind.blocks)
        if w_hh is not None:
            kernels.add_product(state.T, before, out=w_hh)
        if b_hh is not None:
            self.add_rows(state, b_hh)
        del before
        if w_ih is not None or b_ih is not None:
            x = cast(ctx, self.x[start:stop], run.wide) if w_ih is not None else None
            for first, last, row in kind.inputs:
                part, rows = run.block(gates, first, last), slice(row * run.width, (row + last - first) * run.width)
                if w_ih is not None:
                    kernels.add_product(part.T, x, out=w_ih[rows])
                if b_ih is not None:
                    self.add_rows(part, b_ih[:, rows])
        if self.gx is not None:
            self.input(gates, self.gx[start:stop])

    def add_rows(self, rows, out):
        total = self.ctx.empty((1, rows.shape[1]), self.run.wide)
        self.ctx.kernels.sum(rows, (0,), out=total)
        self.ctx.kernels.add(out, total, out=out)

    def input(self, gates, gx):
        """The gradient of a chunk's inputs, added to that of the other direction."""
        run, kernels, w_ih = self.run, self.ctx.kernels, self.w_ih
        assert w_ih is not None
        direct = gx.dtype == run.wide
        target = gx if direct else self.ctx.empty(gx.shape, run.wide)
        add = self.way > 0
        if add and not direct:
            kernels.copy(gx, out=target)
        for first, last, row in run.kind.inputs:
            part, rows = run.block(gates, first, last), w_ih[row * run.width : (row + last - first) * run.width]
            if add:
                kernels.add_product(part, rows, out=target)
            else:
                kernels.matmul(part, rows, None, out=target)
            add = True
        if not direct:
            kernels.copy(target, out=gx)


def rows_of(ctx, x, dtype):
    """``x`` where its rows are contiguous and of the dtype, else a copy."""
    return x if x.dtype == dtype and x.strides[1] == x.itemsize else copied(ctx, x, dtype)
