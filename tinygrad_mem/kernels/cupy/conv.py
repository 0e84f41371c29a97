"""Convolution on the GPU: columns of one tile after another in a bounded workspace, and cuBLAS.

float16 operands are multiplied as float16 and accumulated in float32. The gradient of the input is gathered, without atomics,
so each run has the same results. Grouped convolutions use one thread per output.
"""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from ..numpy.fast.conv_geometry import Geometry, lift
from ..numpy.fast.windows import overlaps
from . import blas as _blas
from . import raw
from .conv_source import SOURCE

_WORKSPACE = 64 << 20  # bytes, at most, unless the least possible tile is larger


def _launch(name, x, count, arguments):
    """Run a kernel of x's dtype with one thread per element; if ``count`` is too large, each thread takes several."""
    raw.launch(SOURCE, name, raw.types(x.dtype.char), count, *arguments, threads=256, most=1 << 20)


def _run(name, geo, x, count, *arguments, channels=None):
    """:func:`_launch` of a kernel that first takes the geometry."""
    sizes = (channels or geo.cin, *geo.inside, *geo.outside, *geo.kernel, *geo.stride, *geo.low, *geo.dilation)
    _launch(name, x, count, (*map(np.int32, sizes), *arguments))


def _run_grouped(name, geo, x, count, *arguments):
    _run(name, geo, x, count, *arguments, geo.images, np.int32(geo.groups), np.int32(geo.cout))


