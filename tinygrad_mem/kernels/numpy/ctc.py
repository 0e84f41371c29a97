"""Connectionist temporal classification: sums over all alignments, in logarithms, row by row of the input.

State s of a sample is a blank if s is even, else label s // 2. A path begins in state 0 or 1, and ends in one of the last two.
In each row it stays, moves on by one state, or by two if that skips a blank between different labels. ``sums[t, n, 2 + s]`` is
ln of the sum over all beginnings of paths that are in state s in row t, including that row's factor.
"""

import numpy as np

from ...errors import DimensionError
from ..formula import formula

# --- the formulas


def _paths(p, labels):
    """sums[t, s] = the probability of all beginnings of paths that are in state s in row t of p, that row's included."""
    sums = np.zeros((len(p), len(labels)))
    sums[0, :2] = p[0, labels[:2]]
    for t, s in np.ndindex(len(p) - 1, len(labels)):
        skips = s > 1 and labels[s] != labels[s - 2]  # a blank between different labels
        sums[t + 1, s] = sums[t, max(s - 1 - skips, 0) : s + 1].sum() * p[t + 1, labels[s]]
    return sums


def _each_sample(x, targets, spans, blank):
    """(probabilities of its rows, the label of each state) of each sample."""
    for n, (length, many, start) in enumerate(spans.T):
        labels = np.full(2 * many + 1, blank)
        labels[1::2] = targets[start : start + many]
        yield np.exp(x[:length, n]), labels


def _likelihood(p, labels):
    return _paths(p, labels)[-1, -2:].sum() if len(p) else float(len(labels) == 1)


def _ctc(x, targets, spans, blank, zero_infinity):
    loss = np.array([-np.log(_likelihood(p, labels)) for p, labels in _each_sample(x, targets, spans, blank)])
    return np.where(loss == np.inf, 0, loss) if zero_infinity else loss


def _ctc_back(gy, x, targets, spans, blank, zero_infinity, out):
    gx = np.zeros(out.shape)
    for n, (p, labels) in enumerate(_each_sample(x, targets, spans, blank)):
        total = _likelihood(p, labels)
        if len(p) and total == 0:
            gx[: len(p), n] = 0 if zero_infinity else np.nan
        elif len(p):
            gx[: len(p), n] = p
            through = _paths(p, labels) * _paths(p[::-1], labels[::-1])[::-1, ::-1] / p[:, labels]
            for s, label in enumerate(labels):
                gx[: len(p), n, label] -= through[:, s] / total
    return gx * gy[:, None]


# --- the fast ways

_NONE = -np.inf


@formula(_ctc)
def ctc_loss(x, targets, spans, blank, zero_infinity, sums, rows, labels, row, out):
    """out = -ln of the sum over all alignments, a number a sample; 0 for inf with ``zero_infinity``."""
    _beginnings(x, targets, spans, blank, sums, rows, labels, row, out)
    if zero_infinity:
        np.copyto(out, 0, where=out == np.inf)


@formula(_ctc_back)
def ctc_loss_backward(gy, x, targets, spans, blank, zero_infinity, sums, rows, labels, row, out):
    """out = gy * (e**x - the share of the paths that are at the label in that row), 0 in rows that do not count.

    That is the gradient where x is what ``log_softmax`` gave, as PyTorch has it.
    """
    loss = rows[5, :, 0]
    _beginnings(x, targets, spans, blank, sums, rows, labels, row, loss)
    here, bare, skip, ends, later = *_whole(rows, labels), *rows[2:5]
    later.fill(_NONE)
    for t in range(len(x) - 1, -1, -1):
        _row(x[t], labels, row, here)
        ends, later = later, ends
        _step(ends[:, :-2], ends[:, 1:-1], ends[:, 2:], skip[:, 2:], bare)
        np.add(bare, here, out=later[:, :-2])
        later[:, -2:].fill(_NONE)
        for n, (length, many) in enumerate(zip(spans[0], spans[1], strict=True)):
            if length == t + 1:  # nothing is later: paths end here
                last = slice(max(2 * many - 1, 0), 2 * many + 1)
                bare[n].fill(_NONE)
                bare[n, last] = 0
                later[n].fill(_NONE)
                np.copyto(later[n, last], here[n, last])
        np.add(bare, sums[t, :, 2:], out=bare)  # which has this row's factor
        np.add(bare, loss[:, None], out=bare)
        np.exp(bare, out=bare)
        np.exp(row, out=row)
        np.subtract.at(row.reshape(-1), labels.reshape(-1), bare.reshape(-1))
        np.multiply(row, gy[:, None], out=out[t])
        for n, length in enumerate(spans[0]):
            if t >= length:
                out[t, n].fill(0)
            elif loss[n] == np.inf:
                out[t, n].fill(0 if zero_infinity else np.nan)


def _whole(rows, labels):
    """Two contiguous arrays with one number per state."""
    return [r.reshape(-1)[: labels.size].reshape(labels.shape) for r in rows[:2]]


def _beginnings(x, targets, spans, blank, sums, rows, labels, row, out):
    """Fill sums, rows[2] and labels: out = the loss of each sample."""
    kept = len(sums)
    (here, bare), skip = _whole(rows, labels), rows[2]
    _labels(targets, spans, blank, row.shape[1], labels, skip)
    for n, (length, many) in enumerate(zip(spans[0], spans[1], strict=True)):
        if length == 0:
            out[n] = np.inf if many else 0
    for t in range(max(spans[0].tolist(), default=0)):
        now = sums[t % kept]
        _row(x[t], labels, row, here)
        if t == 0:
            now.fill(_NONE)
            np.copyto(now[:, 2:4], here[:, :2])
        else:
            last = sums[(t - 1) % kept]
            now[:, :2].fill(_NONE)
            _step(last[:, 2:], last[:, 1:-1], last[:, :-2], skip[:, :-2], bare)
            np.add(bare, here, out=now[:, 2:])
        for n, (length, many) in enumerate(zip(spans[0], spans[1], strict=True)):
            if length == t + 1:
                end = now[n, 2 + 2 * many]
                out[n] = -(np.logaddexp(end, now[n, 1 + 2 * many]) if many else end)


def _step(stay, one, two, skip, out):
    """out = ln of the sum of what stays in a state, comes from the next one, or from the one after where it may be skipped."""
    np.add(two, skip, out=out)
    np.logaddexp(out, one, out=out)
    np.logaddexp(out, stay, out=out)


def _row(x, labels, row, out):
    """row = x, a row of every sample; out = what it has at the label of each state; labels are places in ``row``."""
    np.copyto(row, x)
    np.take(row.reshape(-1), labels, out=out, mode="clip")


def _labels(targets, spans, blank, classes, labels, skip):
    """labels = the place of each state's label in a row of all samples; skip = 0 where the blank before it may be skipped."""
    labels.fill(blank)
    skip.fill(_NONE)
    for n, (_, many, start) in enumerate(spans.T):
        own = labels[n, 1 : 2 * many : 2]
        np.copyto(own, targets[start : start + many])
        if many and not (own.min() >= 0 and own.max() < classes):
            wrong = own.min() if own.min() < 0 else own.max()
            raise DimensionError(f"ctc_loss: target {wrong} is out of bounds: labels are 0 to {classes - 1}")
        for s in range(3, 2 * many, 2):
            if labels[n, s] != labels[n, s - 2]:
                skip[n, s] = 0
        np.add(labels[n], n * classes, out=labels[n])
