"""Rows of the products."""

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


CASES = [
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
