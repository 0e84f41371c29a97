"""CUDA source of the kernels over lines of classes, and how they are launched.

A line is one class axis of (outer, class, inner). Each line has a warp if inner is 1, else a thread, so that neighbouring
threads read neighbouring numbers. There are no atomics: the same input gives the same bits.
"""

from __future__ import annotations

from . import raw
from .raw import BLOCKS, WARPS

_THREADS, _ONE_BLOCK = 128, 1024

_SOURCE = (
    f"{WARPS}{BLOCKS}"
    + """
#define STRIDES(x) wide x##0, wide x##1, wide x##2
#define LINE(total) \\
    const wide line = FIRST / LANES; \\
    const int lane = threadIdx.x % LANES; \\
    if (line >= (total)) return;  /* whole warps leave together */ \\
    const wide o = line / inner, j = line % inner;
#define CLASSES(c) ALONG(c, classes)

__device__ inline A highest(const T* x, wide x1, wide classes, int lane) {
    A top = (A)(-1.0 / 0.0);
    CLASSES(c) top = max(top, (A)x[c * x1]);
    return lane_max(top);
}
__device__ inline A sum_exp(const T* x, wide x1, A shift, wide classes, int lane) {  // of x - shift
    A sum = 0;
    CLASSES(c) sum += exp((A)x[c * x1] - shift);
    return lane_sum(sum);
}

extern "C" __global__ void softmax(const T* x, STRIDES(x), T* y, STRIDES(y), int log_, wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    const T* p = x + o * x0 + j * x2;
    T* q = y + o * y0 + j * y2;
    const A top = highest(p, x1, classes, lane), sum = sum_exp(p, x1, top, classes, lane), shift = log(sum);
    CLASSES(c) q[c * y1] = (T)(log_ ? (A)p[c * x1] - top - shift : exp((A)p[c * x1] - top) / sum);
}

extern "C" __global__ void softmax_backward(const T* g, STRIDES(g), const T* y, STRIDES(y), T* r, STRIDES(r),
                                            int log_, wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    g += o * g0 + j * g2; y += o * y0 + j * y2; r += o * r0 + j * r2;
    A sum = 0;
    CLASSES(c) sum += log_ ? (A)g[c * g1] : (A)g[c * g1] * (A)y[c * y1];
    sum = lane_sum(sum);
    CLASSES(c) {
        const A a = (A)g[c * g1], b = (A)y[c * y1];
        r[c * r1] = (T)(log_ ? a - exp(b) * sum : b * (a - sum));
    }
}

// lse, and with a target the loss of each line; a target outside of the classes gives nan
extern "C" __global__ void cross_entropy(const T* x, STRIDES(x), const I* t, wide t0, wide t1, const A* w, wide ignore,
                                         double smoothing, A* lse, A* rows, wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    x += o * x0 + j * x2;
    const A top = highest(x, x1, classes, lane), log_sum = log(sum_exp(x, x1, top, classes, lane));
    A heavy = 0, dot = 0;
    if (lane == 0) lse[line] = log_sum + top;
    if (!rows) return;
    const wide goal = t[o * t0 + j * t1];
    if (smoothing != 0) {
        CLASSES(c) {
            const A weight = w ? w[c] : (A)1;
            heavy += weight;
            dot += weight * ((A)x[c * x1] - top);
        }
        heavy = lane_sum(heavy);
        dot = lane_sum(dot);
    }
    if (lane) return;
    if (goal == ignore) { rows[line] = 0; return; }
    if (goal < 0 || goal >= classes) { rows[line] = (A)(0.0 / 0.0); return; }
    const A own = (w ? w[goal] : (A)1) * (log_sum - ((A)x[goal * x1] - top));
    rows[line] = (A)(1 - smoothing) * own + (A)(smoothing / classes) * (heavy * log_sum - dot);
}

// part of the classes of each line, from first on: lse goes on from what it was, picked is added to
extern "C" __global__ void fold_scores(const T* x, STRIDES(x), const I* t, wide t0, wide t1, const A* w, wide ignore,
                                       double smoothing, wide first, wide every, A* lse, A* picked, wide outer, wide classes,
                                       wide inner) {
    LINE(outer * inner)
    x += o * x0 + j * x2;
    const A top = highest(x, x1, classes, lane), sum = log(sum_exp(x, x1, top, classes, lane)) + top;
    A dot = 0;
    if (smoothing != 0) CLASSES(c) dot += (w ? w[first + c] : (A)1) * (A)x[c * x1];
    dot = lane_sum(dot);
    if (lane) return;
    const wide goal = t[o * t0 + j * t1];
    const A before = lse[line], most = max(before, sum);
    lse[line] = isinf(before) ? sum : most + log(exp(before - most) + exp(sum - most));
    A own = (A)(smoothing / every) * dot;
    if (goal != ignore && goal >= first && goal < first + classes)
        own += (A)(1 - smoothing) * (w ? w[goal] : (A)1) * (A)x[(goal - first) * x1];
    picked[line] += own;
}

extern "C" __global__ void finish_scores(const I* t, wide t0, wide t1, const A* w, wide ignore, double smoothing, const A* lse,
                                         A* picked, wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    A heavy = 0;
    if (smoothing != 0) CLASSES(c) heavy += w ? w[c] : (A)1;
    heavy = lane_sum(heavy);
    if (lane) return;
    const wide goal = t[o * t0 + j * t1];
    if (goal == ignore) { picked[line] = 0; return; }
    if (goal < 0 || goal >= classes) { picked[line] = (A)(0.0 / 0.0); return; }
    const A scale = (A)(1 - smoothing) * (w ? w[goal] : (A)1) + (A)(smoothing / classes) * heavy;
    picked[line] = scale * lse[line] - picked[line];
}

// the sum of e**(x - lse) of a whole line: 1 but for the rounding of lse, which is much of its logarithm where scores are huge
__device__ inline A left_out(const T* x, wide x1, A lse, wide classes, int lane) {
    return lse >= -64 && lse <= 64 ? (A)1 : sum_exp(x, x1, lse, classes, lane);
}

extern "C" __global__ void cross_entropy_backward(const T* gy, wide g0, wide g1, const T* x, STRIDES(x), const A* lse,
                                                  const I* t, wide t0, wide t1, const A* w, wide ignore, double smoothing,
                                                  const A* norm, wide first, wide every, T* r, STRIDES(r), wide outer,
                                                  wide classes, wide inner) {
    LINE(outer * inner)
    x += o * x0 + j * x2; r += o * r0 + j * r2;
    const wide goal = t[o * t0 + j * t1];
    const bool inside = goal >= 0 && goal < every;
    const A g = goal == ignore ? (A)0 : inside ? (A)gy[o * g0 + j * g1] / (norm ? *norm : (A)1) : (A)(0.0 / 0.0);
    const A own = goal == ignore || !inside ? g : g * (w ? w[goal] : (A)1) * (A)(1 - smoothing);
    const A even = smoothing != 0 ? g * (A)(smoothing / every) : (A)0;
    A heavy = (A)every;
    if (w && smoothing != 0) {
        heavy = 0;
        for (wide c = lane; c < every; c += LANES) heavy += w[c];
        heavy = lane_sum(heavy);
    }
    const A low = lse[line], left = classes == every ? left_out(x, x1, low, classes, lane) : (A)1;
    const A scale = (own + even * heavy) / left;
    CLASSES(c) {
        A value = scale * exp((A)x[c * x1] - low);
        if (smoothing != 0) value -= even * (w ? w[first + c] : (A)1);
        if (first + c == goal) value -= own;
        r[c * r1] = (T)value;
    }
}

// mode 0: the loss of each line; 1: the gradient of x; 2: the gradient of the target
extern "C" __global__ void soft_cross_entropy(int mode, const T* gy, wide g0, wide g1, double count, const T* x, STRIDES(x),
                                              const T* t, STRIDES(t), const A* w, double smoothing, const A* lse, A* rows, T* r,
                                              STRIDES(r), wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    x += o * x0 + j * x2; t += o * t0 + j * t2;
    const A low = lse[line], more = log(left_out(x, x1, low, classes, lane));
    const A keep = (A)(1 - smoothing), even = (A)(smoothing / classes);
    const A g = mode ? (A)gy[o * g0 + j * g1] / (A)count : (A)0;
    A sum = 0;
    if (mode < 2) {
        CLASSES(c) sum += (w ? w[c] : (A)1) * (keep * (A)t[c * t1] + even) * (mode ? (A)1 : low - (A)x[c * x1] + more);
        sum = lane_sum(sum);
    }
    if (mode == 0) {
        if (lane == 0) rows[line] = sum;
        return;
    }
    r += o * r0 + j * r2;
    CLASSES(c) {
        const A weight = w ? w[c] : (A)1, logs = (A)x[c * x1] - low - more;
        r[c * r1] = (T)(mode == 1 ? g * (exp(logs) * sum - weight * (keep * (A)t[c * t1] + even)) : -g * keep * weight * logs);
    }
}

// with gy: r, zeros before, at the targets; without: the loss of each line
extern "C" __global__ void nll(const T* gy, wide g0, wide g1, const T* x, STRIDES(x), const I* t, wide t0, wide t1, const A* w,
                               wide ignore, const A* norm, A* rows, T* r, STRIDES(r), wide outer, wide classes, wide inner) {
    LINE(outer * inner)
    if (lane) return;
    const wide goal = t[o * t0 + j * t1];
    const bool inside = goal >= 0 && goal < classes;
    if (!gy) {
        rows[line] = goal == ignore ? (A)0
                     : inside       ? -(w ? w[goal] : (A)1) * (A)x[o * x0 + goal * x1 + j * x2]
                                    : (A)(0.0 / 0.0);
    } else if (goal != ignore && inside) {
        const A g = (A)gy[o * g0 + j * g1] / (norm ? *norm : (A)1);
        r[o * r0 + goal * r1 + j * r2] = (T)(-g * (w ? w[goal] : (A)1));
    }
}

// one block: out = the sum of the weights of all targets that are not ignored, or (without targets) of rows over norm or count
extern "C" __global__ void total(const I* t, wide t0, wide t1, const A* w, wide ignore, const A* rows, const A* norm,
                                 double count, double smoothing, T* out_t, A* out_a, wide outer, wide classes, wide inner) {
    double sum = 0;
    for (wide i = threadIdx.x; i < outer * inner; i += blockDim.x) {
        if (rows) { sum += rows[i]; continue; }
        const wide goal = t[i / inner * t0 + i % inner * t1];
        if (goal != ignore) sum += !w ? 1.0 : goal >= 0 && goal < classes ? (double)w[goal] : 0.0 / 0.0;
    }
    sum = block_sum(sum);
    if (threadIdx.x) return;
    if (smoothing != 0 && sum == 0) sum = 0.0 / 0.0;  // one of the two terms that it divides is 0 / 0
    sum /= (norm ? (double)*norm : count);
    if (out_t) *out_t = (T)(A)sum;
    if (out_a) *out_a = (A)sum;
}
"""
)


def strides(a):
    """The strides of ``a`` in elements."""
    return tuple(s // a.itemsize for s in a.strides)


def launch(name, kind, shape, *arguments, index="l"):
    """Run a kernel over the lines of ``shape``, of arrays whose dtype character is ``kind``; ``index`` is the targets'."""
    outer, classes, inner = map(int, shape)
    lanes = 32 if inner == 1 and name != "nll" else 1
    threads = total = _ONE_BLOCK
    if name != "total":
        threads, total = _THREADS, outer * inner * lanes
    meanings = raw.types(kind) | {"I": raw.NAMES[index], "LANES": lanes}
    raw.launch(_SOURCE, name, meanings, total, *arguments, outer, classes, inner, threads=threads)


def seed(gy):
    """A gradient and its two strides; a single number is used for all lines."""
    return (gy, 0, 0) if gy.ndim == 0 else (gy, *strides(gy))
