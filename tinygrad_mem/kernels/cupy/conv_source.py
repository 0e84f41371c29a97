"""CUDA source of the convolution kernels; T is how numbers are stored, A how they are summed. Nothing here is atomic."""

from __future__ import annotations

from .raw import BLOCKS

SOURCE = (
    f"{BLOCKS}"
    + """
// what every kernel takes first: the input's channels (of a group) and extent, the output's extent; kernel, stride, low padding
// and dilation
#define GEOMETRY int c, int id, int ih, int iw, int od, int oh, int ow, int kd, int kh, int kw, int sd, int sh, int sw, \\
    int ld, int lh, int lw, int dd, int dh, int dw

// along an axis: the taps, and the output pixels o, that read the pixel at (low padding included)
#define READING(tap, o, at, k, s, d, n) \\
    for (int tap = 0, o; tap < k; ++tap) if (o = at - tap * d, o >= 0 && o % s == 0 && (o /= s) < n)
#define READING_ALL READING(a, pd, d, kd, sd, dd, od) READING(b, ph, h, kh, sh, dh, oh) READING(e, pw, w, kw, sw, dw, ow)

// cols[n * sn + (ci * taps + tap) * sk + p] = the pixel that output pixel first + p of image n sees through the tap, or 0
extern "C" __global__ void conv_columns(GEOMETRY, const T* x, wide x0, wide x1, wide x2, wide x3, wide x4, T* cols,
                                        wide images, wide first, wide pixels, wide sn, wide sk) {
    const wide taps = (wide)kd * kh * kw, total = images * c * taps * pixels;
    EACH(i, total) {
        wide p = i % pixels, rest = i / pixels;
        const wide tap = rest % taps; rest /= taps;
        const wide ci = rest % c, n = rest / c;
        const wide pixel = first + p;
        const wide w = (pixel % ow) * sw - lw + (tap % kw) * dw;
        const wide h = (pixel / ow % oh) * sh - lh + (tap / kw % kh) * dh;
        const wide d = (pixel / ow / oh) * sd - ld + (tap / kw / kh) * dd;
        const bool inside = w >= 0 && w < iw && h >= 0 && h < ih && d >= 0 && d < id;
        cols[n * sn + (ci * taps + tap) * sk + p] = inside ? x[n * x0 + ci * x1 + d * x2 + h * x3 + w * x4] : (T)0.0f;
    }
}

// y[n * y0 + ci * y1 + pixel] = the bias plus the columns (image, ci * taps + tap, output pixel) that read this pixel
extern "C" __global__ void conv_gather(GEOMETRY, const T* cols, const T* bias, T* y, wide images, wide y0, wide y1) {
    const wide taps = (wide)kd * kh * kw, area = (wide)id * ih * iw, out = (wide)od * oh * ow, total = images * c * area;
    EACH(i, total) {
        const wide pixel = i % area, ci = i / area % c, n = i / area / c;
        const int w = pixel % iw + lw, h = pixel / iw % ih + lh, d = pixel / iw / ih + ld;
        A sum = bias ? (A)bias[ci] : (A)0;
        READING_ALL {
            const wide tap = ((wide)a * kh + b) * kw + e;
            sum += (A)cols[((n * c + ci) * taps + tap) * out + ((wide)pd * oh + ph) * ow + pw];
        }
        y[n * y0 + ci * y1 + pixel] = (T)sum;
    }
}

// Convolutions of groups, one thread an output: for depthwise ones, where a matrix product would have one row.
extern "C" __global__ void conv_grouped(GEOMETRY, const T* x, wide x0, wide x1, wide x2, wide x3, wide x4, const T* w,
                                        const T* bias, T* y, wide images, int groups, int cout) {
    const wide taps = (wide)kd * kh * kw, area = (wide)od * oh * ow, total = images * groups * cout * area;
    EACH(i, total) {
        const wide pixel = i % area, o = i / area % (groups * (wide)cout), n = i / area / (groups * (wide)cout);
        const T* from = x + n * x0 + o / cout * c * x1;
        const T* weight = w + o * c * taps;
        const int q = pixel % ow * sw - lw, p = pixel / ow % oh * sh - lh, r = pixel / ow / oh * sd - ld;
        A sum = bias ? (A)bias[o] : (A)0;
        for (int ci = 0; ci < c; ++ci, from += x1)
            for (int a = 0; a < kd; ++a) {
                const int d = r + a * dd;
                for (int b = 0; b < kh; ++b) {
                    const int h = p + b * dh;
                    for (int e = 0; e < kw; ++e, ++weight) {
                        const int v = q + e * dw;
                        if (d >= 0 && d < id && h >= 0 && h < ih && v >= 0 && v < iw)
                            sum += (A)*weight * (A)from[d * x2 + h * x3 + v * x4];
                    }
                }
            }
        y[i] = (T)sum;
    }
}

extern "C" __global__ void conv_grouped_input(GEOMETRY, const T* gy, const T* weight, const T* bias, T* gx, wide images,
                                              int groups, int cout) {
    const wide taps = (wide)kd * kh * kw, area = (wide)id * ih * iw, out = (wide)od * oh * ow;
    const wide total = images * groups * c * area;
    EACH(i, total) {
        const wide pixel = i % area, channel = i / area % (groups * (wide)c), n = i / area / (groups * (wide)c);
        const wide g = channel / c, ci = channel % c;
        const int w = pixel % iw + lw, h = pixel / iw % ih + lh, d = pixel / iw / ih + ld;
        A sum = bias ? (A)bias[channel] : (A)0;
        READING_ALL {
            const wide tap = ((wide)a * kh + b) * kw + e, at = ((wide)pd * oh + ph) * ow + pw;
            for (int o = 0; o < cout; ++o) {
                const wide of = g * cout + o;
                sum += (A)gy[(n * groups * cout + of) * out + at] * (A)weight[(of * c + ci) * taps + tap];
            }
        }
        gx[i] = (T)sum;
    }
}

// One block a weight: its threads share images and pixels, and add their sums.
extern "C" __global__ void conv_grouped_weight(GEOMETRY, const T* gy, const T* x, wide x0, wide x1, wide x2, wide x3, wide x4,
                                               T* gw, wide images, int groups, int cout) {
    const wide taps = (wide)kd * kh * kw, out = (wide)od * oh * ow, total = groups * (wide)cout * c * taps;
    for (wide i = blockIdx.x; i < total; i += gridDim.x) {
        const wide tap = i % taps, ci = i / taps % c, o = i / taps / c;
        const T* from = x + (o / cout * c + ci) * x1;
        const int a = tap / kw / kh * dd - ld, b = tap / kw % kh * dh - lh, e = tap % kw * dw - lw;
        A sum = 0;
        for (wide j = threadIdx.x; j < images * out; j += 256) {
            const wide n = j / out, pixel = j % out;
            const wide d = pixel / ow / oh * sd + a, h = pixel / ow % oh * sh + b, v = pixel % ow * sw + e;
            if (d >= 0 && d < id && h >= 0 && h < ih && v >= 0 && v < iw)
                sum += (A)gy[(n * groups * cout + o) * out + pixel] * (A)from[n * x0 + d * x2 + h * x3 + v * x4];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) gw[i] = (T)sum;
    }
}

// One block a channel.
extern "C" __global__ void conv_channel_sum(const T* gy, T* gb, wide images, wide channels, wide pixels) {
    const wide o = blockIdx.x;
    A sum = 0;
    for (wide j = threadIdx.x; j < images * pixels; j += 256) sum += (A)gy[(j / pixels * channels + o) * pixels + j % pixels];
    sum = block_sum(sum);
    if (threadIdx.x == 0) gb[o] = (T)sum;
}
"""
)