def _steps(x):
    """Element strides of (N, C, three axes)."""
    image, channel, *spatial = (s // x.itemsize for s in x.strides)
    return (image, channel, *lift(tuple(spatial), 0))


class _Tile(NamedTuple):
    """A tile: images, output pixels of one image, input channels."""

    images: int
    pixels: int
    channels: int

    def tiles(self, geo):
        """(first image, images, first pixel, pixels) of each tile."""
        for n in range(0, geo.images, self.images):
            for first in range(0, geo.pixels, self.pixels):
                yield n, min(self.images, geo.images - n), first, min(self.pixels, geo.pixels - first)


def _plan(geo, kind, itemsize):
    """The largest tile within the workspace."""
    room = _WORKSPACE // itemsize
    if kind == "weight":
        room -= geo.cout * geo.cin * geo.taps * 4 // itemsize
    depth = geo.cin * geo.taps + (geo.cout if kind == "weight" else 0)
    room = max(room, depth)
    if depth * geo.pixels <= room:
        return _Tile(min(room // (depth * geo.pixels), geo.images), geo.pixels, geo.cin)
    if kind == "input":  # columns of whole images, of some channels
        return _Tile(1, geo.pixels, max(room // (geo.taps * geo.pixels), 1))
    return _Tile(1, max(room // depth // 256 * 256, min(room // depth, 256)), geo.cin)


def conv_workspace(kind, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype):
    geo = Geometry.of(x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype)
    if groups > 1 or 0 in x_shape or 0 in y_shape or 0 in w_shape:
        return 1
    plan = _plan(geo, kind, dtype.itemsize)
    count = plan.channels * geo.taps + (geo.cout if kind == "weight" else 0)
    total = dtype.itemsize * plan.images * plan.pixels * count
    if kind == "weight":
        total += -(-total // 4) * 4 - total + (4 * geo.cout * geo.cin * geo.taps if dtype.itemsize == 2 else 0)
    return total


def _columns(geo, x, cols, images, first, pixels, by_image, by_row):
    """Fill ``cols`` with the windows of x, images and pixels of one tile."""
    total = images * geo.cin * geo.taps * pixels
    _run("conv_columns", geo, x, total, x, *_steps(x), cols, images, first, pixels, by_image, by_row)


def _is_empty(x, w, bias, out):
    """True if nothing is multiplied. Then out is written: the bias, or 0."""
    if x.size and w.size and out.size:
        return False
    if bias is None:
        out.fill(0)
    elif out.size:
        cupy.copyto(out, bias.reshape(-1, *(1,) * (out.ndim - 2)))
    return True


def conv_forward(x, w, bias, stride, low, dilation, groups, work, out):
    if _is_empty(x, w, bias, out):
        return
    geo = Geometry.of(x.shape, w.shape, out.shape, stride, low, dilation, groups, x.dtype)
    if groups > 1:
        _run_grouped("conv_grouped", geo, x, out.size, x, *_steps(x), w, bias, out)
        return
    plan = _plan(geo, "forward", x.itemsize)
    depth = geo.cin * geo.taps
    weight, y = w.reshape(1, geo.cout, depth), out.reshape(geo.images, geo.cout, geo.pixels)
    buffer = work.view(x.dtype)
    for n, images, first, pixels in plan.tiles(geo):
        cols = buffer[: images * depth * pixels].reshape(images, depth, pixels)
        _columns(geo, x[n : n + images], cols, images, first, pixels, depth * pixels, pixels)
        _blas.gemm(weight, cols, y[n : n + images, :, first : first + pixels])
    if bias is not None:
        cupy.add(y, bias[:, None], out=y)


def conv_backward_input(gy, w, bias, stride, low, dilation, groups, work, out):
    if _is_empty(gy, w, bias, out):
        return
    geo = Geometry.of(out.shape, w.shape, gy.shape, stride, low, dilation, groups, gy.dtype)
    if groups > 1:
        _run_grouped("conv_grouped_input", geo, gy, out.size, gy, w, bias, out)
        return
    plan = _plan(geo, "input", gy.itemsize)
    weight, buffer = w.reshape(1, geo.cout, geo.cin * geo.taps), work.view(gy.dtype)
    gradient = gy.reshape(geo.images, geo.cout, geo.pixels)
    area = out[0, 0].size
    for n in range(0, geo.images, plan.images):
        images = min(plan.images, geo.images - n)
        for c in range(0, geo.cin, plan.channels):
            channels = min(plan.channels, geo.cin - c)
            rows = channels * geo.taps
            cols = buffer[: images * rows * geo.pixels].reshape(images, rows, geo.pixels)
            part = weight[:, :, c * geo.taps : c * geo.taps + rows].transpose(0, 2, 1)
            _blas.gemm(part, gradient[n : n + images], cols)
            target = out[n : n + images, c : c + channels]
            added = None if bias is None else bias[c : c + channels]
            arguments = (cols, added, target, images, geo.cin * area, area)
            _run("conv_gather", geo, gy, images * channels * area, *arguments, channels=channels)


def conv_backward_weight(gy, x, stride, low, dilation, groups, work, out):
    if _is_empty(gy, x, None, out):
        return
    geo = Geometry.of(x.shape, out.shape, gy.shape, stride, low, dilation, groups, x.dtype)
    if groups > 1:
        _run_grouped("conv_grouped_weight", geo, gy, out.size * 256, gy, x, *_steps(x), out)
        return
    plan, depth = _plan(geo, "weight", gy.itemsize), geo.cin * geo.taps
    gradient = gy.reshape(geo.images, geo.cout, geo.pixels)
    total = out.reshape(1, geo.cout, depth)
    end = work.size
    if gy.itemsize == 2:
        end -= 4 * geo.cout * depth
        total = work[end:].view("f").reshape(1, geo.cout, depth)
    buffer = work[: end // gy.itemsize * gy.itemsize].view(gy.dtype)
    add = False
    for n, images, first, pixels in plan.tiles(geo):
        width = images * pixels
        cols = buffer[: depth * width].reshape(depth, width)
        tile = buffer[depth * width : (depth + geo.cout) * width].reshape(geo.cout, images, pixels)
        _columns(geo, x[n : n + images], cols, images, first, pixels, pixels, width)
        cupy.copyto(tile, gradient[n : n + images, :, first : first + pixels].transpose(1, 0, 2))
        _blas.gemm(tile.reshape(1, geo.cout, width), cols[None].transpose(0, 2, 1), total, beta=add)
        add = True
    if gy.itemsize == 2:
        cupy.copyto(out, total.reshape(out.shape), casting="unsafe")


def conv_backward_bias(gy, out):
    if out.size == 0:
        return
    pixels = gy[0, 0].size if gy.size else 0
    _launch("conv_channel_sum", gy, gy.shape[1] * 256, (gy, out, gy.shape[0], gy.shape[1], pixels))


def unfold_windows(x, kernel, stride, low, dilation, out):
    out.fill(0)
    for _, tap, windows, pixels in overlaps(x.shape[2:], out.shape[2 + len(kernel) :], kernel, stride, low, dilation):
        cupy.copyto(out[:, :, *tap, *windows], x[:, :, *pixels])


def fold_windows(x, kernel, stride, low, dilation, out):
    if out.size == 0 or x.size == 0:
        out.fill(0)
        return
    blocks = (*x.shape[:2], *x.shape[2 + len(kernel) :])
    geo = Geometry.of(out.shape, (1, out.shape[1], *kernel), blocks, stride, low, dilation, 1, x.dtype)
    area = out[0, 0].size
    _run("conv_gather", geo, x, out.size, x, None, out, geo.images, geo.cin * area, area)
