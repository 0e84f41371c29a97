"""Convolution on the cpu: which algorithm computes what.

Arrays are (N, C, *spatial) with one to three spatial axes; ``low`` is the padding before each axis, the padding behind
follows from the shapes. Weights are (O, C / groups, *kernel).

``TINYGRAD_MEM_CONV=columns`` (or ``rows``, ``taps`` or ``winograd``, where they can) in the environment overrides the rule
that chooses.
"""

from __future__ import annotations

import os as _os
from functools import lru_cache as _lru_cache

import numpy as np

from ...dtypes import is_half as _is_half
from ...scope import local as _local
from . import conv_columns as _columns
from . import conv_depthwise as _depthwise
from . import conv_rows as _rows
from . import conv_taps as _taps
from . import conv_winograd as _winograd
from . import narrow as _narrow
from .conv_geometry import Geometry as _Geometry
from .pool import _sum_halves

_ALGORITHM = _os.environ.get("TINYGRAD_MEM_CONV", "")
_LARGE = 1 << 18  # numbers of a weight


def conv_workspace(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    """Bytes of workspace for ``kind``: "forward", "input" or "weight"; a function of the shapes only."""
    return _workspace(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype)


@_lru_cache(maxsize=1024)  # the same few shapes in every step, and a plan takes longer to make than a small map to convolve
def _workspace(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    if _use_winograd(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
        return _winograd.workspace(x_shape, y_shape, kind)
    geo = _Geometry.of(x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype)
    return _algorithm(geo, kind).workspace(geo, kind)


def _algorithm(geo, kind):
    """The module that computes this where Winograd's does not."""
    if _ALGORITHM == "columns" or geo.pointwise:
        return _columns
    if _ALGORITHM != "rows" and _taps.fits(geo, kind):
        return _taps
    if _ALGORITHM != "rows" and kind != "weight" and _is_mostly_weight(geo.images * geo.pixels, geo.cin, geo.cout, geo.taps):
        return _columns
    return _depthwise if _depthwise.fits(geo) else _rows if _rows.fits(geo, kind) else _columns


def _is_mostly_weight(pixels, cin, cout, taps):
    """Whether the weight is large, and so much larger than the maps that it is read as it lies: the others reorder a copy."""
    return taps * cin * cout >= max(8 * pixels * (cin + cout), _LARGE)


@_lru_cache(maxsize=1024)
def _use_winograd(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    """Whether Winograd's algorithm computes this: a rule of the shapes; ``tests/benchmarks/conv.py`` shows what it costs."""
    if dtype != np.float32 or w_shape[2:] != (3, 3) or groups != 1 or stride != (1, 1) or dilation != (1, 1):
        return False
    if _ALGORITHM in ("columns", "rows", "taps") or 0 in x_shape or 0 in y_shape:
        return False
    height, width = x_shape[2:] if kind == "input" else y_shape[2:]
    if _ALGORITHM == "winograd":
        return True
    cin, cout, pixels = x_shape[1], y_shape[1], x_shape[0] * height * width
    if _is_mostly_weight(pixels, cin, cout, 9) or (kind == "weight" and 9 * cin * cout > pixels * (cin + cout)):
        return False  # more work on the weight than on the maps
    if min(cin, cout) < 48 or height < 3 or width < 3:
        return False
    return not _taps.fits(_Geometry.of(x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype), kind)


def conv_forward(x, w, bias, stride, low, dilation, groups, work, out):
    """out = conv(x, w) + bias (or None)."""
    if out.size == 0:
        return
    if x.size == 0 or w.size == 0:
        _only_bias(bias, out)
        return
    if _use_winograd("forward", x.shape, w.shape, out.shape, stride, low, dilation, groups, x.dtype):
        _winograd.convolve(x, w.reshape(*w.shape[:2], 9), bias, low, work, out)
        return
    if x.dtype is _local.narrow_sums:
        for xs, ws, bs, outs in _by_group(groups, x, w, bias, out):
            _narrow.convolve(xs, ws, bs, list(_overlaps(x.shape[2:], out.shape[2:], w.shape[2:], stride, low, dilation)), outs)
        return
    geo = _Geometry.of(x.shape, w.shape, out.shape, stride, low, dilation, groups, x.dtype)
    _algorithm(geo, "forward").forward(geo, x, w, bias, work, out)


def conv_backward_input(gy, w, bias, stride, low, dilation, groups, work, out):
    """out = the gradient of x: the transposed convolution of gy, plus a bias (or None)."""
    if out.size == 0:
        return
    if gy.size == 0 or w.size == 0:
        _only_bias(bias, out)
        return
    if _use_winograd("input", out.shape, w.shape, gy.shape, stride, low, dilation, groups, gy.dtype):
        turned = w.reshape(*w.shape[:2], 9)[:, :, ::-1].transpose(1, 0, 2)
        _winograd.convolve(gy, turned, bias, (2 - low[0], 2 - low[1]), work, out)
        return
    if gy.dtype is _local.narrow_sums:
        for outs, ws, bs, gs in _by_group(groups, out, w, bias, gy):
            taps = _overlaps(out.shape[2:], gy.shape[2:], w.shape[2:], stride, low, dilation)
            _narrow.convolve(gs, ws.swapaxes(0, 1), bs, [(tap, of, to) for tap, to, of in taps], outs)
        return
    geo = _Geometry.of(out.shape, w.shape, gy.shape, stride, low, dilation, groups, gy.dtype)
    _algorithm(geo, "input").backward_input(geo, gy, w, bias, work, out)


def conv_backward_weight(gy, x, stride, low, dilation, groups, work, out):
    """out = the gradient of w."""
    if out.size == 0:
        return
    if gy.size == 0 or x.size == 0:
        out.fill(0)
        return
    if _use_winograd("weight", x.shape, out.shape, gy.shape, stride, low, dilation, groups, gy.dtype):
        _winograd.backward_weight(gy, x, low, work, out)
        return
    if gy.dtype is _local.narrow_sums:
        for xs, outs, _, gs in _by_group(groups, x, out, None, gy):
            _narrow.convolve_weight(
                gs, xs, list(_overlaps(x.shape[2:], gy.shape[2:], out.shape[2:], stride, low, dilation)), outs
            )
        return
    geo = _Geometry.of(x.shape, out.shape, gy.shape, stride, low, dilation, groups, gy.dtype)
    _algorithm(geo, "weight").backward_weight(geo, gy, x, work, out)


def conv_backward_bias(gy, out):
    """out = gy summed over images and pixels."""
    axes = (0, *range(2, gy.ndim))
    if not _is_half(gy.dtype):
        np.add.reduce(gy, axis=axes, out=out)
        return
    if gy.dtype is _local.narrow_sums:
        _narrow.add_up(gy, axes, 1, out.reshape(1, -1, *(1,) * (gy.ndim - 2)))
        return
    for c in range(gy.shape[1]):
        out[c] = np.add.reduce(gy[:, c], axis=None, dtype=np.float32)


def _by_group(groups, x, w, bias, y):
    """The channels of x, the filters, the bias and the channels of y of each group. The bias belongs to either side."""
    c, o = x.shape[1] // groups, y.shape[1] // groups
    for g in range(groups):
        part = None
        if bias is not None:
            each = bias.size // groups
            part = bias[g * each : (g + 1) * each]
        yield x[:, g * c : (g + 1) * c], w[g * o : (g + 1) * o], part, y[:, g * o : (g + 1) * o]


def _only_bias(bias, out):
    if bias is None:
        out.fill(0)
    else:
        np.copyto(out, bias.reshape(-1, *(1,) * (out.ndim - 2)))


def unfold_windows(x, kernel, stride, low, dilation, out):
    """out (N, C, *kernel, *blocks) = the windows of x (N, C, *spatial); what reaches beyond it is zero."""
    out.fill(0)
    for tap, to, of in _overlaps(x.shape[2:], out.shape[2 + len(kernel) :], kernel, stride, low, dilation):
        np.copyto(out[(slice(None), slice(None), *tap, *to)], x[(slice(None), slice(None), *of)])


def fold_windows(x, kernel, stride, low, dilation, out):
    """out (N, C, *spatial) = the sum of windows x (N, C, *kernel, *blocks), each put where unfold took it from."""
    if _is_half(out.dtype) and out.flags.c_contiguous and x.flags.c_contiguous:
        planes = x.reshape(-1, *x.shape[2:])
        _sum_halves(
            lambda number, windows: planes[(windows[0], *np.unravel_index(number, kernel), *windows[1:])],
            x.shape[2 + len(kernel) :],
            (kernel, stride, low, dilation),
            None,
            out.reshape(-1, *out.shape[2:]),
        )
        return
    out.fill(0)
    for tap, of, to in _overlaps(out.shape[2:], x.shape[2 + len(kernel) :], kernel, stride, low, dilation):
        target = out[(slice(None), slice(None), *to)]
        np.add(target, x[(slice(None), slice(None), *tap, *of)], out=target)


def _overlaps(inside, outside, kernel, stride, low, dilation):
    """For each tap: (tap, slices of the blocks, slices of the input) where the two meet."""
    for tap in np.ndindex(*kernel):
        blocks, pixels = [], []
        for t, size, count, step, before, apart in zip(tap, inside, outside, stride, low, dilation, strict=True):
            shift = t * apart - before
            a, b = max(0, -(shift // step)), min(count, (size - 1 - shift) // step + 1)
            if b <= a:
                break
            blocks.append(slice(a, b))
            pixels.append(slice(a * step + shift, (b - 1) * step + shift + 1, step))
        else:
            yield tap, blocks, pixels
