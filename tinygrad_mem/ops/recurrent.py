"""Recurrent layers: one node for all time steps of a layer, both directions of it.

Rows are packed as :class:`~tinygrad_mem.nn.utils.rnn.PackedSequence` packs them: all sequences' first steps, then all second
steps, so there are no steps beyond a sequence's end. If all sequences have the same length, that is a contiguous (T, N, ...).

Steps go in chunks of 512 rows. For a chunk there is one product with the input, a recurrent product for each step, and one
product for its share of the weights' gradients. Beside what is kept, backward needs the workspace of one chunk. While one
thread goes through the steps of a chunk, another computes the large products of the next chunk, or of earlier ones.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import ClassVar

from ..errors import DTypeError, ShapeError
from .base import Op, want_floating
from .recurrent_backward import Backward
from .recurrent_run import RecurrentSteps, bias_row, fill, named, project


class Recurrent(Op):
    """The base of the three kinds. Subclasses say how a step's columns come from the weights, and call their kernels.

    Attributes:
        blocks: how many times H columns a row of gates has.
        inputs: (first column, last column, first row of w_ih) in blocks: what the input's product is written to.
        state: the first column of what the state's product is added to, up to the last one, in blocks.
    """

    blocks: ClassVar[int]
    inputs: ClassVar[tuple]
    state: ClassVar[int] = 0
    keeps: ClassVar[bool] = True  # its gates, for backward
    cell: ClassVar[bool] = False  # whether there is a second state
    reads_previous: ClassVar[bool] = False  # whether its steps' backward reads the states before them

    @classmethod
    def forward(
        cls,
        ctx,
        x,
        h0,
        c0,
        w_ih,
        w_hh,
        b_ih,
        b_hh,
        w_ih_reverse=None,
        w_hh_reverse=None,
        b_ih_reverse=None,
        b_hh_reverse=None,
        *,
        sizes,
        steps,
        remake=False,
        relu=False,
    ):
        ways = [(w_ih, w_hh, b_ih, b_hh), (w_ih_reverse, w_hh_reverse, b_ih_reverse, b_hh_reverse)]
        ways = ways[: 1 if w_hh_reverse is None else 2]
        _check(cls, x, h0, c0, ways, sizes)
        run = ctx.run = RecurrentSteps(cls, x.shape, w_hh.shape[1], len(ways), sizes, steps, x.dtype, relu)
        y = ctx.empty((len(x), run.width * len(ways)), x.dtype)
        records = any(ctx.needs)
        kept, last = {}, []
        for way, weights in enumerate(ways):
            gates = ctx.empty((len(x), run.columns), x.dtype) if cls.keeps and records and not remake else None
            cells = ctx.empty((len(run.chunks), *run.states), run.wide) if cls.cell and records else None
            last.append(_direction(ctx, run, way, x, (h0, c0), weights, gates, cells, y))
            kept.update({named("gates", way): gates, named("cells", way): cells})
        if records:
            _keep(ctx, cls, x, h0, y, ways, kept, remake)
        return (y, *(_stacked(ctx, run, states) for states in zip(*last, strict=True)))

    @classmethod
    def backward(cls, ctx, gy, *last):
        run = ctx.run
        needs, saved = ctx.needs, ctx.saved
        x = ctx.contiguous(saved["x"]) if "x" in saved else None
        gx = ctx.empty(run.x_shape, run.dtype) if needs[0] else None
        grads = [ctx.empty((run.ways, *run.states), run.wide) for _ in range(1 + cls.cell)]  # of the states
        result = [gx, grads[0] if needs[1] else None, grads[1] if cls.cell and needs[2] else None]
        for way in range(run.ways):
            for part, grad in zip(grads, last, strict=True):
                fill(ctx, None if grad is None else grad[way], part[way])
            result += Backward(ctx, run, way, x, gy, gx, [part[way] for part in grads]).weights()
        return tuple(result[: len(needs)])


def _both(*names):
    """The names in both directions."""
    return tuple(named(name, way) for name in names for way in range(2))


def _check(cls, x, h0, c0, ways, sizes):
    width = ways[0][1].shape[1]
    if x.ndim != 2 or len(x) != sum(sizes):
        raise ShapeError(f"{cls.__name__}: expected {sum(sizes)} packed rows, found x of {list(x.shape)}")
    for w_ih, w_hh, b_ih, b_hh in ways:
        if x.shape[1] != w_ih.shape[1]:
            raise ShapeError(
                f"input.size(-1) must be equal to input_size. Expected {w_ih.shape[1]}, got {x.shape[1]} ({cls.__name__})"
            )
        if len(w_hh) % width or w_hh.shape != (len(w_ih), width):
            raise ShapeError(f"{cls.__name__}: weights of {list(w_ih.shape)} and {list(w_hh.shape)} do not fit each other")
        for b in (b_ih, b_hh):
            if b is not None and b.shape != (len(w_ih),):
                raise ShapeError(f"{cls.__name__}: a bias of {list(b.shape)} does not fit weights of {list(w_ih.shape)}")
        found = {a.dtype for a in (h0, c0, w_ih, w_hh, b_ih, b_hh) if a is not None} - {x.dtype}
        if found:
            raise DTypeError(
                f"{cls.__name__}: input and parameters must have the same dtype, found an input of {x.dtype} and "
                f"{', '.join(map(str, sorted(found, key=str)))}; cast the input or the layer with to()"
            )
    want_floating(cls.__name__, x)
    for state, name in ((h0, "hidden"), (c0, "cell")):
        if state is not None and state.shape != (len(ways), sizes[0], width):
            raise ShapeError(
                f"{cls.__name__}: expected {name} state of {[len(ways), sizes[0], width]}, got {list(state.shape)}"
            )


def _direction(ctx, run, way, x, first, weights, gates, cells, y):
    """One direction's chunks, in its order; its last states."""
    kind, kernels = run.kind, ctx.kernels
    x = ctx.contiguous(x)
    w_ih, w_hh = (ctx.cast(w, run.wide) for w in weights[:2])
    bias = bias_row(ctx, run, weights)
    states = [ctx.empty(run.states, run.wide) for _ in range(1 + kind.cell)]
    for given, state in zip(first, states, strict=False):
        fill(ctx, None if given is None else given[way], state)
    direct = run.dtype == run.wide
    target = gates if kind.keeps else y  # where gates are made, if that is in the dtype of the arithmetic
    work = None if direct and target is not None else ctx.empty((run.most, run.columns), run.wide)

    def place(chunk):
        start, stop, _ = run.chunks[chunk]
        return (run.direction(y, way) if gates is None else gates)[start:stop] if work is None else work[: stop - start]

    def share(chunk):
        rows = ctx.cast(x[slice(*run.chunks[chunk][:2])], run.wide)
        return partial(project, ctx, run, rows, w_ih, bias, place(chunk)), len(rows)

    order, later = run.order(way), kernels.beside(run.numbers)
    try:
        for chunk, after in zip_longest(order, order[1:]):
            start, stop, sizes = run.chunks[chunk]
            if cells is not None:
                kernels.copy(states[1], out=cells[chunk])
            if chunk == order[0] or work is not None:
                task, rows = share(chunk)
                task(0, rows)
            if after is not None and work is None:  # needs no memory: it is made beside these steps
                kernels.hand_over(later, [share(after)])
            kind.steps(kernels, place(chunk), w_hh, sizes, bool(way), states, run.direction(y, way)[start:stop], run)
            kernels.finish(later)
            if work is not None and gates is not None:
                kernels.copy(work[: stop - start], out=gates[start:stop])
    finally:
        kernels.finish(later)
    return states


