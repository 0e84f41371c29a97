"""What libraries allocate by themselves, out of the pool's sight: the whole list, with sizes, in one place.

``tests/ops/test_contract.py`` holds every op to it: an allocation by NumPy that is larger than a scalar and is not allowed
here fails.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "kernels.numpy scratch": "2 MiB a thread, once: tiles for elementwise kernels (threads.SCRATCH)",
    "kernels.numpy casts": "160 KiB a thread, once: a block of float16 on its way to float32 or back (halves)",
    "NumPy ufunc buffers": "256 elements an operand while a ufunc casts, broadcasts short lines or reads unaligned data "
    "(scope.BUFFER)",
    "tables of interpolate": "12 bytes (16 in float64) for each tap of each axis, forward and back, of the last 64 sizes: "
    "what the tensors that an op gets are copied from",
    "NumPy unique": "about six arrays of the input's size: the result's size is known only afterwards",
    "CuPy unique": "as NumPy's, from CuPy's pool",
    "CuPy reductions": "up to a few KiB from CuPy's pool where a reduction to few elements runs in two passes",
    "OpenBLAS": "packing buffers, once a thread, mapped by the library itself",
    "cuBLAS": "a workspace a handle (32 MiB on recent GPUs), once; CuPy's linear algebra and convolutions use it",
}
"""Who allocates -> what, how much, when."""

ALLOWED: dict[str, int] = {
    "Unique": 4096,
}
"""Op -> bytes that NumPy may allocate by itself in one run of it, on the small inputs of its test; say why in ``KNOWN``."""
