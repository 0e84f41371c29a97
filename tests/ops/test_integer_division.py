"""Integers divided: by 0 in every form, which is refused, and towards zero in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import assert_same

DTYPES = ["int8", "int16", "int32", "int64", "uint8"]
FORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "//": lambda lib, x, y: x // y,
    "%": lambda lib, x, y: x % y,
    "floor_divide": lambda lib, x, y: lib.floor_divide(x, y),
    "remainder": lambda lib, x, y: lib.remainder(x, y),
    "fmod": lambda lib, x, y: lib.fmod(x, y),
    "div floor": lambda lib, x, y: lib.div(x, y, rounding_mode="floor"),
    "div trunc": lambda lib, x, y: lib.div(x, y, rounding_mode="trunc"),
    "div_ floor": lambda lib, x, y: x.div_(y, rounding_mode="floor"),
    "div_ trunc": lambda lib, x, y: x.div_(y, rounding_mode="trunc"),
    "floor_divide_": lambda lib, x, y: x.floor_divide_(y),
    "remainder_": lambda lib, x, y: x.remainder_(y),
}
REFLECTED = {"//": lambda lib, x, y: x // y, "%": lambda lib, x, y: x % y}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_by_zero_is_refused(form: str, dtype: str):
    run, values, divisors = FORMS[form], [5, 0, 7, 100], [1, 2, 0, 3]
    for other in (0, False, divisors):
        for lib in (torch, tm):
            x = lib.tensor(values, dtype=getattr(lib, dtype))
            y = lib.tensor(other, dtype=getattr(lib, dtype)) if other is divisors else other
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                run(lib, x, y)
            if lib is tm:
                assert x.tolist() == values, "what was refused must have changed nothing"
    for number in (0, 7):
        with pytest.raises(ZeroDivisionError):
            REFLECTED["//"](tm, number, tm.tensor(divisors, dtype=dtype))
        with pytest.raises(ZeroDivisionError):
            REFLECTED["%"](tm, number, tm.tensor(divisors, dtype=dtype))


BOOLS = {**FORMS, "-": lambda lib, x, y: x - y, "**": lambda lib, x, y: x**y, "<<": lambda lib, x, y: x << y}


@pytest.mark.parametrize("form", BOOLS)
def test_bools_are_refused_as_by_pytorch(form: str):
    """A mask beside a mask or a bool: PyTorch has no such kernels, and a bool would be the sum of what nobody meant."""
    run = BOOLS[form]
    for other in ([True, True], True, "0-d", [1, 2], 3, [1.0, 2.0]):
        found = []
        for lib in (torch, tm):
            x = lib.tensor([True, False])
            y = lib.tensor(True) if other == "0-d" else lib.tensor(other) if isinstance(other, list) else other
            try:
                found.append(run(lib, x, y).tolist())
            except (RuntimeError, NotImplementedError):
                found.append("refused")
                assert x.tolist() == [True, False]
        assert found[0] == found[1], (form, other)
    for lib in (torch, tm):
        with pytest.raises(RuntimeError, match="bool tensor is not supported"):
            lib.ones(2) - True


@pytest.mark.parametrize("form", FORMS)
def test_without_elements_nothing_is_divided(form: str):
    assert FORMS[form](tm, tm.zeros(0, dtype=tm.int64), 0).tolist() == []
    assert FORMS[form](tm, tm.zeros(0, dtype=tm.int64), tm.zeros(1, dtype=tm.int64)).tolist() == []
    wanted = FORMS[form](torch, torch.zeros(2), 0.0).numpy()
    np.testing.assert_array_equal(FORMS[form](tm, tm.zeros(2), 0.0).numpy(), wanted)


@pytest.mark.parametrize("form", FORMS)
def test_on_meta_a_number_is_known_and_a_tensor_is_not(form: str):
    x = tm.ones(3, dtype=tm.int64, device="meta")
    with pytest.raises(ZeroDivisionError):
        FORMS[form](tm, x, 0)
    assert FORMS[form](tm, x, tm.ones(3, dtype=tm.int64, device="meta")).shape == (3,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_quotients_are_pytorchs(form: str, dtype: str, reliability: Any):
    limits = np.iinfo(dtype)
    ends = [limits.max, limits.max - 1, limits.min + 1, limits.min + 2] if limits.min else [limits.max, limits.max - 1]
    values = np.array([0, 1, 2, 3, 7, 100, *([-1, -2, -3, -7, -100] if limits.min else []), *ends], dtype)
    x, y = (side.reshape(-1) for side in np.meshgrid(values, values[values != 0]))
    for other in (y, *(int(number) for number in values[1:4])):
        found = [
            FORMS[form](lib, lib.tensor(x.copy()), lib.tensor(y.copy()) if other is y else other).numpy() for lib in (tm, torch)
        ]
        assert found[0].dtype == found[1].dtype
        np.testing.assert_array_equal(*found)
    reliability("integer divisions compared with PyTorch", x.size)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_to_negative_powers(dtype: str):
    """0 for what is no integer, as in PyTorch; beside a number as an exponent, which is seen before, both refuse."""
    bases, powers = np.meshgrid(np.array([-3, -2, -1, 0, 1, 2, 127]), np.array([-128, -3, -2, -1, 0, 1, 2, 3]))
    for x, y in ((bases, powers), (np.tile(bases, (1, 3000)), np.tile(powers, (1, 3000))), (bases.T, powers.T)):
        mine, other = ([lib.tensor(a.astype(dtype)) for a in (x, y)] for lib in (tm, torch))
        assert_same(mine[0] ** mine[1], other[0] ** other[1], (0, 0))
        assert_same(mine[0].clone().pow_(mine[1]), other[0].clone().pow_(other[1]), (0, 0))
        for number in (-2, -1, 0, 1, 2):
            assert_same(number ** mine[1], number ** other[1], (0, 0))
    for lib in (tm, torch):
        with pytest.raises(RuntimeError, match="negative integer powers"):
            lib.tensor([2]) ** -1


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
def test_unsigned_integers_to_negative_powers_in_place(dtype: str):
    """NumPy cannot compare unsigned numbers with -1 under ``where=``: the process ended."""
    x, y = np.meshgrid(np.array([0, 1, 2, 253, 255], np.uint8), np.array([-128, -3, -1, 0, 1, 2, 100, 300]).astype(dtype))
    assert_same(tm.tensor(x).pow_(tm.tensor(y)), torch.tensor(x).pow_(torch.tensor(y)), (0, 0))


@pytest.mark.parametrize("rounding", [None, "trunc", "floor"])
@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7.5, 2)])
def test_two_numbers_make_a_tensor(a: float, b: float, rounding: str | None):
    found, expected = tm.div(a, b, rounding_mode=rounding), torch.div(a, b, rounding_mode=rounding)
    assert (found.item(), found.dtype.name) == (expected.item(), str(expected.dtype).rpartition(".")[2])
