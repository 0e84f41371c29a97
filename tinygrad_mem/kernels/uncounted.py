"""Memory that libraries allocate by themselves, out of the pool's sight: the whole list, with sizes, in one place.

No op is on it. On the CPU ``tests/ops/test_contract.py`` fails an allocation by NumPy that is larger than a scalar; on a GPU
``tests/emulated/test_offered.py`` fails a byte from CuPy's pool that no op asked for, and ``tests/emulated/attach.py`` refuses
CUB and Thrust, to which CuPy's own sums and sorts would go.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "kernels.numpy scratch": "2 MiB a thread, once: tiles for elementwise kernels (fast/threads.py)",
    "kernels.numpy casts": "160 KiB a thread, once: a block of float16 on its way to float32 or back (fast/halves.py)",
    "kernels.numpy generators": "2 KiB a thread, once: the state of Philox (fast/philox.py)",
    "NumPy ufunc buffers": "256 elements an operand while a ufunc casts, broadcasts short lines or reads unaligned data "
    "(scope.BUFFER)",
    "tables of interpolate": "12 bytes (16 in float64) for each tap of each axis, forward and back, of the last 64 sizes: "
    "what the tensors that an op gets are copied from",
    "LAPACK": "in a step of GaLore that renews projections: of an n x m matrix, n <= m, copies of it and of its U, S and V, "
    "and work: at most 4 * (2 * n * m + 6 * n * n + 100 * (n + m)) bytes, of float64 twice as many; for a GPU also the "
    "results, on the host",
    "OpenBLAS": "packing buffers, once a thread, mapped by the library itself",
    "cuBLAS": "what NVIDIA's library takes from the driver when CuPy opens it, once a thread and GPU (32 MiB on recent ones): "
    "beside CuPy's pool, from which it takes nothing",
}
"""Who allocates -> what, how much, when."""
