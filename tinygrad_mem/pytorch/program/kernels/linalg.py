"""LU decompositions and systems of equations, by cuSOLVER, cuBLAS or MAGMA.

Which library runs is PyTorch's choice, by the sizes; the rules here are those of 2.11. How much cuSOLVER works in, it tells
only when it runs: counted is about what was recorded on an H100, and a bound is said.
"""

from __future__ import annotations

from math import prod

import torch

from .blas import handle
from .call import KernelCall, nbytes, row

_CUDA = "aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp"
NUMBER, INDEX = 4, 8  # bytes of a library's integer, and of PyTorch's, or of an address


def batch_of(tensor: torch.Tensor) -> int:
    """The number of matrices of a tensor."""
    return prod(tensor.shape[:-2])


def solver(call: KernelCall, size: int, matrix: torch.Tensor, name: str, times: int = 1) -> None:
    """A workspace of cuSOLVER's, for each of ``times`` matrices anew."""
    if nbytes(matrix):
        for _ in range(times):
            call.once(size, exact=False)
        side = max(matrix.shape[-2:])
        call.bound(4 * side * side * matrix.element_size() + (1 << 16), f"cuSOLVER alone knows the workspace of its {name}")


def addresses(call: KernelCall, batch: int, count: int) -> None:
    """Addresses of ``batch`` matrices for each of ``count`` arguments, and cuBLAS's workspace."""
    asked = [call.ask(INDEX * batch, "TEMPORARY") for _ in range(count)]
    handle(call)
    call.free(*reversed(asked))


def infos_of(call: KernelCall, matrix: torch.Tensor) -> int:
    """A number of errors for each matrix."""
    return call.ask(NUMBER * batch_of(matrix), "TEMPORARY")


def checked(call: KernelCall, count: int) -> None:
    """Ask whether one of ``count`` matrices has an error. Source: ``BatchLinearAlgebra.cpp``, ``_linalg_check_errors``."""
    asked = [call.ask(1, "TEMPORARY") for _ in range(2 if count == 1 else 1)]
    call.free(*reversed(asked))


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
    asked = [call.ask(INDEX * n * batch, "TEMPORARY")]
    if not transposed:
        asked += [
            call.ask(INDEX * n, "TEMPORARY"),
            call.ask(INDEX * n * batch, "TEMPORARY"),
            call.ask(nbytes(right), "TEMPORARY"),
        ]
    for _ in range(2):
        _triangular(call, factors, right)
    if transposed:
        call.once(nbytes(right), "TEMPORARY")
    call.free(*reversed(asked))


# --- LU -------------------------------------------------------------------------------------------------------------------


@row(
    "_linalg_check_errors",
    takes="a byte, and one more of a single matrix",
    source="aten/src/ATen/native/BatchLinearAlgebra.cpp, _linalg_check_errors",
    seen="h100",
)  # fmt: skip
def check_errors(call: KernelCall) -> None:
    checked(call, call["info"].numel())


@row(
    "linalg_lu_factor_ex",
    takes="of square matrices: one, or large ones: cuSOLVER's workspace; up to 16 rows, or up to 16 of 128: addresses, and "
    "cuBLAS's workspace; others: cuBLAS's workspace, for MAGMA",
    source=f"{_CUDA}, lu_factor",
    seen="h100",
)  # fmt: skip
def lu_factor(call: KernelCall) -> None:
    call.result(0, 1, 2)
    factor(call, call["A"])


@row(
    "linalg_lu", "lu_unpack",
    takes="the decomposition, its pivots and a number of errors (linalg_lu); a permutation of 8 bytes a row, and of several "
    "matrices one more",
    source=f"aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_lu_out, lu_unpack_out; {_CUDA}, lu_factor",
    seen="h100",
)  # fmt: skip
def lu(call: KernelCall) -> None:
    matrix, own = call.get("A", call.get("LU_data")), call.get("A") is not None
    call.result(0, 1, 2)
    rest = []
    if own and nbytes(matrix):
        whole = call.ask(nbytes(matrix), "TEMPORARY")
        rest = [call.ask(NUMBER * batch_of(matrix) * min(matrix.shape[-2:]), "TEMPORARY"), infos_of(call, matrix)]
        factor(call, matrix)
        call.free(whole)
    if call.get("pivot", call.get("unpack_pivots", True)):
        rows = INDEX * matrix.shape[-2]
        asked = [call.ask(rows, "TEMPORARY"), call.ask(rows * batch_of(matrix) * (matrix.dim() > 2), "TEMPORARY")]
        call.free(*asked)
    call.free(*reversed(rest))


