"""Decompositions by cuSOLVER: Cholesky, QR, eigenvalues, singular values; and the exponential of a matrix."""

from __future__ import annotations

import torch

from .blas import handle
from .call import KernelCall, nbytes, row
from .linalg import INDEX, NUMBER, addresses, batch_of, checked, infos_of, solver

_CUDA = "aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp"
_LIBRARY = "aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp"
_QR, _HOUSEHOLDER, _ROTATIONS = (3 << 20) + 128, 128 << 10, 278_784  # geqrf, orgqr, ormqr: least workspaces
_SYMMETRIC, _JACOBI, _INDEFINITE = 278_168, 3_968, 98_432  # syevd, gesvdj, sytrf


@row(
    "linalg_cholesky_ex", "cholesky",
    takes="of one matrix cuSOLVER's workspace, of several their addresses; cholesky: also a number of errors, and whether one "
    "is there",
    source=f"{_LIBRARY}, cholesky_helper_cusolver",
    seen="h100",
)  # fmt: skip
def cholesky(call: KernelCall) -> None:
    matrix = call["self"]
    call.result(*range(len(call.outs)))
    own = 0 if len(call.outs) > 1 else infos_of(call, matrix)
    if batch_of(matrix) == 1:
        solver(call, 256 + matrix.shape[-1] * (matrix.shape[-1] > 32), matrix, "potrf")
    else:
        call.once(INDEX * batch_of(matrix) * bool(nbytes(matrix)), "TEMPORARY")
    if len(call.outs) == 1 and nbytes(matrix):
        checked(call, batch_of(matrix))
        call.free(own)


@row(
    "cholesky_inverse", "cholesky_solve",
    takes="a copy of the decomposition; of one matrix a number of errors, of several cuBLAS's workspace, for MAGMA",
    source=f"{_CUDA}, cholesky_inverse_kernel_impl, _cholesky_solve_helper_cuda",
    seen="h100",
)  # fmt: skip
def by_cholesky(call: KernelCall) -> None:
    factors = call.get("input2", call["self"])
    single, solving = batch_of(factors) == 1 and factors.dim() == 2, call.get("input2") is not None
    if single and solving:
        call.ask(NUMBER, "TEMPORARY")
    call.result(0)
    call.ask(nbytes(factors), "TEMPORARY")
    if not single:
        handle(call)
    elif not solving:
        call.ask(NUMBER, "TEMPORARY")


