"""Rows of the products."""

import numpy as np
import torch

import tinygrad_mem as tm
from tests.case import OpCase
from tinygrad_mem.functional.linalg import linear


def make(*shapes):
    return lambda rng: [rng.standard_normal(shape) for shape in shapes]


def factors(x, y, *_):
    return x.nbytes + y.nbytes


def row(name, op, run, reference, inputs, saved):
    return OpCase(name, op, run, reference, inputs, saved=saved)


def experts(rng):
    """Rows of experts; the second has none, and the last row is of none."""
    return [rng.standard_normal((7, 4)), rng.standard_normal((3, 4, 8)), np.array([2, 2, 6], np.int32)]


def one_by_one(x, y, ends):
    """PyTorch's own takes no float64, and leaves the last row as it found it."""
    parts = torch.tensor_split(x, ends.tolist())
    return torch.cat([part @ w for part, w in zip(parts, y, strict=False)] + [parts[-1] @ y[0] * 0])


def triangles(*shapes):
    """Matrices whose diagonals are far from 0; what is on the other side of it is not read."""
    return lambda rng: [rng.uniform(0.5, 1, shape) for shape in shapes]


def solves(**options):
    ours, theirs = (lambda a, b, L=L: L.linalg.solve_triangular(a, b, **options) for L in (tm, torch))
    name = "solve_triangular_" + "_".join(f"{key}_{value}" for key, value in options.items())
    shapes = ((2, 4, 4), (3, 1, 4, 5)) if options.get("left", True) else ((2, 4, 4), (5, 4))
    return row(name, "SolveTriangular", ours, theirs, triangles(*shapes), lambda a, b, y: a.nbytes + y.nbytes)


CASES = [
    solves(upper=False),
    solves(upper=True),
    solves(upper=False, unitriangular=True),
    solves(upper=True, unitriangular=True),
    solves(upper=True, left=False),
    row(
        "grouped_mm",
        "GroupedMatMul",
        lambda x, y, ends: tm.nn.functional.grouped_mm(x, y, offs=ends),
        one_by_one,
        experts,
        lambda x, y, ends, *_: x.nbytes + y.nbytes + ends.nbytes,
    ),
    row("mm", "MatMul", tm.mm, torch.mm, make((5, 6), (6, 7)), factors),
    row("bmm", "MatMul", tm.bmm, torch.bmm, make((3, 5, 6), (3, 6, 7)), factors),
    row("matmul_broadcast", "MatMul", tm.matmul, torch.matmul, make((2, 1, 5, 6), (3, 6, 7)), factors),
    row("matmul_rows", "MatMul", tm.matmul, torch.matmul, make((2, 3, 5, 6), (6, 7)), factors),
    row("matmul_vector", "MatMul", tm.matmul, torch.matmul, make((5, 6), (6,)), factors),
    row("dot", "MatMul", tm.dot, torch.dot, make((20,), (20,)), factors),
    row("linear", "Linear", linear, torch.nn.functional.linear, make((5, 6), (7, 6), (7,)), factors),
    row("linear_leading", "Linear", linear, torch.nn.functional.linear, make((2, 3, 6), (7, 6)), factors),
    row(
        "addmm",
        "AddMM",
        lambda x, a, b: tm.addmm(x, a, b, beta=0.5, alpha=2),
        lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2),
        make((7,), (5, 6), (6, 7)),
        lambda x, a, b, y: a.nbytes + b.nbytes,
    ),
    row(
        "baddbmm",
        "AddMM",
        tm.baddbmm,
        torch.baddbmm,
        make((3, 5, 7), (3, 5, 6), (3, 6, 7)),
        lambda x, a, b, y: a.nbytes + b.nbytes,
    ),
    row(
        "einsum",
        "MatMul",
        lambda x, y: tm.einsum("bik,bkj->bij", x, y),
        lambda x, y: torch.einsum("bik,bkj->bij", x, y),
        make((3, 5, 6), (3, 6, 7)),
        factors,
    ),
]
