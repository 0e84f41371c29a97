"""``@computed``: what is made of a formula computes what the formula says, in place too, and asks for no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.witness import numpy_allocations
from tinygrad_mem.kernels.numpy.fast import computed as of_formulas
from tinygrad_mem.kernels.numpy.fast.computed import computed, expm1, log1p

FORMULAS: dict[str, Any] = {
    "x itself": lambda x, y, out: x,
    "a number": lambda x, y, out: 3.0,
    "one step": lambda x, y, out: x + y,
    "twice the same": lambda x, y, out: (x * y) * (x * y),
    "what is given is read again": lambda x, y, out: np.exp(-x) * y + x,
    "many at once": lambda x, y, out: (x + 1) * (y + 2) + (x + 3) * (y + 4) + (x + 5) * (y + 6),
    "keep": lambda x, y, out: np.where(x > 0, y, 0),
    "drop": lambda x, y, out: np.where(x > 0, 0, y),
    "choose": lambda x, y, out: np.where(x > 0, y, x * 2),
    "choose the other": lambda x, y, out: np.where(x > 0, x * 2, y),
    "choose of two that are computed": lambda x, y, out: np.where(x > y, np.tanh(x) * 2, np.tanh(y) + x),
    "choose numbers": lambda x, y, out: np.where(x > 0, 2.0, -1.0),
    "choose a number or not": lambda x, y, out: np.where(x > 0, 2.0, y) + np.where(y > 0, x, 3.0),
    "flags of flags": lambda x, y, out: np.where((x > 0) & ~(y < 0) | np.isnan(x), y, 0),
    "one choice in another": lambda x, y, out: np.where(x > 1, 1, np.where(x < -1, y * 2, np.where(y > 0, x, 0))),
    "sign": lambda x, y, out: np.sign(x) * y + np.sign(y),
    "curves": lambda x, y, out: log1p(np.exp(-np.abs(x))) + expm1(np.minimum(y, 0)) + expm1(np.minimum(x, 0)) * x,
    "NumPy's own curves, of any numbers": lambda x, y, out: np.log1p(np.abs(x) * 9) + np.expm1(np.abs(y)),
    "a curve of what is read again": lambda x, y, out: (lambda low: expm1(low) + low)(np.minimum(x, 0)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [0, 1, 7, 20_000])
@pytest.mark.parametrize("plain", FORMULAS.values(), ids=FORMULAS)
def test_it_computes_the_formula(plain: Any, size: int, dtype: str):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, size)).astype(dtype)
    wanted = np.broadcast_to(plain(x.astype(np.float64), y.astype(np.float64), None), size)
    kernel, tolerance = computed(plain), {"float16": 3e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for which in range(3):
        given = [x.copy(), y.copy()]
        out = np.empty(size, dtype) if which == 2 else given[which]  # in place of either, or in a new array
        kernel(*given, out=out)
        np.testing.assert_allclose(out, wanted, rtol=tolerance, atol=4 * tolerance)
        for which_is_read, was in enumerate((x, y)):
            if which_is_read != which:
                np.testing.assert_array_equal(given[which_is_read], was)


@pytest.mark.parametrize("plain", FORMULAS.values(), ids=FORMULAS)
def test_it_allocates_nothing(plain: Any):
    kernel, (x, y), out = computed(plain), np.ones((2, 20_000), np.float32), np.empty(20_000, np.float32)
    kernel(x, y, out)
    with numpy_allocations() as sizes:
        kernel(x, y, out)
    assert not [size for size in sizes if size > 64], "a kernel asked for memory"


def test_views_and_what_is_broadcast():
    x, y, out = np.arange(600.0).reshape(20, 30), np.arange(30.0), np.empty((30, 20)).T
    computed(lambda x, y, out: x * 2 + y)(x, y, out=out)
    np.testing.assert_array_equal(out, x * 2 + y)
    big, one, out = np.ones((200, 100)), np.full((), 2.0), np.empty((200, 100))
    computed(lambda x, y, out: np.where(x > 0, y, 0))(big, one, out=out)
    assert (out == 2).all()


def test_numbers_are_arguments_and_some_may_be_asked_for(monkeypatch: pytest.MonkeyPatch):
    written = []
    monkeypatch.setattr(of_formulas, "compiled", lambda *args, real=of_formulas.compiled: written.append(1) or real(*args))

    @computed
    def kernel(x, scale, shift, root, out):
        found = x * scale
        if shift:
            found = found + shift
        return np.sqrt(found) if root else found * np.exp(scale)

    x, out = np.full(3, 4.0), np.empty(3)
    for scale, shift, root in (
        (2.0, 0, True),
        (3.0, 0, True),
        (2.5, 1.5, True),
        (2.5, 1.5, False),
        (0.5, 7, False),
        (1, 0, None),
    ):
        kernel(x, scale, shift, root, out)
        np.testing.assert_allclose(out, kernel.formula(x, scale, shift, root, None))  # pyright: ignore
    assert len(written) == 4


def test_a_formula_cannot_choose_by_the_numbers_of_an_array():
    with pytest.raises(TypeError, match=r"use np\.where"):
        computed(lambda x, out: x if x > 0 else -x)(np.ones(3), np.empty(3))
    with pytest.raises(TypeError, match="one must be computed"):
        computed(lambda x, y, out: np.where(x > 0, x, y))(np.ones(3), np.ones(3), np.empty(3))


def test_a_formula_cannot_choose_twice_by_one_comparison():
    def twice(x, out):
        above = x > 0
        return np.where(above, np.where(above, x, 0) * 2, 0)

    with pytest.raises(TypeError, match=r"write the comparison again for each np\.where"):
        computed(twice)(np.ones(3), np.empty(3))


def test_what_is_written_for_1_serves_integers_and_floats_in_any_order():
    """1 and 1.0 are equal, and so one key: what was written for 1.0 once refused an array of integers."""
    kernel = computed(lambda x, value, out: np.where(x <= 2, value, x))
    for value, dtype in ((1.0, np.float64), (1, np.int64), (0.0, np.float32), (0, np.int64), (-0.0, np.float64)):
        x = np.arange(5, dtype=dtype)
        out = np.empty_like(x)
        kernel(x, value, out=out)
        assert out.tolist() == [value, value, value, 3, 4]
        assert np.signbit(out[0]) == np.signbit(value)


def test_what_is_written_for_1_does_not_serve_true():
    """They are equal and hash alike, and a formula may ask which it got."""
    kernel, x, out = computed(lambda x, flag, out: x + 2 if flag is True else x + flag), np.ones(3), np.empty(3)
    for flag, wanted in ((1, 2), (True, 3), (1.0, 2), (0, 1), (False, 1)):
        kernel(x, flag, out)
        np.testing.assert_array_equal(out, np.full(3, wanted))
