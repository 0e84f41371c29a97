"""CUDA source of stable sorts: tiles are sorted in shared memory, then merged in pairs."""

from __future__ import annotations

SOURCE = """
#include <cuda_fp16.h>
typedef {T} T;
typedef {A} A;
typedef {I} I;
typedef long long wide;

// where element j of a line stands, of lines of this length along an axis with ``inner`` elements after it
__device__ inline wide place(wide line, wide j, wide length, wide inner) {{
    return (line / inner * length + j) * inner + line % inner;
}}

__device__ inline bool below(A a, A b) {{ return a < b || (b != b && a == a); }}  // nan is the largest

// whether value a at i comes before value b at j: of equal values the first; what is behind the end comes last
__device__ inline bool comes(A a, I i, A b, I j, wide n, bool descending) {{
    if (i < n && j < n) {{
        if (descending ? below(b, a) : below(a, b)) return true;
        if (descending ? below(a, b) : below(b, a)) return false;
    }}
    return i < j;
}}

// a block sorts a tile of a line, by bitonic merges; without ``runs`` a tile is the line, and the ranks asked for go to out
extern "C" __global__ void sort_tiles(
    const T* x, I* runs, wide* out, wide n, wide inner, wide start, wide stop, bool descending, int tile
) {{
    __shared__ A value[1024];
    __shared__ I at[1024];
    const wide tiles = (n + tile - 1) / tile, line = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;
    for (int j = threadIdx.x; j < tile; j += blockDim.x) {{
        at[j] = (I)(first + j);
        value[j] = first + j < n ? (A)x[place(line, first + j, n, inner)] : (A)0;
    }}
    for (int size = 2; size <= tile; size *= 2) {{
        for (int step = size / 2; step; step /= 2) {{
            __syncthreads();
            for (int t = threadIdx.x; t < tile / 2; t += blockDim.x) {{
                const int i = 2 * t - t % step, j = i + step;
                if (comes(value[j], at[j], value[i], at[i], n, descending) == !(i & size)) {{
                    const A v = value[i];
                    const I a = at[i];
                    value[i] = value[j], at[i] = at[j];
                    value[j] = v, at[j] = a;
                }}
            }}
        }}
    }}
    __syncthreads();
    for (int j = threadIdx.x; j < tile && first + j < n; j += blockDim.x) {{
        if (runs) runs[line * n + first + j] = at[j];
        else if (j >= start && j < stop) out[place(line, j - start, stop - start, inner)] = at[j];
    }}
}}

// a thread an element: its place in two merged runs is its own and how many of the other run come before it
extern "C" __global__ void merge_runs(
    const T* x, const I* runs, I* merged, wide* out, wide lines, wide n, wide inner, wide width, wide start, wide stop,
    bool descending
) {{
    const wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= lines * n) return;
    const wide line = i / n, p = i % n, both = p / (2 * width) * 2 * width, middle = both + width;
    const bool left = p < middle;
    const wide first = left ? (middle < n ? middle : n) : both, end = left ? (middle + width < n ? middle + width : n) : middle;
    const I* row = runs + line * n;
    const I mine = row[p];
    const A value = (A)x[place(line, mine, n, inner)];
    wide low = first, high = end;
    while (low < high) {{
        const wide j = low + (high - low) / 2;
        const I other = row[j];
        if (comes((A)x[place(line, other, n, inner)], other, value, mine, n, descending)) low = j + 1; else high = j;
    }}
    const wide rank = both + (p - (left ? both : middle)) + (low - first);
    if (merged) merged[line * n + rank] = mine;
    else if (rank >= start && rank < stop) out[place(line, rank - start, stop - start, inner)] = mine;
}}
"""