def _geqrf(call: KernelCall, matrix: torch.Tensor) -> None:
    """Source: ``BatchLinearAlgebra.cpp``, ``geqrf_kernel``."""
    batch, (m, n) = batch_of(matrix), matrix.shape[-2:]
    if m <= 256 and batch >= max(2, m // 16):
        return addresses(call, batch * bool(nbytes(matrix)), 2)
    infos = call.ask(NUMBER, "TEMPORARY")
    solver(call, _QR + 600 * n * (n > 32), matrix, "geqrf")
    return call.free(infos)


def _orgqr(call: KernelCall, matrix: torch.Tensor) -> None:
    """Source: ``BatchLinearAlgebraLib.cpp``, ``apply_orgqr``: a workspace for each matrix."""
    infos = call.ask(NUMBER, "TEMPORARY")
    columns = matrix.shape[-1]
    size = _HOUSEHOLDER + (1320 * columns if columns > 32 else max(1152, 128 * columns))
    solver(call, size, matrix, "orgqr", batch_of(matrix))
    call.free(infos)


@row(
    "linalg_householder_product",
    takes="an integer, and cuSOLVER's workspace, for each matrix anew",
    source=f"{_CUDA}, orgqr_kernel_impl",
    seen="h100",
)
def householder(call: KernelCall) -> None:
    call.result(0)
    if nbytes(call["input"]):
        _orgqr(call, call["input"])


@row(
    "ormqr",
    takes="as linalg_householder_product",
    source=f"{_CUDA}, ormqr_kernel",
    seen="h100",
)
def ormqr(call: KernelCall) -> None:
    call.result(0)
    infos = call.ask(NUMBER, "TEMPORARY")
    solver(call, _ROTATIONS, call["input3"], "ormqr", batch_of(call["input3"]))
    call.free(infos)


@row(
    "linalg_qr",
    takes="a number for each reflection; what geqrf takes, and, unless only R is wanted, what orgqr takes",
    source=f"aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_qr_out; {_CUDA}, geqrf_kernel, orgqr_kernel_impl",
    seen="h100 (square matrices, reduced)",
)  # fmt: skip
def qr(call: KernelCall) -> None:
    matrix, (m, n) = call["A"], call["A"].shape[-2:]
    call.result(0, 1)
    tau = call.ask(batch_of(matrix) * min(m, n) * matrix.element_size(), "TEMPORARY")
    _geqrf(call, matrix)
    if call["mode"] != "r":
        _orgqr(call, call.outs[0])
    if m != n and nbytes(matrix):
        call.bound(2 * nbytes(matrix), "what the QR decomposition of matrices that are not square copies is not known")
    call.free(tau)


@row(
    "_linalg_eigh",
    takes="a number of errors, cuSOLVER's workspace, whether an error is there; eigenvectors are asked for first, or, where "
    "nobody wants them, a copy of the matrix after the values",
    source=f"{_LIBRARY}, linalg_eigh_cusolver",
    seen="h100",
)  # fmt: skip
def eigh(call: KernelCall) -> None:
    matrix = call["A"]
    call.result(*((1, 0) if call["compute_v"] else (0,)))
    held = call.ask(0 if call["compute_v"] else nbytes(matrix), "TEMPORARY")
    infos = infos_of(call, matrix)
    each = _SYMMETRIC + 430 * (matrix.shape[-1] - 5) - 192 * (batch_of(matrix) > 1)
    solver(call, batch_of(matrix) * each, matrix, "syevd")
    if nbytes(matrix):
        if batch_of(matrix) > 1:
            call.bound(batch_of(matrix) << 16, "cuSOLVER alone knows the workspace of its syevBatched")
        checked(call, batch_of(matrix))
    call.free(infos, held)


@row(
    "linalg_eig",
    takes="before the results: copies of the matrix and of the results, and a workspace: known to cuSOLVER alone, or none "
    "where MAGMA runs on the host",
    source="aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_eig_out",
    seen="h100 (matrices of five rows)",
)  # fmt: skip
def eig(call: KernelCall) -> None:
    matrix = call["self"]
    call.results = "last"
    within = [NUMBER * batch_of(matrix), *[nbytes(out) for out in call.outs], 3 * nbytes(matrix)]
    asked = [call.ask(size, "TEMPORARY", exact=False) for size in within]
    solver(call, 132_608, matrix, "geev")
    call.free(*reversed(asked))
    call.bound(4 * nbytes(matrix) + 4096, "what eigenvalues copy depends on PyTorch's build")


@row(
    "_linalg_svd",
    takes="a number of errors, a copy of the matrix, a square of wide ones, cuSOLVER's workspace, whether an error is there; "
    "without vectors also these",
    source=f"{_LIBRARY}, svd_cusolver",
    seen="h100",
)  # fmt: skip
def svd(call: KernelCall) -> None:
    matrix, (m, n) = call["A"], call["A"].shape[-2:]
    call.result(0, 2, 1)
    if not nbytes(matrix):
        return
    width, batch = matrix.element_size(), batch_of(matrix)
    infos = infos_of(call, matrix)
    copies = [call.ask(nbytes(matrix), "TEMPORARY")]
    if not call["compute_uv"]:
        copies += [call.ask(batch * min(m, n) * side * width, "TEMPORARY") for side in (m, n)]
    side = max(m, n)
    copies.append(call.ask(batch * n * n * width * (m < n), "TEMPORARY"))
    solver(call, _JACOBI if side <= 32 else 9 * side * side * width // 4, matrix, "gesvdj")
    call.free(*reversed(copies))
    checked(call, batch_of(matrix))
    call.free(infos)


@row(
    "linalg_ldl_factor_ex",
    takes="cuSOLVER's workspace",
    source=f"{_LIBRARY}, ldl_factor_cusolver",
    seen="h100",
)
def ldl_factor(call: KernelCall) -> None:
    call.result(0, 1, 2)
    solver(call, _INDEFINITE, call["self"], "sytrf")


@row(
    "linalg_ldl_solve",
    takes="pivots of 8 bytes, and a number of errors",
    source=f"{_LIBRARY}, ldl_solve_cusolver",
    seen="h100",
)
def ldl_solve(call: KernelCall) -> None:
    call.result(0)
    if nbytes(call.outs[0]):
        call.ask(INDEX * call["pivots"].numel(), "TEMPORARY")
        call.ask(NUMBER, "TEMPORARY")


@row(
    "linalg_matrix_exp",
    takes="cuBLAS's workspace; powers of the matrices: how many depends on their norms",
    source="aten/src/ATen/native/LinearAlgebra.cpp, linalg_matrix_exp, compute_T18_scale_square",
    seen="h100",
)  # fmt: skip
def matrix_exp(call: KernelCall) -> None:
    size = nbytes(call["self"])
    if size:
        call.result(0)
        handle(call)
        call.ask(10 * size, "TEMPORARY", exact=False)
        call.bound(10 * size + (1 << 16), "how many powers of a matrix its exponential takes depends on its norm")
