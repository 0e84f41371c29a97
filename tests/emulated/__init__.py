"""A CUDA device made of g++ and NVRTC: real CuPy runs on it, on machines without a GPU.

CuPy's own pool, hooks, code generator and argument checks run unchanged. What is ours is below them: a driver (``driver/``)
that stands for libcuda, for the CUDA runtime and for the products of cuBLAS, and ``device.h``, with which g++ compiles what
NVRTC has accepted. Kernels run on the CPU, thread by thread; each load and store is checked against the arrays that exist.
What x86 allows or computes otherwise than a GPU is a problem, or done as there: numbers at no multiple of their size, subnormal
float32 numbers, shifts by too much, integers of floats that are out of range.

It shows neither speed, nor the rounding of a GPU's functions, nor which products and sums a GPU rounds together, nor what goes
wrong only where threads truly run side by side.
It knows one wheel of CuPy, on x86-64 Linux. Where it cannot attach, the tests that need it fail: they are not skipped.

``python -m tests.emulated -m tinygrad_mem train --device cuda`` runs a program on it.
"""
