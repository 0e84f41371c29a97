"""Values of images at places between their pixels, on a GPU. ``kernels/numpy/sample.py`` explains corners, weights and slopes.

Sums have a fixed order: one thread computes an output, a place's gradient, or a plane of the input's gradient.
"""

from __future__ import annotations

from math import prod as _prod

from .fused import Fused

_MODES = {"nearest": 0, "bilinear": 1, "bicubic": 2}
_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
_SOURCE = """
template <typename W> struct Corners { int taps; long long at[4]; W weight[4]; W bend[4]; W slope; };

template <typename W> __device__ W sample_padded(W u, W& slope, long long size, int padding, bool align) {
    if (padding == 2) {
        const W low = align ? W(0) : W(-0.5), span = align ? W(size - 1) : W(size);
        u -= low;
        if (u < 0) { u = -u; slope = -slope; }
        if (span > 0) {
            const W flips = floor(u / span);
            u -= flips * span;
            if (fmod(flips, W(2)) != 0) { u = span - u; slope = -slope; }
        } else u = 0;
        u += low;
    }
    if (padding) {
        if (u <= 0) { u = 0; slope = 0; }
        if (u >= W(size - 1)) { u = W(size - 1); slope = 0; }
    }
    return isnan(u) ? W(-100) : fmin(fmax(u, W(-1e30)), W(1e30));
}

template <typename W> __device__ void sample_cubic(W t, int part, W& weight, W& bend) {
    const W a = W(-0.75);
    const bool inner = part == 0 || part == 1;
    const W d = fabs(t - W(part)), sign = part <= 0 ? W(1) : W(-1);
    if (inner) {
        weight = ((a + 2) * d - (a + 3)) * d * d + 1;
        bend = sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
    } else {
        weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        bend = sign * ((3 * a * d - 10 * a) * d + 8 * a);
    }
}

template <typename W> __device__ Corners<W> sample_axis(W place, long long size, int mode, int padding, bool align) {
    Corners<W> c;
    c.slope = align ? W(size - 1) / 2 : W(size) / 2;
    W u = (place + 1) * c.slope - (align ? W(0) : W(0.5)), unused = 0;
    u = sample_padded<W>(u, mode == 2 ? unused : c.slope, size, mode == 2 ? 0 : padding, align);
    if (isnan(padding == 2 ? place - place : place)) c.slope = place - place;
    const W first = mode == 0 ? rint(u) : floor(u);
    c.taps = mode == 0 ? 1 : mode == 1 ? 2 : 4;
    for (int k = 0; k < c.taps; ++k) {
        const int part = mode == 2 ? k - 1 : k;
        W at = first + part;
        c.weight[k] = 1;
        c.bend[k] = 0;
        if (mode == 1) { c.weight[k] = k ? u - first : 1 - (u - first); c.bend[k] = k ? 1 : -1; }
        if (mode == 2) {
            sample_cubic<W>(u - first, part, c.weight[k], c.bend[k]);
            at = sample_padded<W>(at, unused, size, padding, align);
        }
        c.at[k] = at >= 0 && at <= W(size - 1) ? (long long)at : -1;
    }
    return c;
}

template <typename W> __device__ Corners<W> sample_flat() {
    Corners<W> c;
    c.taps = 1; c.at[0] = 0; c.weight[0] = 1; c.bend[0] = 0; c.slope = 0;
    return c;
}

template <typename W, typename G> __device__ void sample_axes(
    const G& grid, long long point, int d, long long id, long long ih, long long iw, int mode, int padding, bool align,
    Corners<W>& z, Corners<W>& y, Corners<W>& x) {
    x = sample_axis<W>(W(grid[point * d]), iw, mode, padding, align);
    y = sample_axis<W>(W(grid[point * d + 1]), ih, mode, padding, align);
    z = d == 3 ? sample_axis<W>(W(grid[point * d + 2]), id, mode, padding, align) : sample_flat<W>();
}
"""
_LOOPS = """
for (int a = 0; a < z.taps; ++a) for (int b = 0; b < y.taps; ++b) for (int c = 0; c < x.taps; ++c) {
    if (z.at[a] < 0 || y.at[b] < 0 || x.at[c] < 0) continue;
    const long long pixel = (z.at[a] * ih + y.at[b]) * iw + x.at[c];
    const W weight = z.weight[a] * y.weight[b] * x.weight[c];
    %s
}
"""
_SIZES = "int64 count, int64 points, int64 id, int64 ih, int64 iw, int32 d, int32 mode, int32 padding, bool align"
_AXES = """
Corners<W> z, y, x;
sample_axes<W>(grid, %s, d, id, ih, iw, mode, padding, align, z, y, x);
"""
_sample = Fused(
    f"raw T image, raw T grid, {_SIZES}",
    "T out",
    "typedef typename Wide<T>::type W;\nconst long long plane = i / points;\nW sum = 0;\n"
    + _AXES % "plane / count * points + i % points"
    + _LOOPS % "sum += weight * W(image[plane * id * ih * iw + pixel]);"
    + "const W slopes = z.slope + y.slope + x.slope;\nout = T(isnan(slopes) ? slopes : sum);",  # nan where a place is nan
    "tinygrad_mem_grid_sample",
    preamble=_SOURCE,
)
_sample_input = Fused(
    f"raw T gy, raw T grid, {_SIZES}",
    "raw W sums",
    "for (long long p = 0; p < points; ++p) {\n"
    + "const W g = W(gy[i * points + p]);\n"
    + _AXES % "i / count * points + p"
    + _LOOPS % "sums[i * id * ih * iw + pixel] += weight * g;"
    + "}",
    "tinygrad_mem_grid_sample_input",
    preamble=_SOURCE,
)
_sample_grid = Fused(
    f"raw T gy, raw T image, raw T grid, {_SIZES}",
    "raw T out",
    "typedef typename Wide<T>::type W;\nconst long long n = i / points;\nW gz = 0, gv = 0, gu = 0;\n"
    + _AXES % "i"
    + _LOOPS
    % """W dot = 0;
    for (long long k = n * count; k < (n + 1) * count; ++k)
        dot += W(image[k * id * ih * iw + pixel]) * W(gy[k * points + i % points]);
    gz += dot * z.bend[a] * y.weight[b] * x.weight[c];
    gv += dot * z.weight[a] * y.bend[b] * x.weight[c];
    gu += dot * z.weight[a] * y.weight[b] * x.bend[c];"""
    + """
const W slopes = z.slope + y.slope + x.slope;
const W nowhere = isnan(slopes) ? slopes : W(0);
out[i * d] = T(gu * x.slope + nowhere);
out[i * d + 1] = T(gv * y.slope + nowhere);
if (d == 3) out[i * d + 2] = T(gz * z.slope + nowhere);
""",
    "tinygrad_mem_grid_sample_grid",
    preamble=_SOURCE,
)


