"""Decompositions by cuSOLVER: Cholesky, QR, eigenvalues, singular values; and the exponential of a matrix."""

from __future__ import annotations

import torch

from .blas import handle
from .call import LONG, KernelCall, nbytes, row
from .linalg import NUMBER, addresses, batch_of, checked, solver

_CUDA = "cuda/linalg/BatchLinearAlgebra.cpp"
_LIBRARY = "cuda/linalg/BatchLinearAlgebraLib.cpp"
_QR, _HOUSEHOLDER, _ROTATIONS = (3 << 20) + 128, 128 << 10, 278_784  # geqrf, orgqr, ormqr: least workspaces
_SYMMETRIC, _JACOBI, _INDEFINITE = 278_168, 3_968, 98_432  # syevd, gesvdj, sytrf


@row(
    "linalg_cholesky_ex cholesky",
    takes="one matrix: cuSOLVER's workspace; several: a table of their addresses; cholesky also allocates an error code for "
    "each matrix, and checks them",
    source=f"{_LIBRARY}, cholesky_helper_cusolver",
    seen="h100",
)
def cholesky(call: KernelCall) -> None:
    matrix = call["self"]
    if len(call.outs) == 1:
        call.temporary(NUMBER * batch_of(matrix))
    if batch_of(matrix) == 1:
        solver(call, 256 + matrix.shape[-1] * (matrix.shape[-1] > 32), matrix, "potrf")
    else:
        call.once(LONG * batch_of(matrix) * bool(nbytes(matrix)), "TEMPORARY")
    if len(call.outs) == 1 and nbytes(matrix):
        checked(call, batch_of(matrix))


@row(
    "cholesky_inverse cholesky_solve",
    takes="a copy of the factor; one matrix: an error code; several: cuBLAS's workspace, which MAGMA's queue has",
    source=f"{_CUDA}, cholesky_inverse_kernel_impl, _cholesky_solve_helper_cuda",
    seen="h100",
)
def by_cholesky(call: KernelCall) -> None:
    factors = call.get("input2", call["self"])
    single, solving = batch_of(factors) == 1 and factors.dim() == 2, call.get("input2") is not None
    if single and solving:
        call.temporary(NUMBER)
    call.result(0)
    call.temporary(nbytes(factors))
    if not single:
        handle(call)
    elif not solving:
        call.temporary(NUMBER)


