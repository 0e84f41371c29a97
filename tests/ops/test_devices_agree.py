"""What the cpu and a GPU make of the same numbers: every row of the contract, on the values where formulas break.

Special values come one by one into elementwise functions; over lines they are put, one at a time, among ordinary numbers,
and nan and the infinities must come out at the same places. What may differ is listed, each with its reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import TOLERANCE, OpCase, flat, values
from tests.ops import cases
from tests.ops.test_special_values import ONE_BY_ONE, OVER_LINES, run, specials
from tests.ops.test_special_values import TOLERANCE as RELATIVE
from tests.profiles import share, share_of_each, some
from tinygrad_mem.nn import functional as F

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]

FAMILIES = {
    module.name: [case for case in importlib.import_module(f"{cases.__name__}.{module.name}").CASES if case.exact]
    for module in pkgutil.iter_modules(cases.__path__)
}
FINITE = {
    "conv": "what is computed in tiles spreads a nan over its tile",
    "attention": "an infinite score beside a mask of -inf is nan where masks are added, and is not where they are asked",
}
DIFFERENCES = {
    "binary_cross_entropy": "a GPU is not waited for, to look at values",
    "histc": "nor here",
    "prod": "the others of a line are found by dividing, or not",
    "cumprod": "as for prod",
}
"""Beginning of a row's name -> why special values may make its answers differ."""
INTEGERS = ("uint8", "int64")


def numbers(case: OpCase, dtype: str, one_by_one: bool, finite: bool, real_gpu: bool) -> Iterator[list[np.ndarray]]:
    """The inputs of a row, and the same with special values in them."""
    base = [np.asarray(a) for a in case.inputs(np.random.default_rng(3))]
    large = specials(dtype)
    if dtype == "float64" and real_gpu:  # CUDA's logarithm takes a negative subnormal number for -0.0
        large = large[~((large < 0) & (large > -np.finfo(dtype).tiny))]
    some = np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan], dtype)
    rng = np.random.default_rng(0)

    def made(change: Any) -> list[np.ndarray]:
        return [np.asarray(change(i, a.copy()), dtype) if a.dtype.kind == "f" else a for i, a in enumerate(base)]

    def put(value: float) -> Any:
        def change(i: int, a: np.ndarray) -> np.ndarray:
            if a.size:
                a.reshape(-1)[(3 * i + 1) % a.size] = value
            return a

        return made(change)

    yield made(lambda i, a: a)
    yield made(lambda i, a: np.zeros(a.shape))
    if one_by_one:
        yield made(lambda i, a: rng.choice(large, a.shape))
    if not finite and not case.name.startswith(tuple(DIFFERENCES)):
        yield made(lambda i, a: rng.choice(some, a.shape))
        yield from (put(value) for value in share((np.nan, np.inf, -np.inf), 3, (case.name, dtype)))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        (family, dtype)
        for family, rows in FAMILIES.items()
        for dtype in some(("float32", "float64", "float16"), ("float32", "float16"))  # a kernel's source is the same in each
        if rows and (dtype != "float32" or family not in (*ONE_BY_ONE, *OVER_LINES))  # those test_special_values compares
    ],
)
def test_every_row_on_special_values(family: str, dtype: str, real_gpu: bool):
    """A usual run takes half of the rows of each op, and at least one; in float16 a third."""
    found = []
    rows = share_of_each(FAMILIES[family], 3 if dtype == "float16" else 2, lambda case: str(case.op))
    one_by_one = family in ONE_BY_ONE
    with np.errstate(all="ignore"):
        for case in rows:
            for arrays in numbers(case, dtype, one_by_one, family in FINITE, real_gpu):
                here, there = (run(tm, case, arrays, dtype, device) for device in ("cpu", "cuda"))
                found += [f"{case.name}: {what}" for what in unlike(here, there, arrays, dtype, one_by_one)]
    assert not found, "\n".join(found)


