"""Cross-entropy of scores that come in parts: some classes of some lines at a time."""

import numpy as np

from ..formula import formula
from .fast import lines, threads
from .fast.targets import patches, positions, total_weight, weights

# --- the formulas


def _folded(x, first, target, weight, ignore, smoothing, classes, lse, picked):
    lse = np.logaddexp(lse, np.log(np.exp(x).sum(1)))
    for n, k, i in np.ndindex(x.shape):
        w = 1 if weight is None else weight[first + k]
        own = (1 - smoothing) * (target[n, i] == first + k != ignore)
        picked[n, i] += w * (own + smoothing / classes) * x[n, k, i]
    return {"lse": lse, "picked": picked}


def _finished(target, weight, ignore, smoothing, classes, lse, picked):
    weight = np.ones(classes) if weight is None else weight
    counts = target != ignore
    share = (1 - smoothing) * weight[np.where(counts, target, 0)] + smoothing / classes * weight.sum()
    return {"picked": np.where(counts, share * lse - picked, 0)}


# --- the fast ways


@formula(_folded)
def fold_scores(x, first, target, weight, ignore, smoothing, classes, lse, picked):
    """Take part of the scores of each line into account: x (outer, some of all classes, inner), from class ``first`` on.

    lse (-inf before) = ln of the sum of e**x so far; picked (0 before) += what :func:`finish_scores` takes away from it:
    weight[t] * (1 - smoothing) * x[t] + smoothing / classes * sum of weight * x.
    """
    wide = lse.dtype

    def run(a, b):
        part, goal = x[a, :, b], target[a, b]
        top, total, smooth = (lines.stat(part, wide, slot) for slot in (2, 3, 7))
        np.maximum.reduce(part, axis=1, keepdims=True, out=top)
        total.fill(0)
        smooth.fill(0)
        for piece in lines.pieces(part):
            cut = part[:, piece]
            own = slice(first + piece.start, first + piece.stop)
            tile = threads.scratch(cut.shape, wide, 0, 8)
            if smoothing:
                np.multiply(cut, 1 if weight is None else weight[own, None], out=tile, dtype=wide)
                lines.sum_lines(tile, smooth)
            np.copyto(tile, cut)
            at, missing = positions(goal, own, ignore, classes)
            found = threads.scratch(goal.shape, wide, 5, 8)
            np.take(tile.reshape(-1), at, out=found, mode="clip")
            np.copyto(found, 0, where=missing)
            w = weights(weight, goal, ignore, wide, 1)  # in the memory of half of a float64 tile, which is computed again below
            np.multiply(w, found, out=w)
            np.multiply(w, 1 - smoothing, out=w)
            np.add(picked[a, b], w, out=picked[a, b])
            np.subtract(cut, top, out=tile, dtype=wide)
            np.exp(tile, out=tile)
            lines.sum_lines(tile, total)
        np.log(total, out=total)
        np.add(total, top, out=total)
        np.logaddexp(lse[a, b], total[:, 0], out=lse[a, b])
        np.multiply(smooth, smoothing / classes, out=smooth)
        np.add(picked[a, b], smooth[:, 0], out=picked[a, b])

    lines.lines(x.shape, run)


@formula(_finished)
def finish_scores(target, weight, ignore, smoothing, classes, lse, picked):
    """picked = the loss of each line of which :func:`fold_scores` has seen all classes, 0 where ignored."""
    even = smoothing / classes * total_weight(weight, classes) if smoothing else 0.0  # a weight may be infinite
    for a, b in patches(target.shape):
        w = weights(weight, target[a, b], ignore, lse.dtype, 3)
        np.multiply(w, 1 - smoothing, out=w)
        np.add(w, even, out=w)
        np.multiply(w, lse[a, b], out=w)
        np.subtract(w, picked[a, b], out=picked[a, b])
        np.copyto(picked[a, b], 0, where=threads.scratch(w.shape, np.bool_, 6, 8))  # as weights() left it