def _stacked(ctx, run, states):
    """The last states of the directions, as one array."""
    if len(states) == 1 and states[0].dtype == run.dtype:
        return states[0].reshape(1, *run.states)
    out = ctx.empty((len(states), *run.states), run.dtype)
    for state, part in zip(states, out, strict=True):
        ctx.kernels.copy(state, out=part)
    return out


def _keep(ctx, cls, x, h0, y, ways, kept, remake):
    """Save the arrays for backward, without those for gradients that are not needed."""
    parameters = any(ctx.needs[3:])
    if remake or parameters:
        kept["x"] = x
    if remake or parameters or not cls.cell:
        kept.update(y=y, h0=h0)
    for way, (w_ih, w_hh, b_ih, b_hh) in enumerate(ways):
        kept[named("w_hh", way)] = w_hh
        if remake or ctx.needs[0]:
            kept[named("w_ih", way)] = w_ih
        if remake:
            kept.update({named("b_ih", way): b_ih, named("b_hh", way): b_hh})
    ctx.save(**kept)


class RNN(Recurrent):
    """h = tanh(W x + b + U h + d) or relu of it, for all steps of a layer, in one or two directions.

    Saves y, h0 if given, w_hh, w_hh_reverse if given, x if ``True in [*needs.values()][3:]``, w_ih if x needs a gradient, and
    w_ih_reverse if x does: of a step its output, nothing else.
    """

    saves = ("x", "h0", "y", *_both("w_ih", "w_hh"))
    outputs = ("hn", "y")
    blocks, inputs, keeps = 1, ((0, 1, 0),), False

    @staticmethod
    def steps(kernels, gates, w_hh, sizes, reverse, states, y, run):
        kernels.rnn(gates, w_hh, sizes, reverse, run.relu, states[0])
        if y is not None and y is not gates:
            kernels.copy(gates, out=y)

    @staticmethod
    def steps_backward(kernels, gates, w_hh, sizes, reverse, run, before, y, gy, grads):
        kernels.rnn_backward(gates, w_hh, sizes, reverse, run.relu, gy, *grads)


