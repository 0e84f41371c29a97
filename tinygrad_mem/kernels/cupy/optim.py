"""Update rules: one fused kernel per parameter. As in ``kernels/numpy/optim.py``; arithmetic is in the state's dtype."""

from __future__ import annotations

from functools import cache

import cupy


@cache
def _kernel(name, inputs, outputs, body):
    return cupy.ElementwiseKernel(inputs, outputs, body, name)  # pyright: ignore


def unscale(grad, inverse, found):
    wide = "double" if grad.dtype.char == "d" else "float"
    body = f"{wide} x = ({wide})grad; if (!isfinite(x)) found[0] = 1; grad = ({wide})(inverse == 1 ? x : x * inverse);"
    outputs = f"{grad.dtype.name} grad, raw float32 found"
    _kernel("unscale", f"{'float64' if wide == 'double' else 'float32'} inverse", outputs, body)(float(inverse), grad, found)


def renew_master(p, out):
    body = "float16 rounded = (float)master; if (!((float)rounded == (float)p)) master = (float)p;"
    _kernel("renew_master", "float16 p", "float32 master", body)(p, out)
