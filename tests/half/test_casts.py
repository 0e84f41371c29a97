"""The casts between float16 and float32 have NumPy's bits, whatever the number, the length and the layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tinygrad_mem.kernels.numpy.fast.halves import cast


def numpy_cast(x: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    whole = {2: np.uint16, 4: np.uint32}[found.itemsize]
    np.testing.assert_array_equal(found.view(whole)[~nan], expected.view(whole)[~nan])


def narrowed(x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.float16)
    before = x.copy()
    with np.errstate(all="ignore"):  # as the engine's threads have it
        cast(x, out)
    assert x.tobytes() == before.tobytes()
    return out


def test_every_half_becomes_a_float():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]  # blocks with inf or nan in them are NumPy's
    for each in (halves, finite):
        out = np.empty(each.shape, np.float32)
        cast(each, out)
        assert_same_bits(out, numpy_cast(each, np.float32))


def test_between_any_two_halves_the_nearer_one_is_found():
    """Each half, the middle between it and the next, and the floats on either side of both."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    at = np.concatenate([halves, middles, np.float32([65504, 65519.996, 65520, 65536, 1e30, np.inf, 2**-25, 2**-149])])
    x = np.concatenate(
        [each for side in (at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(0))) for each in (side, -side)]
    )
    assert_same_bits(narrowed(x), numpy_cast(x, np.float16))


@given(st.integers(0, 2**32 - 1), st.integers(1, 70_000))
def test_any_bits_of_any_length(seed: int, length: int):
    x = np.random.default_rng(seed).integers(0, 2**32, length, dtype=np.uint32).view(np.float32)
    assert_same_bits(narrowed(x), numpy_cast(x, np.float16))


@pytest.mark.parametrize("length", [200, 5000, 200_000, 1 << 20])
def test_a_tensor_goes_there_and_back(length: int):
    x = tm.linspace(-3, 3, length)
    half = x.to(tm.float16)
    assert_same_bits(half.numpy(), numpy_cast(x.numpy(), np.float16))
    assert_same_bits(half.float().numpy(), half.numpy().astype(np.float32))
    strided = x[::2].to(tm.float16)
    assert_same_bits(strided.numpy(), half.numpy()[::2])
