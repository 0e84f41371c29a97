"""Rows of a table by index, and the sum of gradients into the looked-up rows."""

from __future__ import annotations

from functools import wraps
from itertools import chain

import numpy as np

from ...dtypes import is_half
from ...errors import DimensionError
from ..formula import formula
from . import optim
from .fast import rules, threads
from .reduce import norm as _norm

# --- the formulas


def _added_rows(gy, index, padding, counts, bags, parts, out):
    found = np.bincount(index, minlength=len(out))
    for i, row in enumerate(index):
        at = i if bags is None else bags[i]
        if row != padding and at >= 0:
            out[row] += gy[at] * (1 if parts is None else parts[i]) / (1 if counts is None else found[row])
    return {"out": out, "counts": found}


def _renormed(weight, index, max_norm, norm_type):
    for row in set(index.tolist()):
        norm = np.linalg.norm(weight[row], norm_type)
        weight[row] *= max_norm / (norm + 1e-7) if norm > max_norm else 1
    return {"weight": weight}


def _sums_of_rows(index, values):
    first, out = np.full(len(index), -1), np.zeros_like(values)
    for i, row in enumerate(index):
        at = np.argmax(index == row)
        first[at] = row
        out[at] += values[i]
    return {"first": first, "out": out}


# --- the fast ways

_STEP = 1 << 13  # indices at a time


def check_rows(index, rows):
    """Refuse indices outside of ``range(rows)``. Raises: DimensionError: there is one."""
    if index.size:
        low, high = np.minimum.reduce(index, axis=None), np.maximum.reduce(index, axis=None)
        if low < 0 or high >= rows:
            found = low if low < 0 else high
            raise DimensionError(f"index out of range in self: expected 0 to {rows - 1}, found {found}")


def _indices(index):
    """(start, stop, int64 indices) of pieces of the flat ``index``."""
    for start in range(0, index.size, _STEP):
        part = index[start : start + _STEP]
        if part.dtype != np.int64:
            wide = threads.scratch(part.shape, np.int64)
            np.copyto(wide, part)
            part = wide
        yield start, start + part.size, part


@formula(lambda weight, index: weight[index])
def embedding(weight, index, out):
    """out (n, d) = the rows of weight at index (n), all within bounds."""
    for start, stop, part in _indices(index):
        np.take(weight, part, axis=0, out=out[start:stop], mode="clip")  # other modes buffer the output


def embedding_backward_workspace(count, dtype):
    """Bytes of workspace of :func:`embedding_backward` for ``count`` indices: an order of them for half precision, else 0."""
    return 8 * count if is_half(dtype) else 0


@formula(_added_rows)
def embedding_backward(gy, index, padding, counts, bags, parts, work, out):
    """out[index[i]] += gy[i], in order, except for ``padding``; divided by the index's count if counts is a buffer.

    ``counts`` has one number per row of out, or is ``None``. With ``bags`` it adds ``gy[bags[i]]``, or nothing for -1; with
    ``parts``, times ``parts[i]``. Half precision is summed in float32, one row of out after another.
    """
    if not index.size:
        return
    if counts is not None:
        counts.fill(0)
        for _, _, part in _indices(index):
            np.add.at(counts, part, 1)
    if is_half(out.dtype):
        _add_half_rows(gy, index, padding, counts, bags, parts, work, out)
        return
    rows = chain.from_iterable(index[start : start + _STEP].tolist() for start in range(0, index.size, _STEP))
    if counts is None and parts is None:
        _add_rows(rows, gy if bags is None else (gy[at] if at >= 0 else None for at in bags), padding, out)
        return
    for i, row in enumerate(rows):
        at = i if bags is None else bags[i]
        if row == padding or at < 0:
            continue
        target = out[row]
        scale = _scale(counts, row, parts, i)
        for j in range(0, target.size, _STEP):
            share = threads.scratch(target[j : j + _STEP].shape, out.dtype)
            np.multiply(gy[at, j : j + _STEP], scale, out=share)
            np.add(target[j : j + _STEP], share, out=target[j : j + _STEP])


def _add_rows(rows, values, padding, out):
    """out[row] += its values, or nothing for ``None``. The loop itself takes half of the time, so it is kept short."""
    add = np.add
    for row, value in zip(rows, values, strict=True):
        if row != padding and value is not None:
            target = out[row]
            add(target, value, target)


def _scale(counts, row, parts, i):
    """The factor of a row of a gradient, as a number."""
    part = 1.0 if parts is None else float(parts[i])
    return part if counts is None else part / float(counts[row])


