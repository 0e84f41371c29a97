"""Adam with moments of 4 bits, the second scaled by rank-1 normalization: a number by the smallest of its lines' largest ones.

``v_top`` has the largest number of each row and of each column, one array behind the other; of more axes likewise: of each
slice along each axis. As the scales of all numbers must be known before one is packed, there are two passes over ``g``.

Source: Li, Chen and Zhu, *Memory efficient optimizers with 4-bit states*, 2023, section 4.2.
"""

import numpy as np

from ...interrupts import ReentrantLock
from ..code_tables import TABLES
from ..formula import formula
from .fast import blocks, rules
from .fast.computed import Written
from .fast.threads import scratch

_SIGNED4, _LINEAR4 = TABLES["dynamic4"], TABLES["linear4"]


def _adam4bit_rank1_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    codes = np.stack([v & 15, v >> 4], -1).reshape(-1)[: p.size].reshape(p.shape)
    m, v = blocks.decoded(m, m_top, block, _SIGNED4, p.shape), _LINEAR4.values["d"][codes] * _smallest(v_top, p.shape)
    moved = rules.adam(p, g, m, v, None, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
    tops = [np.max(moved["v"], axis=tuple(k for k in range(p.ndim) if k != axis)) for axis in range(p.ndim) if p.size]
    return {"p": moved["p"], "v_top": np.concatenate(tops or [v_top])}


def _smallest(tops, shape):
    """The smallest of the largest numbers of the lines through each place."""
    parts = np.split(tops, np.cumsum(shape)[:-1])
    return np.minimum.reduce([np.broadcast_to(x, shape) for x in np.ix_(*parts)])


@formula(_adam4bit_rank1_step)
def adam4bit_rank1_step(
    p, g, work, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize
):
    """Adam's rule with two numbers in a byte, as ``adam4bit_step``, but v is scaled along the axes; work has room for v_top."""
    if p.size == 0:
        return
    fresh = work[: v_top.nbytes].view(np.float32)
    fresh[...] = 0
    state, tops = (kind(v, v_top, fresh, p.shape) for kind in (_Axes, _Tops))
    blocks.run_by_block(_SQUARE, p, g, block, [tops], (beta2, weight_decay, maximize))  # p stays as it is
    numbers = (None, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
    blocks.run_by_block(_ADAM, p, g, block, [blocks.Blocks(m, m_top, _SIGNED4, block), state], numbers)
    np.copyto(v_top, fresh)


class _Axes:
    """A state in half bytes: the largest numbers along its axes before the step, for reading, and after it, for writing."""

    def __init__(self, codes, top, fresh, shape):
        self.codes, self.old, self.fresh = codes, _along_axes(top, shape), _along_axes(fresh, shape)

    def read(self, start, stop, out):
        blocks.look_up(self.codes[start // 2 : -(-stop // 2)], _LINEAR4, out)
        np.multiply(out, _scales(self.old, start, stop, 6), out=out)

    def write(self, start, stop, x):
        share = scratch(x.shape, np.float32, 1, 8)
        np.divide(x, _scales(self.fresh, start, stop, 0), out=share, casting="unsafe")  # lines of zeros: any code times 0
        blocks.nearest(share, _LINEAR4, self.codes[start // 2 : -(-stop // 2)])


class _Tops(_Axes):
    """Instead of the state itself, the largest numbers along its axes are written."""

    def __init__(self, *args):
        super().__init__(*args)
        self.lock = ReentrantLock()

    def write(self, start, stop, x):
        for view in self.fresh:
            for at, piece in blocks.pieces(view, start, stop):
                repeated = tuple([k for k, step in enumerate(piece.strides) if step == 0])
                target = piece[tuple([slice(0, None if step else 1) for step in piece.strides])]
                most = scratch(target.shape, np.float32, 6, 8)
                np.maximum.reduce(x[at : at + piece.size].reshape(piece.shape), repeated, keepdims=True, out=most)
                with self.lock:  # other threads have other elements of the same line
                    np.maximum(target, most, out=target)


def _along_axes(tops, shape):
    """For each axis a view of this shape of the axis's largest numbers, repeated along the other axes."""
    views, start = [], 0
    for axis, count in enumerate(shape):
        strides = [tops.itemsize if k == axis else 0 for k in range(len(shape))]
        views.append(np.ndarray(shape, tops.dtype, tops, start * tops.itemsize, strides))
        start += count
    return views


def _scales(views, start, stop, slot):
    """The scales of the elements ``start`` to ``stop``, in the scratch: the smallest of what the views have there."""
    out = scratch((stop - start,), np.float32, slot, 8)
    for k, view in enumerate(views):
        for at, piece in blocks.pieces(view, start, stop):
            tile = out[at : at + piece.size].reshape(piece.shape)
            if k:
                np.minimum(tile, piece, out=tile)
            else:
                np.copyto(tile, piece)
    return out


_ADAM, _SQUARE = Written(rules.adam), Written(rules.mean_square)
