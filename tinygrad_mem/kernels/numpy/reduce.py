"""Reductions over axes; ``out`` keeps the reduced axes with size 1. float16 is summed in float32."""

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .elementwise import absolute_backward
from .fast.computed import computed
from .fast.folds import RUN, at, fold
from .fast.folds import scaled_sum as _scaled_sum
from .fast.threads import scratch
from .fast.tiles import blocks

_TILE = 1 << 15  # elements: a quarter of the scratch in float64


@formula(lambda x, axes: np.sum(x, axis=axes, keepdims=True))
def sum(x, axes, out):
    """out = sum of x over ``axes``, in out's dtype (float16 in float32)."""
    _scaled_sum(x, axes, 1.0, out)


@formula(lambda x, axes: np.mean(x, axis=axes, keepdims=True))
def mean(x, axes, out):
    """out = mean of x over ``axes``."""
    count = x.size // out.size if out.size else 0
    _scaled_sum(x, axes, 1.0 / count if count else np.nan, out)


@formula(lambda x, axes: np.prod(x, axis=axes, keepdims=True))
def prod(x, axes, out):
    """out = product of x over ``axes``."""
    np.multiply.reduce(x, axis=axes, dtype=arithmetic(out.dtype), keepdims=True, out=out)


def _by_ufunc(ufunc, plain, says):
    @formula(lambda x, axes: plain(x, axis=axes, keepdims=True))
    def kernel(x, axes, out):
        ufunc.reduce(x, axis=axes, keepdims=True, out=out)

    kernel.__doc__, kernel.__name__ = f"out = {says}.", plain.__name__
    return kernel


amax = _by_ufunc(np.maximum, np.amax, "the largest over ``axes``; nan if there is one")
amin = _by_ufunc(np.minimum, np.amin, "the smallest over ``axes``; nan if there is one")
all = _by_ufunc(np.logical_and, np.all, "whether all are true over ``axes``")
any = _by_ufunc(np.logical_or, np.any, "whether one is true over ``axes``")


def arg_workspace(shape, axis, dtype):
    """Bytes of workspace for ``argmax`` and ``argmin``: a copy of one line that is not contiguous and longer than a tile."""
    return shape[axis] * dtype.itemsize if shape[axis] > _TILE and axis != len(shape) - 1 else 0


@formula(lambda x, axis: np.argmax(x, axis))
def argmax(x, axis, work, out):
    """out = int64 index of the first largest along ``axis``, which out has not."""
    _argument(np.argmax, x, axis, work, out)


@formula(lambda x, axis: np.argmin(x, axis))
def argmin(x, axis, work, out):
    """out = int64 index of the first smallest along ``axis``, which out has not."""
    _argument(np.argmin, x, axis, work, out)


