"""Rows of the reductions."""

import torch

import tinygrad_mem as tm
from tests.case import OpCase


def make(*shapes, shift=0.0):
    return lambda rng: [rng.standard_normal(shape) + shift for shape in shapes]


def row(name, op, run, saved=None, inputs=None, **options):
    """Ours and PyTorch's by the same expression: methods have the same names."""
    return OpCase(name, op, run, run, inputs or make((5, 6, 7)), saved=saved, **options)


def tied(rng):
    return [rng.integers(-2, 3, (5, 6, 7)).astype(float)]


def x_only(x, *outputs):
    return x.nbytes


def x_and_y(x, y):
    return x.nbytes + y.nbytes


def indices(x, y, i):
    return i.nbytes


CASES = [
    row("sum", "Sum", lambda x: x.sum()),
    row("sum_dims", "Sum", lambda x: x.sum((0, -1), keepdim=True)),
    row("mean", "Mean", lambda x: x.mean()),
    row("mean_dim", "Mean", lambda x: x.mean(1)),
    row("prod", "Prod", lambda x: x.prod(), x_and_y, make((4, 5))),
    row("prod_dim", "Prod", lambda x: x.prod(1, keepdim=True), x_and_y),
    row("var", "Var", lambda x: x.var((0, 2)), lambda x, y: x.nbytes + y.nbytes),
    row("std_biased", "Var", lambda x: x.std(-1, correction=0, keepdim=True), lambda x, y: x.nbytes + 2 * y.nbytes),
    OpCase(
        "std_mean",
        "Var",
        lambda x: tm.std_mean(x, 0),
        lambda x: torch.std_mean(x, 0),
        make((5, 6, 7)),
        saved=lambda x, y, m: x.nbytes + y.nbytes + m.nbytes,
    ),
    row("amax", "Extremum", lambda x: x.amax((0, 2)), x_and_y),
    row("amin", "Extremum", lambda x: x.amin(1, keepdim=True), x_and_y),
    row("max", "Extremum", lambda x: x.max(), x_and_y),
    row("max_dim", "ExtremumAlong", lambda x: x.max(1), indices),
    row("min_dim", "ExtremumAlong", lambda x: x.min(-1, keepdim=True), indices),
    row("argmax", "ArgExtremum", lambda x: x.argmax(), grad=False),
    row("argmin", "ArgExtremum", lambda x: x.argmin(1, keepdim=True), grad=False),
    row("all", "Truth", lambda x: (x > -1).all(1), grad=False),
    row("any", "Truth", lambda x: (x > 1).any(), grad=False),
    row("count_nonzero", "CountNonzero", lambda x: x.count_nonzero((0, 1)), inputs=tied, grad=False),
    row("logsumexp", "LogSumExp", lambda x: x.logsumexp((0, 2)), x_and_y),
    row("norm", "Norm", lambda x: x.norm(), x_and_y),
    row("norm_dim", "Norm", lambda x: x.norm(2, dim=(1, 2), keepdim=True), x_and_y),
    row("norm_1", "Norm", lambda x: x.norm(1, dim=1), x_only),
    row("norm_3", "Norm", lambda x: x.norm(3, dim=0), x_and_y),
    row("norm_half", "Norm", lambda x: x.norm(0.5, dim=0), x_and_y, tolerance=(1e-4, 1e-4)),
    row("norm_inf", "Norm", lambda x: x.norm(float("inf"), dim=1), x_and_y),
    row("norm_minus_inf", "Norm", lambda x: x.norm(-float("inf"), dim=(0, 1)), x_and_y),
]
