"""Parts of a recurrent layer's run: its numbers, its chunks of steps, the input's share of a chunk's gates."""

import itertools

from ..dtypes import arithmetic

_ROWS = 512  # of a chunk: enough for a product to be fast


def chunk_steps(sizes):
    """The number of steps in a chunk, unless given: of 512 rows or one step."""
    return max(_ROWS // max(sizes[0], 1), 1)


def named(name, way):
    return name + "_reverse" * way


def fill(ctx, x, out):
    """out = x, or 0 where that is ``None``."""
    if x is None:
        ctx.kernels.fill(0, out=out)
    else:
        ctx.kernels.copy(x, out=out)


class RecurrentSteps:
    """The numbers of one run: shapes, and its chunks of steps as (first row, last row, sizes of its steps)."""

    def __init__(self, kind, x_shape, width, ways, sizes, steps, dtype, relu):
        self.kind, self.x_shape, self.width, self.ways, self.dtype, self.relu = kind, x_shape, width, ways, dtype, relu
        self.columns, self.states, self.wide = kind.blocks * width, (sizes[0], width), arithmetic(dtype)
        self.numbers = sizes[0] * self.columns  # of the first step, which no other exceeds
        self.whole = sizes[0] == sizes[-1]  # all sequences are of one length
        starts = [0, *itertools.accumulate(sizes)]
        cuts = [(i, min(i + steps, len(sizes))) for i in range(0, len(sizes), steps)]
        self.chunks = [(starts[i], starts[j], sizes[i:j]) for i, j in cuts]
        self.most = max(stop - start for start, stop, _ in self.chunks)  # rows of the largest
        before = [0, *(sizes[i - 1] for i, _ in cuts[1:])]  # sequences of the step before each chunk, and of that after it
        after = [*(sizes[j] for _, j in cuts[:-1]), 0]
        self.edges = [(before, after)[way] for way in range(2)]

    def order(self, way):
        """Numbers of the chunks in the order in which they are computed."""
        return range(len(self.chunks))[:: -1 if way else 1]

    def direction(self, y, way):
        """The columns of ``y`` that are this direction's."""
        return y[:, way * self.width : (way + 1) * self.width]

    def block(self, gates, first, last):
        """Columns of gates."""
        return gates[:, first * self.width : last * self.width]


def bias_row(ctx, run, weights):
    """The row that gates start from: each column's biases, added up; ``None`` without."""
    _, _, b_ih, b_hh = weights
    if b_ih is None:
        return None
    bias = ctx.zeros((1, run.columns), run.wide)
    for first, last, row in run.kind.inputs:
        part = run.block(bias, first, last)[0]
        ctx.kernels.add(part, b_ih[row * run.width : (row + last - first) * run.width], out=part)
    part = run.block(bias, run.kind.state, run.kind.blocks)[0]
    ctx.kernels.add(part, b_hh, out=part)
    return bias


def project(ctx, run, x, w_ih, bias, gates, start, stop):
    """Some rows of gates = the input's share of them: the biases and x @ w_ih.T; 0 in what has no such share."""
    x, gates = x[start:stop], gates[start:stop]
    if bias is None:
        ctx.kernels.fill(0, out=gates)
    else:
        ctx.kernels.copy(ctx.broadcast(bias, gates.shape), out=gates)
    for first, last, row in run.kind.inputs:
        rows = w_ih[row * run.width : (row + last - first) * run.width]
        ctx.kernels.add_product(x, rows.T, out=run.block(gates, first, last))
