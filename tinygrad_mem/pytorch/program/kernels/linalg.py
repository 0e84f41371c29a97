"""LU decompositions and systems of equations, by cuSOLVER, cuBLAS or MAGMA.

PyTorch chooses the library by the sizes; the rules here are those of 2.11. cuSOLVER reports the size of its workspace only when
it runs: the rows count about what was recorded on an H100, and give a bound.
"""

from __future__ import annotations

from math import prod

import torch

from .blas import handle
from .call import LONG, KernelCall, nbytes, row

_CUDA = "cuda/linalg/BatchLinearAlgebra.cpp"
NUMBER = 4  # bytes of a library's integer


def batch_of(tensor: torch.Tensor) -> int:
    """The number of matrices of a tensor."""
    return prod(tensor.shape[:-2])


def solver(call: KernelCall, size: int, matrix: torch.Tensor, name: str, times: int = 1) -> None:
    """Ask for cuSOLVER's workspace, once for each of ``times`` matrices."""
    if nbytes(matrix):
        for _ in range(times):
            call.once(size)
        side = max(matrix.shape[-2:])
        call.bound(4 * side * side * matrix.element_size() + (1 << 16), f"cuSOLVER alone knows the workspace of its {name}")


def addresses(call: KernelCall, batch: int, count: int) -> None:
    """Addresses of ``batch`` matrices for each of ``count`` arguments, and cuBLAS's workspace."""
    with call.within():
        call.temporary(*[LONG * batch] * count)
        handle(call)


def checked(call: KernelCall, count: int) -> None:
    """Ask for the check of ``count`` error codes. Source: ``BatchLinearAlgebra.cpp``, ``_linalg_check_errors``."""
    with call.within():
        call.temporary(*[1] * (2 if count == 1 else 1))