def _argument(function, x, axis, work, out):
    """NumPy copies all of x unless the line is contiguous: so tiles of lines are copied to scratch instead."""
    if x.flags.c_contiguous and axis == x.ndim - 1:
        function(x, axis=axis, out=out)
        return
    lines = np.moveaxis(x, axis, -1)
    for index in blocks(out.shape, max(_TILE // lines.shape[-1], 1)):
        part = lines[index]
        tile = scratch(part.shape, x.dtype, 0, 4) if work is None else work.view(x.dtype)[: part.size].reshape(part.shape)
        np.copyto(tile, part)
        places = scratch(tile.shape[:-1], np.int64, 1, 4)
        function(tile, axis=-1, out=places)
        np.copyto(out[index], places)


@formula(lambda x, axes: np.sum(x != 0, axis=axes, keepdims=True))
def count_nonzero(x, axes, out):
    """out = how many are not 0 over ``axes``, int64."""

    def term(tile, key):
        if x.dtype == np.bool_:
            np.copyto(tile, x[key])
        else:
            np.not_equal(x[key], 0, out=tile)

    fold(x, axes, term, out, np.int64)


@formula(lambda x, mean, axes, scale: scale * np.sum((x - mean) ** 2, axis=axes, keepdims=True))
def variance(x, mean, axes, scale, out):
    """out = ``scale`` times the sum over ``axes`` of (x - mean)**2; for float16, out is float32."""

    def term(tile, key):
        np.subtract(x[key], mean[at(mean, key)], out=tile)
        np.multiply(tile, tile, out=tile)

    fold(x, axes, term, out)
    np.multiply(out, scale, out=out)


@computed
def variance_backward(gy, gmean, x, mean, y, factor, share, out):
    """out = gy * factor * (x - mean) (over 2 y for the deviation, 0 where y is 0) + gmean * share. gy, gmean, y: or None."""
    moved = 0 if gy is None else (x - mean) * gy * factor
    if gy is not None and y is not None:
        slope = moved / y * 0.5
        moved = np.where(y == 0, 0, slope)
    return moved if gmean is None else gmean * share + moved


def _prod_backward(gy, x, axes):
    gx = np.empty_like(x)
    for i in np.ndindex(x.shape):
        others = x.copy()
        others[i] = 1
        gx[i] = np.broadcast_to(gy * np.prod(others, axis=axes, keepdims=True), x.shape)[i]
    return gx


@formula(_prod_backward)
def prod_backward(gy, x, y, axes, out):
    """out = gy * the product of the others along ``axes``: y / x, and without dividing where x is 0."""
    _quotient_backward(gy, x, y, out)
    if not x.size or x.all():
        return
    count = len(axes)
    last = tuple(range(x.ndim - count, x.ndim))
    lines, outs, grads = [np.moveaxis(a, axes, last) for a in (x, out, np.broadcast_to(gy, y.shape))]
    for index in np.ndindex(lines.shape[: x.ndim - count]):
        values, result = lines[(*index, ...)], outs[(*index, ...)]
        zeros = values.size - np.count_nonzero(values)
        if zeros:
            _among_zeros(values, result)
        if zeros == 1:
            _to_the_zero(values, float(grads[(*index, *[0] * count)]), result)


_quotient_backward = computed(lambda gy, x, y, out: y / x * gy)


def _among_zeros(x, out):
    """out = the product of 0 and all others: 0, or nan if one of the others is not finite."""
    odd, place = 0, ((), ())
    for key in blocks(x.shape, _TILE):
        flag = scratch(x[key].shape, np.bool_, 1, 4)
        np.isfinite(x[key], out=flag)
        count = flag.size - np.count_nonzero(flag)
        if count:
            odd, place = odd + count, (key, np.unravel_index(flag.argmin(), flag.shape))
    out.fill(np.nan if odd else 0)
    if odd == 1:
        out[place[0]][place[1]] = 0


def _to_the_zero(x, factor, out):
    """out at the only 0 of x = ``factor`` times the product of the others."""
    for key in blocks(x.shape, _TILE):
        tile, flag = scratch(x[key].shape, np.float64, 0, 4), scratch(x[key].shape, np.bool_, 1, 4)
        np.copyto(tile, x[key])
        np.equal(tile, 0, out=flag)
        np.copyto(tile, 1, where=flag)
        factor *= float(np.multiply.reduce(tile, axis=None))
    for key in blocks(x.shape, _TILE):
        flag = scratch(x[key].shape, np.bool_, 1, 4)
        np.equal(x[key], 0, out=flag)
        np.copyto(out[key], factor, where=flag, casting="unsafe")


def _extremum_share(gy, x, y, axes, nans):
    among = (x == y) | (np.isnan(x) & nans)
    return gy * among / np.sum(among, axis=axes, keepdims=True)


@formula(_extremum_share)
def extremum_share(gy, x, y, axes, nans, count, out):
    """out = gy shared evenly among the elements of x that equal y; with ``nans`` y is one number, and nan equals nan.

    count is a buffer of y's shape.
    """
    if nans and y.item() != y.item():
        np.isnan(x, out=out, casting="unsafe")
    else:
        np.equal(x, y, out=out, casting="unsafe")
    sum(out, axes, count)
    np.divide(gy, count, out=count)
    np.multiply(out, count, out=out)


@formula(lambda x, axes: np.log(np.sum(np.exp(x), axis=axes, keepdims=True)))
def logsumexp(x, axes, top, out):
    """out = ln of the sum of e**x over ``axes``; top is a buffer of out's shape. For float16, out is float32."""
    amax(x, axes, top)
    for index in blocks(top.shape, _TILE):
        flag = scratch(top[index].shape, np.bool_, 0, 4)
        np.isinf(top[index], out=flag)
        np.copyto(top[index], 0, where=flag)

    def term(tile, key):
        np.subtract(x[key], top[at(top, key)], out=tile)
        np.exp(tile, out=tile)

    fold(x, axes, term, out)
    np.log(out, out=out)
    np.add(out, top, out=out)


@computed
def logsumexp_backward(gy, x, y, out):
    """out = gy * e**(x - y), broadcast; nan where both are infinite and alike."""
    return gy * np.exp(x - y)


def _norm(x, axes, p):
    size = np.abs(x)
    if np.isinf(p):
        return (np.max if p > 0 else np.min)(size, axis=axes, keepdims=True)
    if p == 0:
        return np.sum(x != 0, axis=axes, keepdims=True)
    return np.sum(size**p, axis=axes, keepdims=True) ** (1 / p)


@formula(_norm)
def norm(x, axes, p, out):
    """out = the p-norm of x over ``axes``: the sum of abs(x)**p, to the power 1/p. For float16, out is float32."""
    if p in (np.inf, -np.inf):
        ufunc, first = (np.maximum, 0) if p > 0 else (np.minimum, np.inf)
        fold(x, axes, lambda tile, key: np.absolute(x[key], out=tile), out, ufunc=ufunc, first=first)
        return

    def term(tile, key):
        if p == 0:
            np.not_equal(x[key], 0, out=tile, casting="unsafe")
        elif p == 2:
            np.multiply(x[key], x[key], out=tile, dtype=tile.dtype)
        else:
            np.absolute(x[key], out=tile)
            if p != 1:
                np.power(tile, p, out=tile)

    if p != 2 or not _dot(x, out):
        fold(x, axes, term, out)
    if p == 2:
        np.sqrt(out, out=out)
    elif p not in (0, 1):
        np.power(out, 1.0 / p, out=out)


def _dot(x, out):
    """The sum of squares of everything through BLAS; whether it was done."""
    if out.size != 1 or x.size == 0 or x.dtype.char not in "fd" or x.dtype != out.dtype or not x.flags.c_contiguous:
        return False
    flat, total = x.reshape(-1), 0.0
    whole = flat.size // RUN * RUN
    lines = flat[:whole].reshape(-1, RUN)
    for i in range(0, len(lines), 64):
        part = lines[i : i + 64]
        squares = scratch((len(part),), x.dtype, 0, 4)
        np.vecdot(part, part, out=squares)
        total += float(np.add.reduce(squares))
    out.fill(total + float(np.dot(flat[whole:], flat[whole:])))
    return True


@formula(lambda gy, x, y, p: gy * np.where((y == 0) | ((x == 0) & (y == y)), 0, np.sign(x) * (np.abs(x) / y) ** (p - 1)))
def norm_backward(gy, x, y, p, out):
    """out = gy times the gradient of the p-norm (a finite p), 0 where y is 0, nan where it is nan."""
    if p == 1:
        absolute_backward(gy, x, out)
    elif p == 2:
        _root_backward(gy, x, y, out)
    else:
        _power_backward(gy, x, y, p, out)


_root_backward = computed(lambda gy, x, y, out: gy * np.where(y == 0, 0, x / y))


@computed
def _power_backward(gy, x, y, p, out):
    slope = (np.abs(x) / y) ** (p - 1) * np.sign(x)
    return gy * np.where((y == 0) | ((x == 0) & (y == y)), 0, slope)


def _extreme_size_share(gy, x, y, axes, count):
    largest = (np.abs(x) == y) | np.isnan(x)
    if count is None:
        return gy * np.sign(x) * largest
    return gy * np.where(np.isnan(x), 0, np.sign(x)) * largest / np.sum(largest, axis=axes, keepdims=True)


@formula(_extreme_size_share)
def extreme_size_share(gy, x, y, axes, count, out):
    """out = gy * sign(x), shared evenly among the elements whose size is y, and nan, of which the sign is 0.

    count is a buffer of y's shape, or ``None``: then each of them has all of gy, and nan stays nan.
    """
    _is_size_or_nan(x, y, out)
    if count is None:
        _signed(out, x, gy, out)
        return
    sum(out, axes, count)
    np.divide(gy, count, out=count)
    _signed_share(out, x, count, out)


_is_size_or_nan = computed(lambda x, y, out: (np.abs(x) == y) | (x != x))
_signed = computed(lambda marked, x, gy, out: np.where(x == x, marked * (np.sign(x) * gy), x))
_signed_share = computed(lambda marked, x, share, out: np.where(x == x, marked * (np.sign(x) * share), 0))