def unlike(here: Any, there: Any, arrays: list[np.ndarray], dtype: str, one_by_one: bool) -> list[str]:
    """Where two answers differ, in words."""
    if isinstance(here, Exception) or isinstance(there, Exception):
        return [] if type(here) is type(there) else [f"{here!r:.200} and {there!r:.200}"]
    sizes = [np.abs(a[np.isfinite(a)], dtype=np.float64).max(initial=1.0) for a in arrays if a.dtype.kind == "f"]
    near = TOLERANCE[dtype][1] if one_by_one else 200 * float(np.finfo(dtype).eps) * max(sizes, default=1.0)
    found = []
    for (what, a), (_, b) in zip(here, there, strict=True):
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found += [f"{what}: {a!r:.100} and {b!r:.100}"] if a is not b else []
            continue
        same = np.isclose(b.astype(np.float64), a.astype(np.float64), RELATIVE[dtype], near, equal_nan=True)
        if not same.all():
            place = np.unravel_index(np.flatnonzero(~same)[0], same.shape)
            beside = [x[place] for x in arrays if x.shape == a.shape]
            found.append(f"{what} {a[place]} and {b[place]} at {tuple(map(int, place))} of {beside} ({(~same).sum()} such)")
    return found


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_at_their_ends(dtype: str):
    ends = np.iinfo(dtype)
    line = np.array([ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1, 2, 5], dtype)
    x, y = (a.reshape(-1) for a in np.meshgrid(line, line))
    bits = 8 * line.itemsize
    found = []
    for name, function in {
        "add": lambda x, y: x + y,
        "mul": lambda x, y: x * y,
        "floor_divide": lambda x, y: x // tm.where(y == 0, 3, y),
        "remainder": lambda x, y: x % tm.where(y == 0, 3, y),
        "shifts": lambda x, y: ((x << y.clamp(0, bits + 1)), (x >> y.clamp(0, bits + 1))),
        "bits": lambda x, y: (x & y, x | y, x ^ y, ~x),
        "clamp": lambda x, y: (x.clamp(1, 3), x.clamp(3, 1), x.clamp(min=2)),
        "compare": lambda x, y: (x < y, x == y, tm.maximum(x, y), tm.minimum(x, y)),
        "signs": lambda x, y: (x.abs(), x.sign(), -x),
        "sums": lambda x, y: (x.sum(), x.prod(), x.cumsum(0)),
        "places": lambda x, y: (x.argmax(), x.argmin(), x.max(), x.min(), x.sort(stable=True)[1]),
        "floats": lambda x, y: (x / (y | 1), x.float(), x.double().sqrt(), x > 1.5),
        "activations": lambda x, y: (F.relu(x), F.relu6(x), F.threshold(x, 1, 2), F.hardtanh(x, 0, 3)),
    }.items():
        results = []
        for device in ("cpu", "cuda"):
            try:
                answer = function(tm.tensor(x, device=device), tm.tensor(y, device=device))
                results.append([(t.dtype, values(t)) for t in flat(answer)])
            except (RuntimeError, ValueError, TypeError) as error:
                results.append(type(error))
        here, there = results
        if isinstance(here, type) or isinstance(there, type):
            found += [f"{name}: {here}, {there}"] if here is not there else []
            continue
        for (kind, a), (other, b) in zip(here, there, strict=True):
            same = np.allclose(a, b, rtol=1e-6, atol=0, equal_nan=True) if kind.kind == "f" else np.array_equal(a, b)
            if kind != other or not same:
                wrong = np.flatnonzero(~np.isclose(a, b, rtol=1e-6, equal_nan=True)) if a.shape == b.shape else []
                found.append(f"{name}: {kind} {a.reshape(-1)[wrong][:5]} and {other} {b.reshape(-1)[wrong][:5]} at {wrong[:5]}")
    assert not found, "\n".join(found)


def test_what_is_no_row():
    """Bounds, orders and norms of nan; the gradient of a 2-norm at nan; bounds that cross."""
    nan, inf = float("nan"), float("inf")
    x = np.array([[0.0, -1.0, nan, 3.0], [inf, 1.0, -inf, 2.0]])
    for dtype in ("float32", "float16"):
        for name, function in {
            "clamp": lambda x: tm.cat([x.clamp(*bounds) for bounds in ((nan, 1), (0, nan), (2, 1), (None, nan), (-inf, inf))]),
            "extremum": lambda x: tm.cat([tm.maximum(x, x.flip(0)), tm.minimum(x, x.flip(0)), tm.maximum(x, tm.zeros_like(x))]),
            "2-norm": lambda x: x.norm(dim=1),
            "norms": lambda x: tm.stack([x.norm(p, dim=1) for p in (0, 0.5, 1, 3, inf, -inf)]),
            "norm(p=nan)": lambda x: x.norm(nan, dim=1),
            "largest": lambda x: tm.cat([x.amax(1), x.amin(1), x.max(1)[0], x.logsumexp(1)]),
        }.items():
            results = []
            for device in ("cpu", "cuda"):
                t = tm.tensor(x.astype(dtype), device=device, requires_grad=True)
                with np.errstate(all="ignore"):
                    y = function(t)
                    y.backward(tm.ones_like(y))
                gradient: Any = t.grad
                results.append((values(y), values(gradient)))
            for a, b in zip(*results, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-3, err_msg=f"{name} {dtype}")


def test_the_lists_name_rows():
    names = [case.name for case in cases.CASES]
    assert set(FINITE) <= FAMILIES.keys()
    assert all(any(name.startswith(begin) for name in names) for begin in DIFFERENCES)


def with_gradient(function: Any, array: Any) -> list[Any]:
    """What the function makes of the array, and the array's gradient."""
    x = tm.tensor(array, requires_grad=True)
    results = flat(function(x))
    tm.autograd.backward(results, [tm.arange(1, y.numel() + 1).to(y.dtype).reshape(y.shape) for y in results])
    return [*results, x.grad]


def no_sequences(kind: str) -> list[Any]:
    return with_gradient(getattr(tm.nn, kind)(3, 2, 2, bidirectional=True).double(), np.ones((4, 0, 3)))


LINES = np.array([[0.5, 2.0, -1.0], [3.0, 0.0, -0.0]])


def in_dtype(name: str, *arguments: Any) -> list[Any]:
    """Of numbers in another dtype than that of the result and its gradient."""
    return with_gradient(lambda x: getattr(tm, name)(x, *arguments, dtype=tm.float32), LINES)


BORDERS: dict[str, Any] = {
    "a power below 0 of zeros of both signs": lambda: [tm.norm(tm.tensor([[0.0, 3.0], [-0.0, 4.0]]), -1, 0)],
    "the nan-norm of nothing": lambda: [tm.norm(tm.ones(0, 3), np.nan), tm.norm(tm.ones(0, 3), np.nan, 0)],
    **{f"{kind} of no sequences": lambda kind=kind: no_sequences(kind) for kind in ("RNN", "LSTM", "GRU")},
    **{f"{name} in float32": lambda name=name: in_dtype(name) for name in ("sum", "mean", "prod", "nansum")},
    **{f"{name} in float32": lambda name=name: in_dtype(name, -1) for name in ("cumsum", "cumprod", "softmax", "log_softmax")},
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders(name: str):
    found = []
    for device in ("cpu", "cuda"):
        with tm.device(device):
            found.append([(t.dtype, values(t)) for t in BORDERS[name]()])
    for (kind, here), (other, there) in zip(*found, strict=True):
        assert kind == other
        assert here.shape == there.shape
        assert np.allclose(here, there, 1e-5, 1e-6, equal_nan=True)