def _signs(call: KernelCall, batch: int, n: int) -> int:
    """The sign of a permutation: the number that is left. Source: ``LinearAlgebra.cpp``, ``lu_det_P``."""
    order, differ = call.ask(NUMBER * n, "TEMPORARY"), call.ask(batch * n, "TEMPORARY")
    sums = call.ask(INDEX * batch, "TEMPORARY")
    call.once(INDEX * batch * n, "TEMPORARY")
    call.free(differ, order)
    return sums


@row(
    "_linalg_det", "_linalg_slogdet",
    takes="a number of errors; what the LU decomposition takes; the signs of permutations, the products of diagonals",
    source="aten/src/ATen/native/LinearAlgebra.cpp, _linalg_det_out, _linalg_slogdet_out, lu_det_P",
    seen="h100",
)  # fmt: skip
def det(call: KernelCall) -> None:
    matrix, logarithm = call["A"], "slogdet" in call.func._schema.name
    batch, n, width = batch_of(matrix), matrix.shape[-1], matrix.element_size()
    call.result(*range(len(call.outs)))
    infos = infos_of(call, matrix)
    factor(call, matrix)
    if logarithm:
        signs = _signs(call, batch, n)
        asked = [call.ask(size, "TEMPORARY") for size in (batch * n * width, batch * width)]
        call.free(*reversed(asked), signs)
        call.once(batch * n * width, "TEMPORARY")
    else:
        product = call.ask(batch * width, "TEMPORARY")
        call.free(_signs(call, batch, n), product)
    call.free(infos)


@row(
    "_linalg_solve_ex", "linalg_inv_ex",
    takes="the LU decomposition (linalg_inv_ex), and what it takes; a copy of a right side that is a vector; what "
    "linalg_lu_solve takes",
    source="aten/src/ATen/native/BatchLinearAlgebra.cpp, _linalg_solve_ex_out, linalg_inv_ex_out",
    seen="h100",
)  # fmt: skip
def solve_ex(call: KernelCall) -> None:
    matrix, right, held = call["A"], call.outs[0], []
    call.result(*range(len(call.outs)))
    if call.get("B") is None and nbytes(matrix):
        held = [call.ask(nbytes(matrix), "TEMPORARY"), call.ask(NUMBER * batch_of(matrix) * matrix.shape[-1], "TEMPORARY")]
    factor(call, matrix)
    if right.dim() < matrix.dim():
        held.append(call.ask(nbytes(right), "TEMPORARY"))
        right = right.unsqueeze(-1)
    left = call.get("left", True)
    solve(call, matrix, right if left else right.mT, not left)
    call.free(*reversed(held))


@row(
    "linalg_lu_solve",
    takes="a copy of a decomposition that is not in columns; by size addresses, and cuBLAS's workspace, or an integer, or "
    "permutations, a copy of the right side, and what triangular systems take",
    source=f"{_CUDA}, lu_solve_kernel; aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_lu_solve_out",
    seen="h100",
)
def lu_solve(call: KernelCall) -> None:
    factors, right = call["LU"], call.outs[0]
    call.result(0)
    call.ask(0 if factors.mT.is_contiguous() else nbytes(factors), "TEMPORARY")
    solve(call, factors, right if call["left"] else right.mT, call["adjoint"] is call["left"])


@row(
    "triangular_solve",
    takes="cuBLAS's workspace, and addresses of up to 512 rows, unless there are at most 8 of 64 rows or more",
    source=f"{_CUDA}, triangular_solve_kernel",
    seen="h100",
)
def triangular_solve(call: KernelCall) -> None:
    call.result(0, 1)
    _triangular(call, call["A"], call.outs[0])


@row(
    "linalg_solve_triangular",
    takes="copies of matrices that lie in neither order, or are shared; what triangular_solve takes",
    source="aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_solve_triangular_out",
    seen="h100",
)
def solve_triangular(call: KernelCall) -> None:
    matrix, out = call["self"], call.outs[0]
    call.result(0)
    spread = batch_of(out) * prod(matrix.shape[-2:]) * matrix.element_size()
    dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    call.ask(0 if dense and spread == nbytes(matrix) else spread, "TEMPORARY")
    _triangular(call, matrix, out)