def _add_half_rows(gy, index, padding, counts, bags, parts, work, out):
    """:func:`embedding_backward` of half precision: work sorts the indices by row, in their order."""
    order = work.view(np.int64)[: index.size]
    for start, stop, part in _indices(index):
        np.multiply(part, index.size, out=order[start:stop])
        np.add(order[start:stop], threads.count_up(start, 1, stop - start, 1, 2), out=order[start:stop])
    order.sort()
    for row, positions in _runs(order, index.size):
        if row == padding:
            continue
        for j in range(0, out.shape[1], _STEP):
            target = out[row, j : j + _STEP]
            total, share = (threads.scratch(target.shape, np.float32, k, 2) for k in (0, 1))
            np.copyto(total, target)
            for i in positions:
                at = i if bags is None else bags[i]
                if at < 0:
                    continue
                np.copyto(share, gy[at, j : j + _STEP])  # a sum with half precision would allocate a cast
                if counts is not None or parts is not None:
                    np.multiply(share, _scale(counts, row, parts, i), out=share)
                np.add(total, share, out=total)
            np.copyto(target, total, casting="unsafe")


def _runs(order, count):
    """(row, its positions) of the sorted ``row * count + position``."""
    row, positions = -1, []
    for start in range(0, order.size, _STEP):
        for key in order[start : start + _STEP].tolist():
            here, position = divmod(key, count)
            if here != row:
                if positions:
                    yield row, positions
                row, positions = here, []
            positions.append(position)
    if positions:
        yield row, positions


@formula(_renormed)
def embedding_renorm(weight, index, max_norm, norm_type):
    """Shrink the rows of weight at index whose ``norm_type``-norm is above ``max_norm`` to that norm, in place."""
    for row in sorted(set(index.tolist())):
        values, norm = weight[row], np.empty(1)
        _norm(values, (0,), norm_type, norm)
        if norm > max_norm:
            np.multiply(values, max_norm / (norm.item() + 1e-7), out=values)


@formula(lambda index, row, out: np.where((index == row).reshape(-1, *[1] * (out.ndim - 1)), 0, out))
def clear_rows(index, row, out):
    """out[i] = 0 where index[i] is ``row``."""
    for i, found in enumerate(index.tolist()):
        if found == row:
            out[i].fill(0)


@formula(_sums_of_rows)
def sum_rows(index, values, first, out):
    """Sum equal rows: the first of equal indices gets the sum in out and its index in first; the others get 0 and -1."""
    places: dict[int, int] = {}
    for i, row in enumerate(index.tolist()):
        at = places.setdefault(row, i)
        if at == i:
            first[i] = row
            np.copyto(out[i], values[i])
        else:
            first[i] = -1
            out[i].fill(0)
            np.add(out[at], values[i], out=out[at])


def _row_rule(*roots):
    """The kernel of an update rule for rows of a table: of each ``first[i]`` that is not -1, with g[i].

    ``roots`` are states that are kept as square roots in float16.
    """

    def kernel_of(plain):
        rule = optim._rule(*roots, but=("first",))(plain)

        @wraps(plain)
        def kernel(p, first, g, *rest):
            for i, row in enumerate(first.tolist()):
                if row >= 0:
                    rule(p[row], g[i], *[a[row] if isinstance(a, np.ndarray) else a for a in rest])

        @wraps(plain)
        def of_rows(first, g, **given):
            some = first >= 0
            rows = {name: a[first[some]] if isinstance(a, np.ndarray) else a for name, a in given.items()}
            moved = plain(first=None, g=g[some], **rows)
            for name in moved:
                given[name][first[some]] = moved[name]
            return {name: given[name] for name in moved}

        vars(kernel).update(formula=of_rows, plain=plain, roots=roots, traced="rows")
        return kernel

    return kernel_of


@_row_rule()
def sparse_sgd_step(p, first, g, lr, maximize):
    """p[first[i]] -= lr * g[i], where first[i] is not -1."""
    return {"p": p - rules.decayed(p, g, 0, maximize) * lr}


@_row_rule("v")
def sparse_adam_step(p, first, g, m, v, step_size, beta1, beta2, eps, maximize):
    """m, v = running means of g and g**2, and p -= step_size * m / (sqrt(v) + eps), in the rows first[i] that are not -1."""
    d = rules.decayed(p, g, 0, maximize)
    m, v = rules.average(m, d, beta1), rules.average_square(v, d, beta2)
    return {"p": p - m / (np.sqrt(v) + eps) * step_size, "m": m, "v": v}


@_row_rule("total")
def sparse_adagrad_step(p, first, g, total, rate, eps, maximize):
    """total += g**2, and p -= rate * g / (sqrt(total) + eps), in the rows first[i] that are not -1."""
    total = total + g * g
    return {"p": p - rules.decayed(p, g, 0, maximize) / (np.sqrt(total) + eps) * rate, "total": total}
