"""Convolution of arrays (N, C, *spatial) with one to three spatial axes, and the copying of windows.

``low`` is the padding before each axis; the padding after it follows from the shapes. Weights are (O, C / groups, *kernel).
Five algorithms compute the same; ``_rule`` chooses one, and ``tests/benchmarks/conv.py`` measures each. With
``TINYGRAD_MEM_CONV`` a user chooses another, within the workspace of the rule's: bytes do not depend on it.
"""

import os
from functools import lru_cache

import numpy as np

from ...dtypes import is_half
from ...errors import ArgumentError
from ..formula import formula
from .fast import conv_columns, conv_depthwise, conv_rows, conv_taps, conv_winograd
from .fast.conv_geometry import Geometry
from .fast.windows import overlaps, sum_halves

# --- the formulas


def _meetings(kernel, stride, low, dilation, inside, outside):
    """(tap, place, pixel) of each place of the output, each tap of the kernel there, and the pixel of the input below it."""
    for tap in np.ndindex(*kernel):
        for place in np.ndindex(*outside):
            pixel = tuple(i * s + t * d - p for i, s, t, d, p in zip(place, stride, tap, dilation, low, strict=True))
            if all(0 <= i < n for i, n in zip(pixel, inside, strict=True)):
                yield tap, place, pixel


