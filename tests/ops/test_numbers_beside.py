"""Python's numbers beside integer tensors: each device refuses those that the tensor's dtype does not hold."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.conftest import DEVICES
from tinygrad_mem.errors import ArgumentError, DTypeError
from tinygrad_mem.nn import functional as F

CALLS: dict[str, Callable[[Any, int], Any]] = {
    "add": lambda x, n: x + n,
    "sub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "mul of bools": lambda x, n: (x > 0) * (n << 63),
    "in place": lambda x, n: x.mul_(n),
    "alpha": lambda x, n: tm.add(x, x, alpha=n),
    "addcmul": lambda x, n: tm.addcmul(x, x, x, value=n),
    "floor_divide": lambda x, n: x // n,
    "remainder": lambda x, n: n % x,
    "fmod": lambda x, n: tm.fmod(x, n),
    "trunc": lambda x, n: tm.div(x, n, rounding_mode="trunc"),
    "shift": lambda x, n: x << n,
    "right shift": lambda x, n: n >> x,
    "and": lambda x, n: x & n,
    "or": lambda x, n: x | n,
    "clamp": lambda x, n: tm.clamp(x, n, 5),
    "clip": lambda x, n: x.clip(max=n),
    "hardtanh": lambda x, n: F.hardtanh(x, 0, n) if n > 0 else F.hardtanh(x, n, 0),
    "where": lambda x, n: tm.where(x > 0, x, n),
    "where not": lambda x, n: tm.where(x > 0, n, x),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "addmm": lambda x, n: tm.addmm(x[:, None], x[:, None], x.new_ones(1, 1), alpha=n),
    "addmm_": lambda x, n: x[:, None].addmm_(x[:, None], x.new_ones(1, 1), beta=n),
    "baddbmm": lambda x, n: tm.baddbmm(x[None, :, None], x[None, :, None], x.new_ones(1, 1, 1), alpha=n),
}


@pytest.mark.parametrize("dev", [*DEVICES, "meta"])
@pytest.mark.parametrize(("dtype", "number"), [("int8", 300), ("int8", -300), ("int32", 1 << 31), ("int64", -(1 << 70))])
def test_a_number_that_the_dtype_does_not_hold_is_refused_on_every_device(dev: str, dtype: str, number: int):
    """CuPy takes some, and some beside an empty array: clamp and where were wrong. On meta a prediction went on."""
    for call in CALLS.values():
        for size in (3, 0):
            x = tm.ones(size, dtype=getattr(tm, dtype), device=dev)
            with pytest.raises(ArgumentError, match=r"out of bounds for|without overflow"):
                call(x, number)


def test_numbers_that_are_held_are_taken(dev: str):
    x = tm.tensor([1, -2, 3], dtype=tm.int64, device=dev)
    least = -(1 << 63)
    assert (x << least).tolist() == [0, 0, 0]
    assert tm.clamp(x.int(), -(1 << 31), 2).tolist() == [1, -2, 2]
    assert (x == 1 << 70).tolist() == [False] * 3
    assert (x.double() + (1 << 70)).tolist() == [2.0**70] * 3


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_a_comparison_is_of_the_numbers_themselves(dtype: str, dev: str):
    """PyTorch wraps a number round that the dtype does not hold: ``uint8 > -1`` is False everywhere there."""
    values = [0, 1, 44, 127]
    x = tm.tensor(values, dtype=getattr(tm, dtype), device=dev)
    for number in (-1, -200, 1, 200, 256, 300, 1 << 40, -(1 << 40), 1 << 63, -(1 << 63), (1 << 64) - 1):
        for name in ("eq", "ne", "lt", "le", "gt", "ge"):
            expected = [getattr(operator, name)(value, number) for value in values]
            assert getattr(x, name)(number).tolist() == expected, f"{name} of {dtype} and {number}"
            assert getattr(operator, name)(x, number).tolist() == expected
        assert (number in x) == (number in values)


NUMPYS: list[Any] = [np.int32(2), np.int64(3), np.uint8(3), np.float16(0.5), np.float32(0.5), np.float64(0.5)]
BESIDE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda lib, x, n: x + n,
    "div": lambda lib, x, n: x / n,
    "pow": lambda lib, x, n: x**n,
    "floor_divide": lambda lib, x, n: x // n,
    "rsub": lambda lib, x, n: lib.rsub(x.float(), n),
    "clamp": lambda lib, x, n: x.clamp(n, n + 1),
    "where": lambda lib, x, n: lib.where(x > 0, x, n),
    "where of numbers": lambda lib, x, n: lib.where(x > 0, n, n),
    "xlogy": lambda lib, x, n: lib.xlogy(x, n),
}


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16", "float64"])
@pytest.mark.parametrize("name", BESIDE)
def test_a_number_of_numpys_is_a_number_of_pythons(name: str, dtype: str, dev: str):
    """It had a dtype of its own: a whole tensor times ``np.float64(0.5)`` was float64, 2 in int32 beside bools int32."""
    for number in NUMPYS:
        mine, theirs = (lib.tensor([0, 1, 1], dtype=getattr(lib, dtype)) for lib in (tm, torch))
        found, expected = BESIDE[name](tm, mine.to(dev), number).cpu(), BESIDE[name](torch, theirs, number)
        assert f"torch.{found.dtype}" == str(expected.dtype), number
        np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-3 if dtype == "float16" else 1e-6)


def test_numpys_whole_numbers_are_sizes():
    """``FloatTensor(n, m)`` of sizes that NumPy computed held the two numbers."""
    for name in ("Tensor", "FloatTensor", "LongTensor"):
        for sizes in ((np.int64(3),), (np.int32(3), 2), (2, np.int64(0)), (np.array(3),), (np.array(2, np.int32), 2)):
            mine, theirs = (getattr(lib, name)(*sizes) for lib in (tm, torch))
            assert (mine.shape, f"torch.{mine.dtype}") == (tuple(theirs.shape), str(theirs.dtype))
    for make in (tm.nn.LayerNorm, tm.nn.RMSNorm):
        assert make(cast(Any, np.int64(2))).normalized_shape == (2,)

    assert tm.Tensor(np.array(3.5)).item() == torch.Tensor(np.array(3.5)).item() == 3.5


def test_bytes_that_can_change_are_numbers():
    for name in ("tensor", "as_tensor"):
        mine, theirs = (getattr(lib, name)(bytearray(b"ab")) for lib in (tm, torch))
        assert (mine.tolist(), f"torch.{mine.dtype}") == (theirs.tolist(), str(theirs.dtype))


def test_a_numpy_number_that_the_dtype_does_not_hold_is_refused(dev: str):
    """It wrapped round in silence."""
    x = tm.ones(3, dtype=tm.uint8, device=dev)
    shifted = CALLS["mul of bools"]  # which is 0 in NumPy's 64 bits
    for call in (*CALLS.values(), lambda x, n: x.__setitem__(0, n), lambda x, n: x.pow_(n)):
        if call is shifted:
            continue
        with pytest.raises(ArgumentError, match=r"out of bounds for|without overflow"):
            call(x, cast(Any, np.int64(300)))


def test_a_numpy_float_is_no_factor_of_integers(dev: str):
    """It was rounded down on a GPU, in silence."""
    x = tm.ones(3, dtype=tm.int32, device=dev)
    numbers: list[Any] = [1.5, np.float32(1.5), np.float64(1.5)]
    for number in numbers:
        with pytest.raises(DTypeError, match="must not be a floating point number"):
            tm.addcmul(x, x, x, value=number)


@pytest.mark.parametrize("dev", [*DEVICES, "meta"])
def test_a_border_below_zero_of_unsigned_numbers_is_refused(dev: str):
    """It was 255. ``full`` and ``fill_`` wrap round, as PyTorch's do; its ``pad`` refuses."""
    with pytest.raises(ArgumentError, match="pad: value -1 cannot be converted to type uint8 without overflow"):
        F.pad(tm.zeros(2, dtype=tm.uint8, device=dev), (1, 1), value=-1)


@pytest.mark.parametrize("name", ["float", "int", "byte"])
def test_a_name_that_numpy_and_pytorch_mean_differently_is_refused(name: str):
    """``tm.float`` is float32, and ``dtype="float"`` made float64."""
    for make in (lambda: tm.zeros(2, dtype=name), lambda: tm.tensor([1], dtype=name), lambda: tm.ones(2).to(name)):
        with pytest.raises(RuntimeError, match=f"'{name}'"):
            make()
    assert tm.zeros(2, dtype="float32").dtype == tm.float
