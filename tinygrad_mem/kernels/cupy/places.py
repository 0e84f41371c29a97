"""Positions of an array's elements in C order, so that raw kernels need not copy arrays that are not contiguous."""

from __future__ import annotations

import numpy as np

_AXES = 32  # CuPy's arrays have no more axes

SOURCE = """
struct Places { long long axes, shape[32], step[32]; };  // no axes: contiguous
__device__ inline long long place(const Places& of, long long i) {
    if (of.axes == 0) return i;
    long long at = 0;
    for (int axis = (int)of.axes - 1; axis > 0; --axis) {
        const long long rest = i / of.shape[axis];
        at += (i - rest * of.shape[axis]) * of.step[axis];
        i = rest;
    }
    return at + i * of.step[0];
}
__device__ inline float wider(__half x) { return __half2float(x); }
__device__ inline float wider(float x) { return x; }
__device__ inline double wider(double x) { return x; }
"""
"""``x[place(of, i)]`` is the element ``i`` of the array in C order."""

_KIND = np.dtype([("axes", "i8"), ("shape", "i8", _AXES), ("step", "i8", _AXES)])


def places(a):
    """The argument for a parameter of type ``Places``; adjacent axes without a gap are merged."""
    found = np.zeros((), _KIND)
    if a.flags.c_contiguous:
        return found
    axes = []
    for size, step in zip(a.shape, a.strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * step:
            axes[-1] = (axes[-1][0] * size, step)
        else:
            axes.append((size, step))
    found["axes"] = len(axes)
    for i, (size, step) in enumerate(axes):
        found["shape"][i], found["step"][i] = size, step // a.itemsize
    return found