class LSTM(Recurrent):
    """Long short-term memory, for all steps of a layer, in one or two directions.

    i, f, o = sigmoid and g = tanh of (W x + b + U h + d); c = f c + i g; h = o tanh(c).

    Saves gates (``4 * y.shape[0] * w_hh.shape[1] * y.itemsize`` bytes) if ``not remake``,
    gates_reverse (``4 * y.shape[0] * w_hh.shape[1] * y.itemsize`` bytes) if ``not (remake or w_hh_reverse is None)``,
    cells (``-(-len(sizes) // steps) * sizes[0] * w_hh.shape[1] * max(4, y.itemsize)`` bytes),
    cells_reverse (``-(-len(sizes) // steps) * sizes[0] * w_hh.shape[1] * max(4, y.itemsize)`` bytes) if
    ``w_hh_reverse is not None``, w_hh, w_hh_reverse if given, x if ``remake or True in [*needs.values()][3:]``,
    y if ``remake or True in [*needs.values()][3:]``, h0 if ``remake or True in [*needs.values()][3:]``,
    w_ih if ``remake or needs['x']``, w_ih_reverse if ``remake or needs['x']``,
    b_ih if ``remake``, b_hh if ``remake``, b_ih_reverse if ``remake``, and b_hh_reverse if ``remake``.

    The gates become their own gradients, in place. The cells are those before each chunk: the others are made again from the
    gates, a chunk at a time, and with ``remake`` the gates are too. c0 is the first of them.
    """

    saves = ("x", "h0", "y", *_both("w_ih", "w_hh", "b_ih", "b_hh", "gates", "cells"))
    outputs = ("hn", "cn", "y")
    blocks, inputs, cell = 4, ((0, 4, 0),), True

    @staticmethod
    def steps(kernels, gates, w_hh, sizes, reverse, states, y, run):
        kernels.lstm(gates, w_hh, sizes, reverse, *states, y)

    @staticmethod
    def steps_backward(kernels, gates, w_hh, sizes, reverse, run, before, y, gy, grads):
        kernels.lstm_backward(gates, w_hh, sizes, reverse, before, y, gy, *grads)


class GRU(Recurrent):
    """Gated recurrent unit, for all steps of a layer, in one or two directions.

    r, z = sigmoid of (W x + b + U h + d), m = U h + d; n = tanh(W x + b + r m); h = (1 - z) n + z h.

    Saves gates (``4 * y.shape[0] * w_hh.shape[1] * y.itemsize`` bytes) if ``not remake``,
    gates_reverse (``4 * y.shape[0] * w_hh.shape[1] * y.itemsize`` bytes) if ``not (remake or w_hh_reverse is None)``,
    y, h0 if given, w_hh, w_hh_reverse if given, x if ``remake or True in [*needs.values()][3:]``,
    w_ih if ``remake or needs['x']``, w_ih_reverse if ``remake or needs['x']``,
    b_ih if ``remake``, b_hh if ``remake``, b_ih_reverse if ``remake``, and b_hh_reverse if ``remake``.

    The gates are r, z, n and m, which become their own gradients, in place.
    """

    saves = ("x", "h0", "y", *_both("w_ih", "w_hh", "b_ih", "b_hh", "gates"))
    outputs = ("hn", "y")
    blocks, inputs, state, reads_previous = 4, ((1, 3, 0), (0, 1, 2)), 1, True

    @staticmethod
    def steps(kernels, gates, w_hh, sizes, reverse, states, y, run):
        kernels.gru(gates, w_hh, sizes, reverse, *states, y)

    @staticmethod
    def steps_backward(kernels, gates, w_hh, sizes, reverse, run, before, y, gy, grads):
        kernels.gru_backward(gates, w_hh, sizes, reverse, before, gy, *grads)