def _geqrf(call: KernelCall, matrix: torch.Tensor) -> None:
    """Source: ``BatchLinearAlgebra.cpp``, ``geqrf_kernel``."""
    batch, (m, n) = batch_of(matrix), matrix.shape[-2:]
    if m <= 256 and batch >= max(2, m // 16):
        return addresses(call, batch * bool(nbytes(matrix)), 2)
    with call.within():
        call.temporary(NUMBER)
        solver(call, _QR + 602 * n * (n > 128), matrix, "geqrf")


def _orgqr(call: KernelCall, matrix: torch.Tensor) -> None:
    """Source: ``BatchLinearAlgebraLib.cpp``, ``apply_orgqr``: a workspace for each matrix."""
    columns = matrix.shape[-1]
    size = _HOUSEHOLDER + (1320 * columns if columns > 32 else max(1152, 128 * columns))
    with call.within():
        call.temporary(NUMBER)
        solver(call, size, matrix, "orgqr", batch_of(matrix))


@row(
    "linalg_householder_product",
    takes="an integer; cuSOLVER's workspace, once for each matrix",
    source=f"{_CUDA}, orgqr_kernel_impl",
    seen="h100",
)
def householder(call: KernelCall) -> None:
    if nbytes(call["input"]):
        _orgqr(call, call["input"])


@row(
    "geqrf",
    takes="an integer and cuSOLVER's workspace, or addresses of small matrices and cuBLAS's workspace",
    source=f"{_CUDA}, geqrf_kernel",
    seen="h100 (square matrices)",
)
def reflections(call: KernelCall) -> None:
    _geqrf(call, call["self"])


@row("ormqr", takes="as linalg_householder_product", source=f"{_CUDA}, ormqr_kernel", seen="h100")
def ormqr(call: KernelCall) -> None:
    call.temporary(NUMBER)
    solver(call, _ROTATIONS, call["input3"], "ormqr", batch_of(call["input3"]))


@row(
    "linalg_qr",
    takes="a number for each reflection; what geqrf allocates (an integer and cuSOLVER's workspace, or addresses of small "
    "matrices and cuBLAS's workspace); unless only R is computed, what linalg_householder_product allocates",
    source=f"BatchLinearAlgebra.cpp, linalg_qr_out; aten/src/ATen/native/{_CUDA}, geqrf_kernel, orgqr_kernel_impl",
    seen="h100 (square matrices, reduced)",
)
def qr(call: KernelCall) -> None:
    matrix, (m, n) = call["A"], call["A"].shape[-2:]
    call.temporary(batch_of(matrix) * min(m, n) * matrix.element_size())
    _geqrf(call, matrix)
    if call["mode"] != "r":
        _orgqr(call, call.outs[0])
    if m != n and nbytes(matrix):
        call.bound(2 * nbytes(matrix), "the copies that the QR decomposition of non-square matrices makes are not known")


@row(
    "_linalg_eigh",
    takes="an error code for each matrix, cuSOLVER's workspace, and the check of the codes; eigenvectors are allocated before "
    "eigenvalues; if only eigenvalues are computed, a copy of the matrix after them",
    source=f"{_LIBRARY}, linalg_eigh_cusolver",
    seen="h100",
)
def eigh(call: KernelCall) -> None:
    matrix = call["A"]
    call.result(*((1, 0) if call["compute_v"] else (0,)))
    call.temporary(0 if call["compute_v"] else nbytes(matrix), NUMBER * batch_of(matrix))
    each = _SYMMETRIC + 430 * (matrix.shape[-1] - 5) - 192 * (batch_of(matrix) > 1)
    solver(call, batch_of(matrix) * each, matrix, "syevd")
    if nbytes(matrix):
        if batch_of(matrix) > 1:
            call.bound(batch_of(matrix) << 16, "cuSOLVER alone knows the workspace of its syevBatched")
        checked(call, batch_of(matrix))


@row(
    "linalg_eig",
    takes="before the results: copies of the matrix and of the results, and a workspace whose size only cuSOLVER knows; no "
    "workspace if MAGMA computes on the host",
    source="BatchLinearAlgebra.cpp, linalg_eig_out",
    seen="h100 (matrices of five rows)",
)
def eig(call: KernelCall) -> None:
    matrix = call["self"]
    with call.within():
        call.temporary(NUMBER * batch_of(matrix), *map(nbytes, call.outs), 3 * nbytes(matrix))
        solver(call, 132_608, matrix, "geev")
    call.result(0, 1)
    call.bound(4 * nbytes(matrix) + 4096, "the copies that linalg.eig makes depend on PyTorch's build")


@row(
    "_linalg_svd",
    takes="an error code for each matrix, a copy of the matrix, a square matrix if there are more columns than rows, "
    "cuSOLVER's workspace, and the check of the codes; if only values are computed, also both matrices of vectors",
    source=f"{_LIBRARY}, svd_cusolver",
    seen="h100",
)
def svd(call: KernelCall) -> None:
    matrix, (m, n) = call["A"], call["A"].shape[-2:]
    call.result(0, 2, 1)
    if not nbytes(matrix):
        return
    width, batch, side = matrix.element_size(), batch_of(matrix), max(m, n)
    call.temporary(NUMBER * batch)
    with call.within():
        call.temporary(nbytes(matrix))
        if not call["compute_uv"]:
            call.temporary(*[batch * min(m, n) * each * width for each in (m, n)])
        call.temporary(batch * n * n * width * (m < n))
        solver(call, _JACOBI if side <= 32 else 9 * side * side * width // 4, matrix, "gesvdj")
    checked(call, batch)


@row("linalg_ldl_factor_ex", takes="cuSOLVER's workspace", source=f"{_LIBRARY}, ldl_factor_cusolver", seen="h100")
def ldl_factor(call: KernelCall) -> None:
    solver(call, _INDEFINITE, call["self"], "sytrf")


@row(
    "linalg_ldl_solve",
    takes="the pivots as integers of 8 bytes, and an error code",
    source=f"{_LIBRARY}, ldl_solve_cusolver",
    seen="h100",
)
def ldl_solve(call: KernelCall) -> None:
    if nbytes(call.outs[0]):
        call.temporary(LONG * call["pivots"].numel(), NUMBER)


@row(
    "linalg_matrix_exp",
    takes="cuBLAS's workspace; powers of the matrices, whose number depends on the norms (a bound)",
    source="LinearAlgebra.cpp, linalg_matrix_exp, compute_T18_scale_square",
    seen="h100",
)
def matrix_exp(call: KernelCall) -> None:
    size = nbytes(call["self"])
    if size:
        handle(call)
        call.temporary(10 * size)
        call.bound(10 * size + (1 << 16), "how many powers of a matrix its exponential takes depends on its norm")
