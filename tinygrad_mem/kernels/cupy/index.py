"""Indexing on a GPU. Rows, and half precision along an axis, are added by one thread each, in the order of the entries: the
same run gives the same bits. Other repeated entries are added with atomics, so float32 and float64 are added in any order.
"""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

from .fused import Fused

_take = Fused(
    "raw X x, raw int64 index, int64 count, int64 width",
    "Z z",
    "const long long row = index[i / width]; z = Z(x[(row < 0 ? row + count : row) * width + i % width])",
    "tinygrad_mem_take",
)
_add_rows = Fused(
    "raw X rows, raw int64 index, int64 count, int64 width, int64 size, Z before",
    "Z z",
    """
    const long long row = i / width, column = i % width;
    typename Wide<Z>::type total = before;
    for (long long k = 0; k < count; ++k) {
        if (index[k] == row || index[k] + size == row) total += rows[k * width + column];
    }
    z = total;
    """,
    "tinygrad_mem_add_rows",
)


def _adding_along(source, value):
    """A kernel with one thread per place, which reads the index of its line."""
    return Fused(
        f"{source} source, raw int64 index, int64 count, int64 length",
        "Z z",
        f"""
        const long long line = i / length, place = i % length;
        typename Wide<Z>::type total = z;
        for (long long k = 0; k < count; ++k) {{
            if (index[line * count + k] == place) total += {value};
        }}
        z = total;
        """,
        "tinygrad_mem_add_along",
    )


_add_along, _add_number_along = _adding_along("raw X", "source[line * count + k]"), _adding_along("X", "source")