def _options(shape, grid, mode, padding, align):
    """The arguments of all three kernels: channels, points, sizes of an image, and how it is read."""
    sizes = [1] * (5 - len(shape)) + [int(s) for s in shape[2:]]
    return int(shape[1]), _prod(grid.shape[1:-1]), *sizes, int(grid.shape[-1]), _MODES[mode], _PADDINGS[padding], align


def grid_sample(x, grid, mode, padding, align, out):
    if out.size:
        _sample(x, grid, *_options(x.shape, grid, mode, padding, align), out)


def grid_sample_input_workspace(shape, dtype):
    """Bytes of workspace for :func:`grid_sample_input`: the sums of half precision."""
    return 4 * _prod(shape) if dtype.itemsize == 2 else 0


def grid_sample_input(gy, grid, mode, padding, align, work, out):
    out.fill(0)
    if not out.size or not gy.size:
        return
    sums = out if work is None else work.view("float32")
    if work is not None:
        sums.fill(0)
    planes = int(out.shape[0] * out.shape[1])
    _sample_input(gy, grid, *_options(out.shape, grid, mode, padding, align), sums, size=planes)
    if work is not None:
        out[...] = sums.reshape(out.shape)


def grid_sample_grid(gy, x, grid, mode, padding, align, out):
    out.fill(0)
    if not gy.size or mode == "nearest":
        return
    _sample_grid(gy, x, grid, *_options(x.shape, grid, mode, padding, align), out, size=grid.size // grid.shape[-1])
