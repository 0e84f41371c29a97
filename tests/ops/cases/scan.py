"""Rows of the running sums, products and extrema."""

from tests.case import OpCase


def make(*shapes):
    return lambda rng: [rng.standard_normal(shape) for shape in shapes]


def with_zeros(rng):
    """No zero, one, and two in a line."""
    x = rng.standard_normal((9, 20))
    x[3, 1:3] = x[0, 4] = x[8, 5] = x[[2, 6], 2] = 0
    return [x]


def row(name, op, run, saved=None, inputs=None, **options):
    return OpCase(name, op, run, run, inputs or make((5, 6, 7)), saved=saved, **options)


CASES = [
    row("cumsum", "CumSum", lambda x: x.cumsum(1)),
    row("cumsum_last", "CumSum", lambda x: x.cumsum(-1)),
    row("cumprod", "CumProd", lambda x: x.cumprod(0), lambda x, y: 2 * x.nbytes),
    row("cumprod_zeros", "CumProd", lambda x: x.cumprod(0), lambda x, y: 2 * x.nbytes, with_zeros),
    row("cummax", "CumExtremum", lambda x: x.cummax(1), lambda x, y, i: i.nbytes),
    row("cummin", "CumExtremum", lambda x: x.cummin(-1), lambda x, y, i: i.nbytes),
]
