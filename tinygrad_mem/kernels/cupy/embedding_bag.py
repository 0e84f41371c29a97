"""Sums, means and maxima of rows of a table, bag by bag. As in ``kernels/numpy/embedding_bag.py``.

There are no atomics: one thread computes one result, in order. Indices outside of the table give nan. Wrong offsets are
clamped, because checking them would make the host wait.
"""

from __future__ import annotations

import numpy as np

from . import raw

_SOURCE = """
#define NAN_OF ((A)(float)(0.0 / 0.0))

__device__ wide mark(const I* offsets, wide marks, wide bag, wide n, wide bags) {  // where a bag starts, the one before ends
    if (!offsets) return bag * (n / bags);
    if (bag >= marks) return n;
    const wide at = offsets[bag];
    return at < 0 ? 0 : at > n ? n : at;
}

extern "C" __global__ void bag_forward(const T* table, const I* index, wide n, const I* offsets, wide marks, const T* shares,
                                       int mean, wide padding, T* out, wide rows, wide bags, wide width) {
    EACH(i, bags * width) {
        const wide bag = i / width, k = i % width, stop = mark(offsets, marks, bag + 1, n, bags);
        A sum = 0;
        wide count = 0;
        for (wide at = mark(offsets, marks, bag, n, bags); at < stop; ++at) {
            const wide row = index[at];
            if (row == padding) continue;
            const A value = row >= 0 && row < rows ? (A)table[row * width + k] : NAN_OF;
            sum += shares ? value * (A)shares[at] : value;
            ++count;
        }
        out[i] = (T)(mean && count ? sum / (A)count : sum);
    }
}

extern "C" __global__ void bag_max(const T* table, const I* index, wide n, const I* offsets, wide marks, wide padding, T* out,
                                   P* places, wide rows, wide bags, wide width) {
    EACH(i, bags * width) {
        const wide bag = i / width, k = i % width, stop = mark(offsets, marks, bag + 1, n, bags);
        A best = 0;
        wide place = -1;
        for (wide at = mark(offsets, marks, bag, n, bags); at < stop; ++at) {
            const wide row = index[at];
            if (row == padding) continue;
            const bool inside = row >= 0 && row < rows;
            const A value = inside ? (A)table[row * width + k] : NAN_OF;
            if (place == -1 || !inside || value > best) {
                best = value;
                place = inside ? row : -2;
            }
            if (!inside) break;
        }
        out[i] = (T)best;
        places[i] = (P)(place < 0 ? -1 : place);
    }
}

extern "C" __global__ void bag_parts(const I* index, wide n, const I* offsets, wide marks, wide count, const T* shares,
                                     wide padding, int* bags, A* parts) {
    EACH(i, n) {  // the last bag that starts at i or before
        wide low = -1, high = count;
        while (high - low > 1) {
            const wide middle = (low + high) / 2;
            if (mark(offsets, marks, middle, n, count) <= i) low = middle; else high = middle;
        }
        const wide stop = low < 0 ? 0 : mark(offsets, marks, low + 1, n, count);
        bags[i] = i < stop ? (int)low : -1;
        if (!parts) continue;
        if (shares) {
            parts[i] = (A)shares[i];
            continue;
        }
        wide size = 0;
        for (wide at = low < 0 ? stop : mark(offsets, marks, low, n, count); at < stop; ++at) size += index[at] != padding;
        parts[i] = (A)1 / (A)(size ? size : 1);
    }
}

extern "C" __global__ void bag_rows(const T* gy, const int* bags, const A* parts, T* out, wide n, wide width) {
    EACH(i, n * width) {
        const wide at = i / width, bag = bags[at];
        const A value = bag < 0 ? (A)0 : (A)gy[bag * width + i % width];
        out[i] = (T)(parts && bag >= 0 ? value * parts[at] : value);
    }
}

extern "C" __global__ void bag_shares_backward(const T* gy, const T* table, const I* index, const int* bags, wide padding,
                                               T* out, wide n, wide rows, wide width) {
    const wide at = FIRST / 32;  // a warp an index
    const int lane = threadIdx.x % 32;
    if (at >= n) return;
    const wide row = index[at], bag = bags[at];
    A sum = 0;
    if (bag >= 0 && row != padding) {
        const bool inside = row >= 0 && row < rows;
        for (wide k = lane; k < width; k += 32) sum += inside ? (A)gy[bag * width + k] * (A)table[row * width + k] : NAN_OF;
    }
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (lane == 0) out[at] = (T)sum;
}

// of the bags with the same largest row, the first one adds them up, in order
extern "C" __global__ void bag_max_backward(const T* gy, const P* places, T* out, wide bags, wide width) {
    EACH(i, bags * width) {
        const wide k = i % width, row = places[i];
        bool first = row >= 0;
        for (wide at = k; at < i && first; at += width) first = places[at] != row;
        if (!first) continue;
        A sum = (A)out[row * width + k];
        for (wide at = i; at < bags * width; at += width) if (places[at] == row) sum += (A)gy[at];
        out[row * width + k] = (T)sum;
    }
}
"""


def _run(name, kind, total, *arguments, index="q", place="i", most=1 << 16):
    raw.launch(_SOURCE, name, raw.types(kind) | {"I": raw.NAMES[index], "P": raw.NAMES[place]}, total, *arguments, most=most)


def _bags(index, offsets):
    """The arguments that say which indices each bag has."""
    return index, index.size, offsets, 0 if offsets is None else offsets.size


def _skip(padding):
    """The index to skip; a value that no index has if there is no padding."""
    return -(1 << 62) if padding is None else int(padding)


def check_bags(offsets, count):
    """Does nothing: reading the offsets would make the host wait."""


def embedding_bag(weight, index, offsets, shares, mean, padding, out):
    arguments = (weight, *_bags(index, offsets), shares, np.int32(mean), _skip(padding), out, weight.shape[0], *out.shape)
    _run("bag_forward", weight.dtype.char, out.size, *arguments, index=index.dtype.char)


def embedding_bag_max(weight, index, offsets, padding, out, places):
    arguments = (weight, *_bags(index, offsets), _skip(padding), out, places, weight.shape[0], *out.shape)
    _run("bag_max", weight.dtype.char, out.size, *arguments, index=index.dtype.char, place=places.dtype.char)


def bag_parts(index, offsets, count, shares, padding, bags, parts):
    typed = shares if shares is not None else parts
    arguments = (*_bags(index, offsets), int(count), shares, _skip(padding), bags, parts)
    _run("bag_parts", "f" if typed is None else typed.dtype.char, index.size, *arguments, index=index.dtype.char)


def embedding_bag_rows(gy, bags, parts, out):
    _run("bag_rows", gy.dtype.char, out.size, gy, bags, parts, out, *out.shape)


def embedding_bag_shares_backward(gy, weight, index, bags, padding, out):
    arguments = (gy, weight, index, bags, _skip(padding), out, index.size, *weight.shape)
    _run("bag_shares_backward", gy.dtype.char, index.size * 32, *arguments, index=index.dtype.char, most=(1 << 31) - 1)


def embedding_bag_max_backward(gy, places, out):
    _run("bag_max_backward", gy.dtype.char, gy.size, gy, places, out, *gy.shape, place=places.dtype.char)