def take(x, index, out):
    if out.size:
        _take(x, index, len(x), out.size // max(index.size, 1), out)


def add_rows(rows, index, out):
    if rows.size:
        _add_rows(rows, index, index.size, out.size // len(out), len(out), out, out)


@cache
def _at(count, inputs, outputs, body, name):
    """A kernel with ``count`` index arrays, each with the stride in bytes and the size of its axis; negative entries count from
    the end. ``place`` is the distance from ``w[i]`` to the indexed element.
    """
    given = [f"int64 at{a}, int64 step{a}, int64 size{a}" for a in range(count)]
    place = " + ".join(f"(at{a} < 0 ? at{a} + size{a} : at{a}) * step{a}" for a in range(count))
    return Fused(", ".join([inputs, *given]), outputs, f"const ptrdiff_t place = {place};\n{body}", f"{name}{count}", _ADD)


def _get(count):
    body = "z = Z(*(const X*)((const char*)&w[i] + place))"
    return _at(count, "raw X w", "Z z", body, "tinygrad_mem_get_at")


def _put(count):
    return _at(count, "V value", "raw T w", "*(T*)((char*)&w[i] + place) = T(value)", "tinygrad_mem_put_at")


def _add(count):
    return _at(count, "V value", "raw T w", "add_at((T*)((char*)&w[i] + place), T(value))", "tinygrad_mem_add_at")


# The word of an element near an array's end reaches up to 3 bytes beyond it: within its block, whose size is a multiple of 512.
# The compare-and-swap keeps these bytes, also if another thread writes them meanwhile. The emulated device reports the read.
_ADD = """
#include <cupy/atomics.cuh>
template <typename T> __device__ inline void add_at(T* p, T v) { atomicAdd(p, v); }
template <typename T, typename U> __device__ inline void add_narrow(T* p, T v) {  // within a word of 32 bits
    unsigned* word = (unsigned*)((size_t)p & ~(size_t)3);
    const int shift = 8 * ((size_t)p & 3);
    const unsigned mask = (unsigned)(U)~(U)0 << shift;
    for (unsigned old = *word, seen;; old = seen) {
        const unsigned sum = (old & ~mask) | (((unsigned)(U)((U)(old >> shift) + (U)v) << shift) & mask);
        seen = atomicCAS(word, old, sum);
        if (seen == old) return;
    }
}
template <> __device__ inline void add_at(signed char* p, signed char v) { add_narrow<signed char, unsigned char>(p, v); }
template <> __device__ inline void add_at(unsigned char* p, unsigned char v) { add_narrow<unsigned char, unsigned char>(p, v); }
template <> __device__ inline void add_at(short* p, short v) { add_narrow<short, unsigned short>(p, v); }
template <> __device__ inline void add_at(bool* p, bool v) { if (v) *p = true; }
"""


def _window(x, shape, strides):
    """An array of this shape in the memory of x."""
    return cupy.ndarray(shape, x.dtype, x.data, strides=strides)


def _selected(x, key):
    """``x[key]`` without its index arrays, as an array of the result's shape with stride 0 along their axes; and the arrays.
    Adjacent index arrays leave their axes in place; otherwise these axes come first.
    """
    arrays = [a for a, k in enumerate(key) if isinstance(k, cupy.ndarray)]
    rest = [a for a in range(x.ndim) if a not in arrays]
    common = np.broadcast_shapes(*[key[a].shape for a in arrays])
    first = arrays[0] if arrays[-1] - arrays[0] == len(arrays) - 1 else 0
    sizes, steps = [x.shape[a] for a in rest], [x.strides[a] for a in rest]
    shape = (*sizes[:first], *common, *sizes[first:])
    after = (..., *[None] * (len(rest) - first))
    indices = [(key[a][after], x.strides[a], x.shape[a]) for a in arrays]
    return _window(x, shape, (*steps[:first], *[0] * len(common), *steps[first:])), indices


def _along(x, axis, index):
    """As :func:`_selected`, for an index along one axis; the other axes are taken in order."""
    if not x.ndim:
        return x, [(index, 0, 0)]
    steps = [0 if a == axis else step for a, step in enumerate(x.strides)]
    return _window(x, index.shape, steps), [(index, x.strides[axis], 0)]


def _arguments(window, indices):
    """The index arrays for a kernel. The first has the whole shape, because raw arguments do not give the kernel its size."""
    (first, *numbers), *others = indices
    return [cupy.broadcast_to(first, window.shape), *numbers, *[part for each in others for part in each]]


def _fetch(selected, out):
    window, indices = selected
    if out.size:
        _get(len(indices))(window, *_arguments(window, indices), out)


def _store(kernel, value, selected):
    window, indices = selected
    if window.size:
        kernel(len(indices))(value, *_arguments(window, indices), window)


def index_get(x, key, out):
    _fetch(_selected(x, key), out)


def index_put_workspace(x, accumulate):
    """Bytes of workspace for ``index_put``: half precision is added in a float32 copy of x, because its sums would stall."""
    return 4 * x.size if accumulate and x.dtype.char == "e" else 0


def index_put(value, key, accumulate, work, out):
    if accumulate and out.dtype.char == "e":
        wide = cupy.ndarray(out.shape, "f", work.data)
        cupy.copyto(wide, out)
        _store(_add, value, _selected(wide, key))
        cupy.copyto(out, wide, casting="unsafe")
    else:
        _store(_add if accumulate else _put, value, _selected(out, key))


def gather(x, axis, index, out):
    _fetch(_along(x, axis, index), out)


def scatter(source, axis, index, out):
    _store(_put, _part(source, index), _along(out, axis, index))


def scatter_add(source, axis, index, out):
    """out at index along axis += source. Half precision is summed in float32, by one thread per place, which reads its line."""
    if out.dtype.char != "e":
        _store(_add, _part(source, index), _along(out, axis, index))
    elif index.size:
        if not index.ndim:
            index, out, axis = index[None], out[None], 0
        cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
        lines, places = cupy.moveaxis(out[cut], axis, -1), cupy.moveaxis(index, axis, -1)
        number = not isinstance(source, cupy.ndarray)
        values = source if number else cupy.moveaxis(_part(source, index), axis, -1)
        (_add_number_along if number else _add_along)(values, places, index.shape[axis], out.shape[axis], lines)


_TOGETHER = {
    "prod": "there *= value",
    "amax": "if (value != value || value > there) there = value",
    "amin": "if (value != value || value < there) there = value",
}


@cache
def _reduction(reduce, ndim):
    """A kernel with one thread per line of index. It takes the entries in order; no two lines have a place in common."""
    code = f"""
    ptrdiff_t at[{ndim}], rest = i;
    for (int a = {ndim} - 1; a >= 0; --a) {{
        const ptrdiff_t n = a == axis ? 1 : index.shape()[a];
        at[a] = rest % n;
        rest /= n;
    }}
    for (ptrdiff_t k = 0; k < index.shape()[axis]; ++k) {{
        at[axis] = k;
        const T value = source[at];
        at[axis] = index[at];
        T& there = out[at];
        {_TOGETHER[reduce]};
    }}
    """
    return Fused("raw T source, raw int64 index, int32 axis", "raw T out", code, f"tinygrad_mem_{reduce}_at")


def scatter_reduce(source, axis, index, reduce, out):
    if index.size:
        _reduction(reduce, index.ndim)(_part(source, index), index, axis, out, size=index.size // index.shape[axis])


def _part(source, index):
    return source[tuple(slice(0, n) for n in index.shape)] if isinstance(source, cupy.ndarray) else source