def factor(call: KernelCall, matrix: torch.Tensor) -> None:
    """An LU decomposition. Source: ``BatchLinearAlgebra.cpp``, ``lu_factor``."""
    (m, n), batch = matrix.shape[-2:], batch_of(matrix)
    if not nbytes(matrix):
        return
    if m != n or not (batch == 1 or m <= 16 or (m <= 128 and batch <= 16)):
        handle(call)  # MAGMA's queue has one
    elif batch == 1 or m >= 512:
        solver(call, max(768, 23 * n) * matrix.element_size() // 4, matrix, "getrf", batch)
    else:
        addresses(call, batch, 1)


def _triangular(call: KernelCall, matrix: torch.Tensor, right: torch.Tensor) -> None:
    """Source: ``BatchLinearAlgebra.cpp``, ``triangular_solve_kernel``."""
    batch, size = batch_of(right), matrix.shape[-1]
    if (batch <= 8 and size >= 64) or size > 512:
        handle(call)
    else:
        addresses(call, batch, bool(nbytes(matrix)) + bool(nbytes(right)))


def solve(call: KernelCall, factors: torch.Tensor, right: torch.Tensor, transposed: bool) -> None:
    """A system by its LU decomposition, in place of ``right``. Source: ``BatchLinearAlgebra.cpp``, ``lu_solve_kernel``."""
    n, k, batch = factors.shape[-1], right.shape[-1], batch_of(right)
    if not nbytes(right):
        return
    if n == k:
        way = "batched" if n <= 16 else "triangular"
    elif n <= 8:
        way = "magma" if k >= 256 and not transposed else "batched"
    elif batch <= 2 and ((n <= 64 and (k <= 64 or transposed or n <= 32)) or (n <= 128 and k <= 2)):
        way = "looped"
    else:
        way = "batched" if k <= (8 if n <= 64 else 2 if n <= 128 else 0) else "triangular"
    if way == "looped":
        call.once(NUMBER, "TEMPORARY")
    elif way == "batched":
        addresses(call, batch, 2)
    elif way == "magma":
        handle(call)
    else:
        _by_triangles(call, factors, right, transposed)


def _by_triangles(call: KernelCall, factors: torch.Tensor, right: torch.Tensor, transposed: bool) -> None:
    n, batch = factors.shape[-1], batch_of(right)
    with call.within():
        call.temporary(LONG * n * batch)
        if not transposed:
            call.temporary(LONG * n, LONG * n * batch, nbytes(right))
        for _ in range(2):
            _triangular(call, factors, right)
        if transposed:
            call.once(nbytes(right), "TEMPORARY")


# --- LU -------------------------------------------------------------------------------------------------------------------


@row(
    "_linalg_check_errors",
    takes="one byte; two for a single matrix",
    source="BatchLinearAlgebra.cpp, _linalg_check_errors",
    seen="h100",
)
def check_errors(call: KernelCall) -> None:
    checked(call, call["info"].numel())


@row(
    "linalg_lu_factor_ex",
    takes="one square matrix: cuSOLVER's workspace; square matrices of up to 16 rows, or up to 16 of them with up to 128 rows: "
    "their addresses and cuBLAS's workspace; all others: cuBLAS's workspace, which MAGMA's queue has",
    source=f"{_CUDA}, lu_factor",
    seen="h100",
)
def lu_factor(call: KernelCall) -> None:
    factor(call, call["A"])


@row(
    "linalg_lu lu_unpack",
    takes="linalg_lu: the factors, pivots, error codes, and what linalg_lu_factor_ex allocates; both: a permutation of 8 bytes "
    "a row, and, for several matrices, one for each",
    source=f"BatchLinearAlgebra.cpp, linalg_lu_out, lu_unpack_out; aten/src/ATen/native/{_CUDA}, lu_factor",
    seen="h100",
)
def lu(call: KernelCall) -> None:
    matrix, own = call.get("A", call.get("LU_data")), call.get("A") is not None
    batch = batch_of(matrix)
    if own and nbytes(matrix):
        whole = call.temporary(nbytes(matrix))
        call.temporary(NUMBER * batch * min(matrix.shape[-2:]), NUMBER * batch)
        factor(call, matrix)
        call.free(whole)
    if call.get("pivot", call.get("unpack_pivots", True)):
        rows = LONG * matrix.shape[-2]
        call.free(call.temporary(rows), call.temporary(rows * batch * (matrix.dim() > 2)))


def _signs(call: KernelCall, batch: int, n: int) -> None:
    """Ask for the sign of each permutation; a number for each stays. Source: ``LinearAlgebra.cpp``, ``lu_det_P``."""
    order, differ = call.temporary(NUMBER * n), call.temporary(batch * n)
    call.temporary(LONG * batch)
    call.once(LONG * batch * n, "TEMPORARY")
    call.free(differ, order)


@row(
    "_linalg_det _linalg_slogdet",
    takes="error codes; what linalg_lu_factor_ex allocates; the signs of the permutations, and the products of the diagonals",
    source="LinearAlgebra.cpp, _linalg_det_out, _linalg_slogdet_out, lu_det_P",
    seen="h100",
)
def det(call: KernelCall) -> None:
    matrix = call["A"]
    batch, n, width = batch_of(matrix), matrix.shape[-1], matrix.element_size()
    call.temporary(NUMBER * batch)
    factor(call, matrix)
    if "slogdet" in call.name:
        with call.within():
            _signs(call, batch, n)
            call.temporary(batch * n * width, batch * width)
        call.once(batch * n * width, "TEMPORARY")
    else:
        call.temporary(batch * width)
        _signs(call, batch, n)


@row(
    "_linalg_solve_ex linalg_inv_ex",
    takes="linalg_inv_ex: the factors and pivots; both: what linalg_lu_factor_ex and linalg_lu_solve allocate, and a copy of a "
    "right-hand side that is a vector",
    source="BatchLinearAlgebra.cpp, _linalg_solve_ex_out, linalg_inv_ex_out",
    seen="h100",
)
def solve_ex(call: KernelCall) -> None:
    matrix, right = call["A"], call.outs[0]
    if call.get("B") is None and nbytes(matrix):
        call.temporary(nbytes(matrix), NUMBER * batch_of(matrix) * matrix.shape[-1])
    factor(call, matrix)
    if right.dim() < matrix.dim():
        call.temporary(nbytes(right))
        right = right.unsqueeze(-1)
    left = call.get("left", True)
    solve(call, matrix, right if left else right.mT, not left)


@row(
    "linalg_lu_solve",
    takes="a copy of factors that are not column-major; then, depending on the sizes: addresses and cuBLAS's workspace, or "
    "cuBLAS's workspace alone, or an integer, or permutations, a copy of the right-hand side, and what two of triangular_solve "
    "allocate",
    source=f"{_CUDA}, lu_solve_kernel; aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_lu_solve_out",
    seen="h100",
)
def lu_solve(call: KernelCall) -> None:
    factors, right = call["LU"], call.outs[0]
    call.temporary(0 if factors.mT.is_contiguous() else nbytes(factors))
    solve(call, factors, right if call["left"] else right.mT, call["adjoint"] is call["left"])


@row(
    "triangular_solve",
    takes="cuBLAS's workspace; also addresses of the matrices, unless these have more than 512 rows, or are at most 8 with 64 "
    "rows or more",
    source=f"{_CUDA}, triangular_solve_kernel",
    seen="h100",
)
def triangular_solve(call: KernelCall) -> None:
    _triangular(call, call["A"], call.outs[0])


@row(
    "linalg_solve_triangular",
    takes="a copy of matrices that are neither row-major nor column-major, or that are broadcast; what triangular_solve "
    "allocates",
    source="BatchLinearAlgebra.cpp, linalg_solve_triangular_out",
    seen="h100",
)
def solve_triangular(call: KernelCall) -> None:
    matrix, out = call["self"], call.outs[0]
    spread = batch_of(out) * prod(matrix.shape[-2:]) * matrix.element_size()
    dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    call.temporary(0 if dense and spread == nbytes(matrix) else spread)
    _triangular(call, matrix, out)
