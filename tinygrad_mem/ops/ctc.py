"""The loss of sequences whose alignment to their labels is not known: connectionist temporal classification."""

from ..dtypes import int64, is_half
from ..errors import DTypeError
from .base import Op, want_floating


class CTCLoss(Op):
    """-ln of the sum over all alignments of the targets. Saves x, targets, and spans; backward computes the sums again.

    ``x`` is (T, N, C) log-probabilities, ``targets`` a line of labels, ``spans`` (3, N): how many rows of x count, how many
    labels, and where they begin. Paths go through ``states`` places: blanks before, between and after the labels.

    PyTorch saves the sums over all prefixes, T * N * states numbers, for backward; here backward computes them again.
    """

    saves = ("x", "targets", "spans")

    @staticmethod
    def forward(ctx, x, targets, spans, *, states, blank, zero_infinity):
        want_floating("ctc_loss", x)
        if is_half(x.dtype):
            raise DTypeError(f"ctc_loss: expected float32 or float64, found {x.dtype}: small sums would vanish; use .float()")
        ctx.options = states, blank, zero_infinity
        out = ctx.empty((x.shape[1],), x.dtype)
        sums, rest = _buffers(ctx, x, 2, states)
        ctx.kernels.ctc_loss(x, targets, spans, blank, zero_infinity, sums, *rest, out=out)
        ctx.save(x=x, targets=targets, spans=spans)
        return out

    @staticmethod
    def backward(ctx, gy):
        states, blank, zero_infinity = ctx.options
        x, targets, spans = (ctx.take(name) for name in CTCLoss.saves)
        gx = ctx.empty(x.shape, x.dtype)
        sums, rest = _buffers(ctx, x, x.shape[0], states)
        ctx.kernels.ctc_loss_backward(gy, x, targets, spans, blank, zero_infinity, sums, *rest, out=gx)
        return gx, None, None


def _buffers(ctx, x, kept, states):
    """The sums over beginnings, of the ``kept`` last rows; and six more rows, the label of each state, and a row of x."""
    rows, count, classes = x.shape
    width = states + 2  # two more than the states: nothing comes from them
    sums = ctx.empty((min(rows, kept), count, width), x.dtype)
    return sums, (
        ctx.empty((6, count, width), x.dtype),
        ctx.empty((count, states), int64),
        ctx.empty((count, classes), x.dtype),
    )
