"""Backward through the steps of one direction of a recurrent layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from .recurrent_run import bias_row, fill, named, project


class Backward:
    """Backward of one direction: its chunks from the last to the first."""

    def __init__(self, ctx, run, way, x, gy, gx, states):
        self.ctx, self.run, self.way, self.kind = ctx, run, way, run.kind
        self.x, self.gy, self.gx, self.grads = x, gy, gx, states
        self.w_ih, self.w_hh = self.saved("w_ih"), self.saved("w_hh")
        needs = ctx.needs[3 + 4 * way : 7 + 4 * way]
        self.needs = (*needs, *[False] * (4 - len(needs)))
        rows, width = ctx.saved[named("w_hh", way)].shape
        shapes = ((rows, run.x_shape[1]), (rows, width), (rows,), (rows,))
        self.made = [ctx.zeros(s, run.wide) if need else None for s, need in zip(shapes, self.needs, strict=True)]
        gates = ctx.saved.get(named("gates", way))
        self.in_place = gates is not None and gates.dtype == run.wide and not (ctx.keeps_graph or ctx.packed)
        self.later = ctx.kernels.beside(run.numbers)
        try:
            for number, chunk in enumerate(reversed(run.order(way))):
                self.chunk(chunk, first=not number)
        finally:
            ctx.kernels.finish(self.later)
        for name in ("gates", "cells"):
            ctx.take(named(name, way))

    def saved(self, name):
        """A weight, in the dtype of the arithmetic; ``None`` where it was not saved."""
        return self.ctx.cast(self.ctx.saved.get(named(name, self.way)), self.run.wide)

    def weights(self):
        """The gradients of w_ih, w_hh, b_ih and b_hh, or of those that are needed."""
        return self.made

    def chunk(self, chunk, first):
        """One thread goes back through the steps while another adds up what the last chunks give, if that takes no memory.

        The other has nothing to do until the first steps are done, so the first chunk is divided.
        """
        ctx, run, kind, kernels = self.ctx, self.run, self.kind, self.ctx.kernels
        start, stop, sizes = run.chunks[chunk]
        gates, inside = self.gates(chunk), self.inside(chunk)
        before = ctx.empty((stop - start, run.width), run.wide) if kind.cell or inside is None else inside
        gy = None if self.gy is None else rows_of(ctx, run.direction(self.gy, self.way)[start:stop], run.wide)
        if kind.reads_previous and inside is None:
            self.fill_previous(chunk, before)
        if kind.cell:
            kernels.lstm_cells(gates, sizes, bool(self.way), self.cell(chunk), out=before)
        y = ctx.saved.get("y")
        y = None if y is None or y.dtype != run.wide else run.direction(y, self.way)[start:stop]
        parts = self.halves(sizes) if first and inside is not None and run.dtype == run.wide else [(0, stop - start, sizes)]
        given = [tuple([None if each is None else each[i:j] for each in (y, gy)]) for i, j, _ in parts]
        del gy
        for i, j, some in parts:
            own = (gates[i:j], self.w_hh, some, bool(self.way), run, before[i:j])
            kind.steps_backward(kernels, *own, *given.pop(0), self.grads)
            if inside is None and self.needs[1] and not kind.reads_previous:
                self.fill_previous(chunk, before)
            tasks = self.tasks(gates[i:j], (before if inside is None else inside)[i:j], start + i, start + j)
            if run.dtype == run.wide:
                kernels.hand_over(self.later, tasks)
            else:  # the tasks take memory, and only this thread may
                for task, rows in tasks:
                    task(0, rows)
        if inside is None or not self.in_place:  # the next chunk has these buffers
            kernels.finish(self.later)

    def halves(self, sizes):
        """(first row, last row, sizes of the steps) of the two halves of a chunk, in the order of backward."""
        half = len(sizes) // 2
        cut, rows = sum(sizes[:half]), sum(sizes)
        found = [(0, cut, sizes[:half]), (cut, rows, sizes[half:])]
        return [each for each in (found if self.way else found[::-1]) if each[2]]

    def inside(self, chunk):
        """The states before each row's step, if they are contiguous in the output; else ``None``."""
        run, (start, stop, _) = self.run, self.run.chunks[chunk]
        y = self.ctx.saved.get("y")
        count = run.edges[self.way][chunk]
        if y is None or y.dtype != run.wide or not (run.whole and count) or (self.kind.reads_previous and run.ways > 1):
            return None
        shift = count if self.way else -count
        return run.direction(y, self.way)[start + shift : stop + shift]

    def gates(self, chunk):
        """The gates of a chunk in a buffer that may be written: as they were saved, or made again."""
        ctx, run, kind = self.ctx, self.run, self.kind
        start, stop, sizes = run.chunks[chunk]
        saved: Any = ctx.saved.get(named("gates", self.way))
        if self.in_place:
            return saved[start:stop]
        part = ctx.empty((stop - start, run.columns), run.wide)
        if saved is not None:
            ctx.kernels.copy(saved[start:stop], out=part)
        elif not kind.keeps:
            ctx.kernels.copy(run.direction(ctx.saved["y"], self.way)[start:stop], out=part)
        else:
            weights = [self.w_ih, self.w_hh, *(self.saved(name) for name in ("b_ih", "b_hh"))]
            x = ctx.cast(self.x[start:stop], run.wide)
            project(ctx, run, x, self.w_ih, bias_row(ctx, run, weights), part, 0, len(x))
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
            y = run.direction(ctx.saved["y"], self.way)
            first = stop if self.way else start - count
            ctx.kernels.copy(y[first : first + count], out=state[:count])
        return state

    def cell(self, chunk):
        """A copy of the cell before a chunk."""
        return self.ctx.copy(self.ctx.saved[named("cells", self.way)][chunk])

    def fill_previous(self, chunk, before):
        """before = the state before each row's step."""
        start, stop, sizes = self.run.chunks[chunk]
        y = self.run.direction(self.ctx.saved["y"], self.way)[start:stop]
        self.ctx.kernels.previous_states(y, sizes, bool(self.way), self.state(chunk), out=before)

    def tasks(self, gates, before, start, stop):
        """Tasks that add a chunk's gates to the weights' gradients and write that of its inputs, for ``hand_over``."""
        run, kind, kernels = self.run, self.kind, self.ctx.kernels
        w_ih, w_hh, b_ih, b_hh = self.made
        state, found = run.block(gates, kind.state, kind.blocks), []
        if w_hh is not None:
            found.append((partial(_add_rows, kernels, state, before, w_hh), len(w_hh)))
        if b_hh is not None:
            found.append((partial(_add_sums, kernels, state, b_hh), len(b_hh)))
        x = None if w_ih is None else self.ctx.cast(self.x[start:stop], run.wide)
        for first, last, row in kind.inputs:
            part, rows = run.block(gates, first, last), slice(row * run.width, (row + last - first) * run.width)
            if w_ih is not None:
                found.append((partial(_add_rows, kernels, part, x, w_ih[rows]), part.shape[1]))
            if b_ih is not None:
                found.append((partial(_add_sums, kernels, part, b_ih[rows]), part.shape[1]))
        if self.gx is not None:
            found.append((partial(self.input, gates, self.gx[start:stop]), stop - start))
        return found

    def input(self, gates, gx, first, last):
        """The gradient of some of a chunk's inputs, added to that of the other direction."""
        run, kernels, w_ih = self.run, self.ctx.kernels, self.w_ih
        gates, gx = gates[first:last], gx[first:last]
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


def _add_rows(kernels, gates, before, out, first, last):
    """Some rows of a weight's gradient += gates.T @ what the weight was multiplied by."""
    kernels.add_product(gates[:, first:last].T, before, out=out[first:last])


def _add_sums(kernels, gates, out, first, last):
    """Some of a bias's gradient += the sums of gates."""
    kernels.add_sum(gates[:, first:last], out=out[first:last])


def rows_of(ctx, x, dtype):
    """``x`` where its rows are contiguous and of the dtype, else a copy."""
    return x if x.dtype == dtype and x.strides[1] == x.itemsize else ctx.copy(x, dtype)
