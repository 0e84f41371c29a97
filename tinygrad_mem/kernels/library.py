"""What libraries allocate by themselves, out of the pool's sight: the whole list, with sizes, in one place.

``tests/ops/test_contract.py`` holds every op to it: an allocation of ``SMALL`` bytes or more that is not named here fails.
"""

from __future__ import annotations

SMALL = 8192
"""Bytes below which NumPy's helpers (scalars, shapes, iterators) are not counted: none of them grows with its input."""

KNOWN: dict[str, str] = {
    "kernels.numpy scratch": "1 MiB a thread, once: tiles for elementwise kernels (threads.SCRATCH)",
    "NumPy ufunc buffers": "8,192 elements an operand while a ufunc casts or reads unaligned data (np.getbufsize())",
    "OpenBLAS": "packing buffers, once a thread, mapped by the library itself",
}
"""Who allocates -> what, how much, when."""
