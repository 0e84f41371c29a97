"""Fourier transforms by cuFFT, and gradients of distances."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, one_axis, row


@row(
    "_cdist_forward _pdist_forward",
    takes="copies of arguments that are not contiguous",
    source="Distance.cpp, cdist_impl; cuda/DistanceKernel.cu",
    seen="h100",
)
def distances_forward(call: KernelCall) -> None:
    call.copies("self", "x1", "x2")


@row(
    "_cdist_backward _pdist_backward",
    takes="for each pair of rows (_pdist_backward: twice) a gradient as long as a row; nothing if p is 0",
    source="cuda/DistanceKernel.cu, cdist_backward_kernel_impl, pdist_backward_kernel_impl",
    seen="h100",
)
def distances_backward(call: KernelCall) -> None:
    rows, distances = call.get("x1", call.get("self")), call.get("cdist")
    pairs = rows.shape[0] * (rows.shape[0] - 1) if distances is None else prod(distances.shape)
    if call["p"] and prod(call["grad"].shape):
        call.temporary(pairs * rows.shape[-1] * rows.element_size())


def _easy(sizes: list[int]) -> bool:
    """Each size is a product of small primes, and a row fits into a multiprocessor: cuFFT then works without memory."""
    for size in sizes:
        for prime in (2, 3, 5, 7):
            while size > 1 and size % prime == 0:
                size //= prime
        if size != 1:
            return False
    return max(sizes, default=1) <= 4096


def _one_batch(tensor: torch.Tensor, strides: tuple[int, ...], dims: list[int]) -> bool:
    """True if the axes that are not transformed are one, without a copy. Source: ``SpectralOps.cpp``, ``_exec_fft``."""
    rest = [(stride, size) for axis, (stride, size) in enumerate(zip(strides, tensor.shape, strict=True)) if axis not in dims]
    return one_axis(sorted(rest, reverse=True))


@row(
    "_fft_c2c _fft_r2c _fft_c2r",
    takes="real to complex, if the first two or more than three axes are transformed: before the result, a complex temporary "
    "as large as it. Complex to real: after the result, a copy of the input, which cuFFT overwrites. All: a copy if the axes "
    "that are not transformed cannot be viewed as one; for sizes above 4,096, or with a prime factor above 7, a workspace "
    "whose size only cuFFT knows",
    source="cuda/SpectralOps.cpp, _exec_fft, _fft_c2r_cufft",
    seen="h100 (no workspace)",
)
def fourier(call: KernelCall) -> None:
    tensor, out = call["self"], call.outs[0]
    overwrites = "c2r" in call.name
    dims = [axis % tensor.dim() for axis in call["dim"]]
    between = 0
    if "r2c" in call.name and (len(dims) > 3 or dims[:2] == [0, 1]):  # one axis after the other
        between = call.temporary(nbytes(out))
    call.result(0)
    call.free(between)
    strides = tensor.stride()
    if overwrites:
        call.temporary(nbytes(tensor))
        strides = torch.empty(tensor.shape, device="meta").stride()
    call.temporary(0 if _one_batch(tensor, strides, dims) else nbytes(tensor))
    real = out if overwrites else tensor
    if not _easy([real.shape[axis] for axis in dims]):
        call.bound(2 * (nbytes(tensor) + nbytes(out)), "cuFFT alone knows the workspace of large sizes, and of large primes")
