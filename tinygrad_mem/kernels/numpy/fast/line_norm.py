"""Layer norm and RMS norm of samples that are lines, with a parameter for each number of a line; and their gradients."""

import numpy as np

from .blas import single
from .channels import add
from .folds import ONES, RUN
from .threads import SCRATCH, scratch, split

_GRAIN = 1 << 19  # elements that are worth a core: two halves of half a megabyte each take as long as both in one thread
_SEGMENTS = 16  # most segments, which threads can share
_LONGEST = len(ONES[np.dtype(np.float32)])  # length of a line that one product sums


def fits(x, rstd, *parameters):
    """True if the samples are lines that :func:`forward` and :func:`backward` can take."""
    size = x.shape[2] * x.shape[3]
    whole = all(p is None or p.size == size for p in parameters)
    return x.shape[1] == 1 and x.dtype == rstd.dtype and whole and 0 < size <= _LONGEST and len(x) > 0


def _height(x):
    """Lines of a tile: a quarter of the scratch. Few long calls wait for each other less often than many short ones."""
    return max(min(SCRATCH // 4 // (x.shape[1] * x.itemsize), RUN), 1)


def forward(x, weight, bias, eps, mean, rstd, out):
    """The kernel ``sample_norm`` of lines: x (n, size); mean and rstd (n, 1). Tiles do not depend on the number of threads."""
    n, size = x.shape
    height = _height(x)

    def run(first, last):
        for i in range(first * height, min(last * height, n), height):
            rows = slice(i, min(i + height, n))
            _normalise(x[rows], weight, bias, eps, None if mean is None else mean[rows], rstd[rows], out[rows])

    with single():
        split(-(-n // height), run, max(_GRAIN // (height * size), 1))


def _normalise(x, weight, bias, eps, mean, rstd, out):
    """One tile. Its squares are those of x, unless they would cancel with that of the mean."""
    centred = _statistics(x, mean, rstd)
    if centred is not x:
        _mean_squares(centred, rstd)
    elif mean is not None:
        centred = np.subtract(x, mean, out=out)
    np.add(rstd, eps, out=rstd)
    np.sqrt(rstd, out=rstd)
    np.divide(1.0, rstd, out=rstd)
    np.multiply(centred, rstd, out=out)
    if weight is not None:
        np.multiply(out, weight, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


def _mean_squares(x, out):
    np.vecdot(x, x, out=out[:, 0])
    np.multiply(out, 1.0 / x.shape[1], out=out)


def _statistics(x, mean, variance):
    """Fill both from sums, and return x; where a mean is above two deviations, x less its mean, as a scratch tile."""
    _mean_squares(x, variance)
    if mean is None:
        return x
    np.matmul(x, ONES[x.dtype][: x.shape[1]], out=mean[:, 0])
    np.multiply(mean, 1.0 / x.shape[1], out=mean)
    square, room = (scratch(mean.shape, mean.dtype, k, 8) for k in (6, 7))
    np.multiply(mean, mean, out=square)
    np.subtract(variance, square, out=variance)
    np.multiply(variance, 4, out=room)
    np.subtract(room, square, out=room)
    if np.minimum.reduce(room, axis=None) >= 0:
        return x
    return np.subtract(x, mean, out=scratch(x.shape, x.dtype, 0, 4))


def backward(gy, x, mean, rstd, weight, stat, grad_weight, grad_bias, out):
    """The kernel ``sample_norm_backward`` of lines: x (n, size).

    Sums along and over lines are products with the weight or rstd. The lines are divided into segments, which depend on the
    shape only. Each segment has its own sums over lines in stat.
    """
    n, size = x.shape
    height = _height(x)
    tiles = -(-n // height)
    segments = max(min(n // size, tiles, _SEGMENTS), 1)
    targets = [grad_bias, grad_weight]
    shares = [[t if segments == 1 else stat[k * n + i * size :][:size] for i in range(segments)] for k, t in enumerate(targets)]
    ones = ONES[x.dtype]

    def run(first, last):
        for i in range(first, last):
            bias, slope = (None if t is None else share[i] for t, share in zip(targets, shares, strict=True))
            for number in range(tiles * i // segments, tiles * (i + 1) // segments):
                rows = slice(number * height, min((number + 1) * height, n))
                fresh = number == tiles * i // segments
                g, r = gy[rows], rstd[rows]
                t, u = (scratch(g.shape, x.dtype, k, 4) for k in (0, 1))
                np.subtract(x[rows], 0 if mean is None else mean[rows], out=t)
                if bias is not None:
                    _add_weighed(ones[: len(g)], g, bias, fresh)
                np.multiply(g, t, out=u)
                if slope is not None:
                    _add_weighed(r[:, 0], u, slope, fresh)
                if out is not None:
                    _line_gradient(g, t, u, r, weight, mean is not None, out[rows])

    with single():
        split(segments, run, max(segments * _GRAIN // x.size, 1))
    for target, share in zip(targets, shares, strict=True):
        if target is not None and segments > 1:
            np.copyto(target, share[0])
            for more in share[1:]:
                np.add(target, more, out=target)


def _add_weighed(weights, x, total, first):
    """total = weights @ x, added to what is there unless ``first``."""
    part = total if first else scratch(total.shape, total.dtype, 2, 4)
    np.matmul(weights, x, out=part)
    add(part, total)


def _line_gradient(g, t, u, r, weight, centre, out):
    """out = (w g - mean(w g) - t r**2 mean(w g t)) r of a tile, where t is centred, u = g t, and both may be overwritten."""
    count = g.shape[1]
    along = ONES[t.dtype][:count] if weight is None else weight
    middle, flow = (scratch((len(g), 1), t.dtype, k, 8) for k in (6, 7))
    np.matmul(g, along, out=middle[:, 0])
    np.matmul(u, along, out=flow[:, 0])
    np.multiply(middle, 1.0 / count, out=middle)
    for factor in (r, r, 1.0 / count):
        np.multiply(flow, factor, out=flow)
    np.multiply(t, flow, out=t)
    if weight is not None:
        g = np.multiply(g, weight, out=u)
    np.subtract(g, t, out=u)
    if centre:
        np.subtract(u, middle, out=u)
    np.multiply(u, r, out=out)
