"""Rows of the orders."""

from tests.case import OpCase


def distinct(*shape):
    """No two elements are equal, so that PyTorch's choice among equals does not matter."""

    def inputs(rng):
        size = 1
        for n in shape:
            size *= n
        return [rng.permutation(size).reshape(shape) / 3.0 - 5]

    return inputs


def row(name, op, run, saved=None, inputs=None, **options):
    return OpCase(name, op, run, run, inputs or distinct(5, 6, 7), saved=saved, **options)


def indices(x, y, i):
    return i.nbytes


CASES = [
    row("sort", "Sort", lambda x: x.sort(), indices),
    row("sort_descending", "Sort", lambda x: x.sort(1, descending=True), indices),
    row("topk", "TopK", lambda x: x.topk(3, dim=1), indices),
    row("topk_smallest", "TopK", lambda x: x.topk(2, largest=False), indices),
    row("median_dim", "Median", lambda x: x.median(1, keepdim=True), indices),
    row("median", "MedianOfAll", lambda x: x.median(), lambda x, y: x.nbytes + y.nbytes),
    row("argsort", "ArgSort", lambda x: x.argsort(1, descending=True), grad=False),
]