def _by_group(x, groups, axis):
    """A view of x with the groups on an axis of their own, before the channels on ``axis``."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def _conv(x, w, bias, stride, low, dilation, groups, out):
    y = np.zeros(out.shape) if bias is None else np.broadcast_to(bias.reshape(-1, *[1] * (x.ndim - 2)), out.shape).copy()
    xs, ws, ys = _by_group(x, groups, 1), _by_group(w, groups, 0), _by_group(y, groups, 1)
    for tap, place, pixel in _meetings(w.shape[2:], stride, low, dilation, x.shape[2:], y.shape[2:]):
        ys[:, :, :, *place] += np.einsum("ngc,goc->ngo", xs[:, :, :, *pixel], ws[:, :, :, *tap])
    return y


def _conv_input(gy, w, bias, stride, low, dilation, groups, out):
    gx = np.zeros(out.shape) if bias is None else np.broadcast_to(bias.reshape(-1, *[1] * (gy.ndim - 2)), out.shape).copy()
    gxs, ws, gys = _by_group(gx, groups, 1), _by_group(w, groups, 0), _by_group(gy, groups, 1)
    for tap, place, pixel in _meetings(w.shape[2:], stride, low, dilation, gx.shape[2:], gy.shape[2:]):
        gxs[:, :, :, *pixel] += np.einsum("ngo,goc->ngc", gys[:, :, :, *place], ws[:, :, :, *tap])
    return gx


def _conv_weight(gy, x, stride, low, dilation, groups, out):
    gw = np.zeros(out.shape)
    xs, gws, gys = _by_group(x, groups, 1), _by_group(gw, groups, 0), _by_group(gy, groups, 1)
    for tap, place, pixel in _meetings(gw.shape[2:], stride, low, dilation, x.shape[2:], gy.shape[2:]):
        gws[:, :, :, *tap] += np.einsum("ngo,ngc->goc", gys[:, :, :, *place], xs[:, :, :, *pixel])
    return gw


def _unfolded(x, kernel, stride, low, dilation, out):
    y = np.zeros(out.shape)
    for tap, place, pixel in _meetings(kernel, stride, low, dilation, x.shape[2:], out.shape[2 + len(kernel) :]):
        y[:, :, *tap, *place] = x[:, :, *pixel]
    return y


def _folded(x, kernel, stride, low, dilation, out):
    y = np.zeros(out.shape)
    for tap, place, pixel in _meetings(kernel, stride, low, dilation, out.shape[2:], x.shape[2 + len(kernel) :]):
        y[:, :, *pixel] += x[:, :, *tap, *place]
    return y


# --- the fast ways


WAYS = {
    "taps": conv_taps,
    "winograd": conv_winograd,
    "depthwise": conv_depthwise,
    "rows": conv_rows,
    "columns": conv_columns,
}
asked_way = os.environ.get("TINYGRAD_MEM_CONV", "")


@lru_cache(maxsize=1024)  # steps have the same few shapes, and making a plan takes longer than a small convolution
def conv_workspace(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    """Bytes of workspace for ``kind``: "forward", "input" or "weight"; they follow from the shapes only."""
    if 0 in (*x_shape, *w_shape, *y_shape):
        return 0  # nothing is multiplied
    geo = Geometry.of(x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype)
    return _rule(geo, kind, len(w_shape)).workspace(geo, kind)


@lru_cache(maxsize=1024)
def _way(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    """(algorithm, the convolution's shapes): the one asked for, if it can compute this within the rule's workspace."""
    geo = Geometry.of(x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype)
    way = _rule(geo, kind, len(w_shape))
    if asked_way:
        if asked_way not in WAYS:
            raise ArgumentError(f"TINYGRAD_MEM_CONV: expected one of {', '.join(WAYS)}, found {asked_way!r}")
        asked = WAYS[asked_way]
        if _fits(asked, geo, kind, len(w_shape)) and asked.workspace(geo, kind) <= way.workspace(geo, kind):
            way = asked
    return way, geo


def _rule(geo, kind, axes):
    """The algorithm that was measured to be the fastest for such shapes. They alone decide, so bytes are the same anywhere."""
    if geo.pointwise:  # the input itself is the column matrix
        return conv_columns
    if _fits(conv_taps, geo, kind, axes):  # tiny maps
        return conv_taps
    way = _of_columns(geo, kind, axes)
    if not _fits(conv_winograd, geo, kind, axes):  # 3x3, stride 1, many channels
        return way
    saves = min(geo.cin, geo.cout) < conv_winograd.MANY  # with fewer channels it is faster, but not worth more memory
    return way if saves and conv_winograd.workspace(geo, kind) > way.workspace(geo, kind) else conv_winograd


def _of_columns(geo, kind, axes):
    """The fastest of the algorithms that multiply columns of the input."""
    if kind != "weight" and geo.is_mostly_weight(geo.images * geo.pixels):
        return conv_columns  # which read the weight in place; the others reorder a copy
    for way in (conv_depthwise, conv_rows):  # one channel per group; other plain ones of two axes
        if _fits(way, geo, kind, axes):
            return way
    return conv_columns


def _fits(way, geo, kind, axes):
    """True if the algorithm computes this; ``axes`` of the weight."""
    return way is conv_columns or ((way is not conv_winograd or axes == 4) and way.fits(geo, kind))


@formula(_conv)
def conv_forward(x, w, bias, stride, low, dilation, groups, work, out):
    """out = conv(x, w) + bias (or ``None``)."""
    if x.size == 0 or w.size == 0 or out.size == 0:
        _only_bias(bias, out)
        return
    way, geo = _way("forward", x.shape, w.shape, out.shape, stride, low, dilation, groups, x.dtype)
    way.forward(geo, x, w, bias, work, out)


@formula(_conv_input)
def conv_backward_input(gy, w, bias, stride, low, dilation, groups, work, out):
    """out = the gradient of x: the transposed convolution of gy, plus a bias (or ``None``)."""
    if gy.size == 0 or w.size == 0 or out.size == 0:
        _only_bias(bias, out)
        return
    way, geo = _way("input", out.shape, w.shape, gy.shape, stride, low, dilation, groups, gy.dtype)
    way.backward_input(geo, gy, w, bias, work, out)


@formula(_conv_weight)
def conv_backward_weight(gy, x, stride, low, dilation, groups, work, out):
    """out = the gradient of w."""
    if gy.size == 0 or x.size == 0 or out.size == 0:
        out.fill(0)
        return
    way, geo = _way("weight", x.shape, out.shape, gy.shape, stride, low, dilation, groups, gy.dtype)
    way.backward_weight(geo, gy, x, work, out)


@formula(lambda gy: gy.sum((0, *range(2, gy.ndim))))
def conv_backward_bias(gy, out):
    """out = gy summed over images and pixels; halves are summed in float32."""
    if not is_half(gy.dtype):
        np.add.reduce(gy, axis=(0, *range(2, gy.ndim)), out=out)
    else:
        for c in range(gy.shape[1]):
            out[c] = np.add.reduce(gy[:, c], axis=None, dtype=np.float32)


def _only_bias(bias, out):
    np.copyto(out, 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2)))


@formula(_unfolded)
def unfold_windows(x, kernel, stride, low, dilation, out):
    """out (N, C, *kernel, *blocks) = the windows of x (N, C, *spatial); 0 beyond its edges."""
    out.fill(0)
    for _, tap, windows, pixels in overlaps(x.shape[2:], out.shape[2 + len(kernel) :], kernel, stride, low, dilation):
        np.copyto(out[:, :, *tap, *windows], x[:, :, *pixels])


@formula(_folded)
def fold_windows(x, kernel, stride, low, dilation, out):
    """out (N, C, *spatial) = the sum of windows x (N, C, *kernel, *blocks), each added where unfold read it."""
    blocks = x.shape[2 + len(kernel) :]
    if is_half(out.dtype) and out.flags.c_contiguous and x.flags.c_contiguous:
        planes = x.reshape(-1, *x.shape[2:])
        sum_halves(
            lambda number, windows: planes[(windows[0], *np.unravel_index(number, kernel), *windows[1:])],
            blocks,
            (kernel, stride, low, dilation),
            None,
            out.reshape(-1, *out.shape[2:]),
        )
        return
    out.fill(0)
    for _, tap, windows, pixels in overlaps(out.shape[2:], blocks, kernel, stride, low, dilation):
        target = out[:, :, *pixels]
        np.add(target, x[:, :, *tap, *windows], out=target)
