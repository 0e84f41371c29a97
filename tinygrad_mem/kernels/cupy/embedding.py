"""Rows of a table by index, and the sum of gradients into them. As in ``kernels/numpy/embedding.py``.

Each row of the table has one warp, which reads the indices in order and sums the row's gradients. There are no atomics: the
same input gives the same bits. An index outside of the table gives a row of nan (of 0 for integers), and changes no gradient
and no parameter.
"""

from __future__ import annotations

from . import raw

_SOURCE = (
    f"{raw.BLOCKS}"
    + """
extern "C" __global__ void embedding(const T* table, const I* index, T* out, wide rows, wide width, wide total) {
    EACH(i, total) {
        const wide row = index[i / width];
        out[i] = row >= 0 && row < rows ? table[row * width + i % width] : FLOATING ? (T)(float)(0.0 / 0.0) : (T)0.0f;
    }
}

#define COLUMNS 8
#define ROW const wide row = FIRST / 32; \\
    const int lane = threadIdx.x % 32; \\
    if (row >= rows) return;

extern "C" __global__ void embedding_backward(const T* gy, const I* index, wide n, wide padding, float* counts,
                                              const int* bags, const A* parts, T* out, wide rows, wide width) {
    ROW
    if (row == padding) return;
    A share = 1;
    if (counts) {
        wide found = 0;
        for (wide i = 0; i < n; i += 32) found += __popc(__ballot_sync(0xffffffffu, i + lane < n && index[i + lane] == row));
        if (lane == 0) counts[row] = found;
        if (found) share = (A)1 / found;
    }
    for (wide from = 0; from < width; from += 32 * COLUMNS) {  // so many columns at a time are summed in registers
        A sum[COLUMNS];
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const wide k = from + 32 * c + lane;
            sum[c] = k < width ? (A)out[row * width + k] : (A)0;
        }
        for (wide i = 0; i < n; i += 32) {
            unsigned int mine = __ballot_sync(0xffffffffu, i + lane < n && index[i + lane] == row);
            while (mine) {
                const wide place = i + __ffs(mine) - 1;
                const wide at = bags ? bags[place] : place;
                const A scale = parts ? share * parts[place] : share;
                mine &= mine - 1;
                if (at < 0) continue;
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    const wide k = from + 32 * c + lane;
                    if (k < width) sum[c] += (A)gy[at * width + k] * scale;
                }
            }
        }
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const wide k = from + 32 * c + lane;
            if (k < width) out[row * width + k] = (T)sum[c];
        }
    }
}

extern "C" __global__ void embedding_renorm(T* table, wide s0, wide s1, const I* index, wide n, double most, double power,
                                            wide rows, wide width) {
    ROW
    bool here = false;
    for (wide i = lane; i < n; i += 32) here |= index[i] == row;
    if (!__any_sync(0xffffffffu, here)) return;
    const bool largest = isinf(power);
    double sum = 0;
    for (wide k = lane; k < width; k += 32) {
        const double size = fabs((double)(A)table[row * s0 + k * s1]);
        sum = largest ? larger(sum, size) : sum + (power == 0 ? size != 0 : pow(size, power));
    }
    for (int m = 16; m; m >>= 1) {
        const double other = __shfl_xor_sync(0xffffffffu, sum, m);
        sum = largest ? larger(sum, other) : sum + other;
    }
    const double norm = largest || power == 0 ? sum : pow(sum, 1 / power);
    if (!(norm > most)) return;  // nor a row with nan
    for (wide k = lane; k < width; k += 32) {
        T* place = table + row * s0 + k * s1;
        *place = (T)(A)((double)(A)*place * (most / (norm + 1e-7)));
    }
}
"""
)


def _run(name, table, index, total, *arguments, **options):
    meanings = raw.types(table.dtype.char) | {"I": raw.NAMES[index.dtype.char], "FLOATING": int(table.dtype.kind == "f")}
    raw.launch(_SOURCE, name, meanings, total, *arguments, **options)


def check_rows(index, rows):
    """Does nothing: reading the indices would make the host wait. One outside of the table gives a row of nan, or 0."""


def embedding(weight, index, out):
    _run("embedding", weight, index, out.size, weight, index, out, *weight.shape, out.size, most=1 << 16)


def embedding_backward_workspace(count, dtype):
    return 0


def embedding_backward(gy, index, padding, counts, bags, parts, work, out):
    if gy.size and index.size:
        skip = -1 if padding is None else int(padding)
        arguments = (gy, index, index.size, skip, counts, bags, parts, out, *out.shape)
        _run("embedding_backward", gy, index, out.shape[0] * 32, *arguments)


def embedding_renorm(weight, index, max_norm, norm_type):
    if weight.size and index.size:
        strides = (s // weight.itemsize for s in weight.strides)
        arguments = (weight, *strides, index, index.size, float(max_norm), float(norm_type), *weight.shape)
        _run("embedding_renorm", weight, index, weight.shape[0] * 32, *arguments)


_ROWS = """
// a warp an index: the first of equal ones adds them up, in order
extern "C" __global__ void sum_rows(const wide* index, const T* values, wide n, wide width, wide* first, A* out) {
    const wide i = FIRST / 32;
    const int lane = threadIdx.x % 32;
    if (i >= n) return;
    const wide row = index[i];
    bool earlier = false;
    for (wide j = lane; j < i; j += 32) earlier |= index[j] == row;
    const bool again = __any_sync(0xffffffffu, earlier);
    if (lane == 0) first[i] = again ? -1 : row;
    for (wide k = lane; k < width; k += 32) out[i * width + k] = again ? (A)0 : (A)values[i * width + k];
    if (again) return;
    for (wide j = i + 1; j < n; j += 32) {
        unsigned int mine = __ballot_sync(0xffffffffu, j + lane < n && index[j + lane] == row);
        while (mine) {
            const wide at = j + __ffs(mine) - 1;
            mine &= mine - 1;
            for (wide k = lane; k < width; k += 32) out[i * width + k] += (A)values[at * width + k];
        }
    }
}

extern "C" __global__ void clear_rows(const wide* index, wide row, T* out, wide n, wide width) {
    const wide at = FIRST;
    if (at < n * width && index[at / width] == row) out[at] = (T)0.0f;
}
"""


def clear_rows(index, row, out):
    raw.launch(_ROWS, "clear_rows", raw.types(out.dtype.char), out.size, index, int(row), out, *out.shape)


def sum_rows(index, values, first, out):
    if out.size:
        types = {"T": raw.NAMES[values.dtype.char], "A": raw.NAMES[out.dtype.char]}
        raw.launch(_ROWS, "sum_rows", types, len(out) * 32, index, values, *out.shape, first, out)
