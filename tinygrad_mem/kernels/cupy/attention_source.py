"""CUDA source of attention: the work on one tile of scores between two products of cuBLAS.

A tile is (heads, rows, columns), contiguous; each of its rows has a warp. There are no atomics: the same input gives the same
bits. Each score of the whole matrix has its own random number, so the mask of dropout does not depend on the tiles.
"""

from __future__ import annotations

from .philox import SOURCE as _PHILOX
from .raw import WARPS

SOURCE = (
    f"{WARPS}{_PHILOX}"
    + """
typedef unsigned long long count;
#define LOWEST ((A)(sizeof(A) == 8 ? -1.7976931348623157e308 : -3.4028234663852886e38))
#define NOTHING ((A)(-1.0 / 0.0))
// what hides scores: a mask (kind 1: bool, 2: added), the columns before and behind a row (-1: all)
// scores are bounded by cap, unless it is 0
#define SIGHT const void* mask, int kind, wide m0, wide m1, wide m2, double scale, double cap, wide row0, wide column0, \\
    wide left, wide right
#define SEEN mask, kind, m0, m1, m2, scale, cap, row0, column0, left, right
// dropout: the number of a score is base + head * head_step + row * row_step + column
#define DROPOUT double p, count seed, count call, wide base, wide head_step, wide row_step
#define SIZES wide heads, wide rows, wide columns
#define LINE \\
    const wide line = FIRST / LANES; \\
    const int lane = threadIdx.x % LANES; \\
    if (line >= heads * rows) return;  /* whole warps leave together */ \\
    const wide n = line / rows, i = line % rows;

__device__ inline A scored(A product, wide n, wide i, wide c, SIGHT) {
    const wide row = row0 + i, column = column0 + c;
    if ((left >= 0 && column < row - left) || (right >= 0 && column > row + right)) return NOTHING;
    const wide place = n * m0 + i * m1 + c * m2;
    if (kind == 1 && !((const bool*)mask)[place]) return NOTHING;
    const A score = product * (A)scale;
    return (cap == 0 ? score : tanh(score / (A)cap) * (A)cap) + (kind == 2 ? (A)((const T*)mask)[place] : (A)0);
}

__device__ inline A kept(wide n, wide i, wide c, DROPOUT) {  // 1 / (1 - p), or 0
    if (p == 0) return 1;
    if (p == 1) return 0;
    const count place = (count)(base + n * head_step + i * row_step + c);
    return philox_uniform(philox_at(seed, call, place)) < (float)p ? (A)0 : (A)1 / ((A)1 - (A)p);
}

// one more tile of columns: weights = e**(score - top), what was summed before counts by the new top
extern "C" __global__ void attention_softmax(A* scores, T* weights, A* tops, A* totals, A* sums, wide width, int first,
                                             SIGHT, DROPOUT, SIZES) {
    LINE
    scores += line * columns; weights += line * columns;
    A best = NOTHING, total = 0;
    ALONG(c, columns) {
        scores[c] = scored(scores[c], n, i, c, SEEN);
        best = max(best, scores[c]);
    }
    const A before = first ? LOWEST : tops[line];
    const A top = max(lane_max(best), before);
    ALONG(c, columns) {
        const A e = exp(scores[c] - top);
        total += e;
        weights[c] = (T)(e * kept(n, i, c, p, seed, call, base, head_step, row_step));
    }
    total = lane_sum(total);
    const A factor = first ? (A)0 : exp(before - top);
    if (!first) ALONG(d, width) sums[line * width + d] *= factor;
    if (lane == 0) {
        tops[line] = top;
        totals[line] = (first ? (A)0 : totals[line] * factor) + total;
    }
}

// y = sums / total, 0 where nothing was seen; lse = top + ln(total), inf there
extern "C" __global__ void attention_finish(const A* tops, const A* totals, const A* sums, wide width, T* y, wide y0, wide y1,
                                            A* lse, wide l0, SIZES) {
    LINE
    const A total = totals[line];
    ALONG(d, width) y[n * y0 + i * y1 + d] = (T)(total == 0 ? (A)0 : sums[line * width + d] / total);
    if (lane == 0) lse[n * l0 + i] = total == 0 ? (A)(1.0 / 0.0) : tops[line] + log(total);
}

// inner = sum over the numbers of a head of gy * y
extern "C" __global__ void attention_inner(const T* gy, wide g0, wide g1, const T* y, wide y0, wide y1, wide width, A* inner,
                                           SIZES) {
    LINE
    A sum = 0;
    ALONG(d, width) sum += (A)gy[n * g0 + i * g1 + d] * (A)y[n * y0 + i * y1 + d];
    sum = lane_sum(sum);
    if (lane == 0) inner[line] = sum;
}

// scores become the softmax; weights = the softmax after dropout
extern "C" __global__ void attention_weights(A* scores, T* weights, const A* lse, wide l0, SIGHT, DROPOUT, SIZES) {
    LINE
    scores += line * columns; weights += line * columns;
    const A low = lse[n * l0 + i];
    ALONG(c, columns) {
        const A e = exp(scored(scores[c], n, i, c, SEEN) - low);
        scores[c] = e;
        weights[c] = (T)(e * kept(n, i, c, p, seed, call, base, head_step, row_step));
    }
}

// inner += sum over the columns of a tile of softmax * gradient; over the sum of the softmax after the last tile: what its
// weights are off by cancels
extern "C" __global__ void attention_means(const A* softmax, const A* slopes, A* inner, wide h0, A* totals, int last, DROPOUT,
                                           SIZES) {
    LINE
    softmax += line * columns; slopes += line * columns;
    A sum = 0, total = 0;
    ALONG(c, columns) {
        sum += softmax[c] * slopes[c] * kept(n, i, c, p, seed, call, base, head_step, row_step);
        total += softmax[c];
    }
    sum = lane_sum(sum);
    total = lane_sum(total);
    if (lane) return;
    sum += inner[n * h0 + i];
    total += totals[line];
    inner[n * h0 + i] = last && total > 0 ? sum / total : sum;
    totals[line] = total;
}

// from gy @ v.T in slopes: slopes = the gradient of the scores, scaled = that of the products q @ k.T. The softmax tells the
// score, and so the derivative of its tanh
extern "C" __global__ void attention_slopes(const A* softmax, A* slopes, T* scaled, const A* inner, wide h0, double scale,
                                            double cap, const A* lse, wide l0, DROPOUT, SIZES) {
    LINE
    softmax += line * columns; slopes += line * columns; scaled += line * columns;
    ALONG(c, columns) {
        const A e = slopes[c] * kept(n, i, c, p, seed, call, base, head_step, row_step);
        const A slope = softmax[c] * (e - inner[n * h0 + i]);
        slopes[c] = slope;
        const A bent = cap == 0 || softmax[c] == 0 ? (A)0 : (log(softmax[c]) + lse[n * l0 + i]) / (A)cap;
        scaled[c] = (T)(slope * (A)scale * (1 - bent * bent));
    }
}

// gmask += slopes; where g0 is 0 all heads share a mask
extern "C" __global__ void attention_mask(const A* slopes, A* gmask, wide g0, wide g1, SIZES) {
    const wide all = rows * columns;
    EACH(at, all) {
        A* target = gmask + at / columns * g1 + at % columns;
        for (wide n = 0; n < heads; ++n) target[n * g0] += slopes[n * all + at];
    }
}
"""
)
