"""Dropout: distribution, scaling, the same mask in backward, tickets, options, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem.nn import functional as F


def mask_of(y):
    return values(y) != 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_share_and_scale(p, dtype, dev):
    x = tm.ones(400, 500, dtype=dtype, device=dev)
    y = values(F.dropout(x, p))
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / y.size)
    np.testing.assert_allclose(y[kept], 1 / (1 - p), rtol=1e-3)


def test_backward_makes_the_same_mask_in_every_tile(dev):
    x = tm.ones(700, 400, device=dev).requires_grad_()
    y = F.dropout(x, 0.3)
    assert y.grad_fn.saved == {}
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), values(y))


def test_tiles_have_masks_of_their_own():
    kept = mask_of(F.dropout(tm.ones(4, 1 << 16), 0.5))
    for i in range(3):
        assert 0.45 < (kept[i] == kept[i + 1]).mean() < 0.55


def test_the_mask_does_not_depend_on_the_layout():
    tm.manual_seed(3)
    a = F.dropout(tm.ones(30, 40), 0.5)
    tm.manual_seed(3)
    b = F.dropout(tm.ones(40, 30).t(), 0.5)
    np.testing.assert_array_equal(values(a), values(b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("p", [0.0, 2.0**-20, 0.25, 1 / 3, 1.0])
def test_the_numbers_are_those_of_philox(p, dtype):
    """The key is the seed, the counter has the tile and the call; what is dropped is 0 whatever it was."""
    tm.manual_seed(2**64 - 5)
    F.dropout(tm.ones(2))
    x = tm.full((70_000,), np.inf, dtype=dtype)
    x[::3] = np.nan
    dropped = values(F.dropout(x, p)) == 0
    for tile, first in enumerate(range(0, 70_000, 1 << 15)):
        part = dropped[first : first + (1 << 15)]
        source = np.random.Generator(np.random.Philox(key=2**64 - 5, counter=[0, tile, 1, 1]))
        bits = np.rint(source.random(-(-part.size // 3)) * 2.0**48).astype(np.uint64)
        numbers = np.concatenate([bits >> shift & 0xFFFF for shift in (0, 16, 32)])[: part.size]
        np.testing.assert_array_equal(part, numbers < np.floor(p * 2**16 + source.random()))


def test_small_probabilities_are_right_on_average():
    """Of 4 million numbers about 32 are dropped with p = 2**-17, which is half of the smallest step of 16 bits."""
    tm.manual_seed(0)
    assert 16 < np.count_nonzero(values(F.dropout(tm.ones(1 << 22), 2.0**-17)) == 0) < 48
    assert 16 < np.count_nonzero(values(F.dropout(tm.ones(1 << 22), 1 - 2.0**-17))) < 48


def test_every_call_takes_a_ticket():
    tm.manual_seed(0)
    x = tm.ones(1000)
    first, second = mask_of(F.dropout(x)), mask_of(F.dropout(x))
    assert (first != second).any()
    tm.manual_seed(0)
    np.testing.assert_array_equal(mask_of(F.dropout(x)), first)


@pytest.mark.parametrize(
    ("function", "shape"), [(F.dropout1d, (20, 30, 4)), (F.dropout2d, (20, 30, 2, 3)), (F.dropout3d, (30, 2, 2, 3))]
)
def test_channels_go_as_a_whole(function, shape, dev):
    x = tm.ones(*shape, device=dev).requires_grad_()
    y = function(x, 0.4)
    assert y.grad_fn.saved == {}
    kept = mask_of(y).reshape(-1, int(np.prod(shape[2 - (len(shape) == 4 and function is F.dropout3d) :])))
    assert (kept.all(1) | ~kept.any(1)).all()
    assert kept.any()
    assert not kept.all()
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), values(y))


@pytest.mark.parametrize("ndim", range(1, 7))
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_what_is_a_channel_is_as_in_pytorch(n: int, ndim: int):
    """dropout2d of (C, H, W) reads (N, C, L), and of (N, C) drops single elements: with a warning, in both."""

    def channels(library: Any) -> tuple | None:
        """Which leading dimensions have a draw each; ``None`` where the input is refused."""
        function = getattr(library.nn.functional, f"dropout{n}d")
        try:
            dropped = np.asarray(function(library.ones([4] * ndim), 0.5)) == 0
        except RuntimeError:
            return None
        return next(i for i in range(ndim + 1) if (dropped.reshape(4**i, -1).all(1) | ~dropped.reshape(4**i, -1).any(1)).all())

    tm.manual_seed(0)
    torch.manual_seed(0)
    assert channels(tm) == channels(torch)


def test_inputs_that_pytorch_has_deprecated_are_taken_with_a_warning():
    for function, shape, note in (
        (F.dropout2d, (3, 4), "dropout2d: found a 2-D input .* use dropout for single elements"),
        (F.dropout2d, (3, 4, 5), r"read as \(N, C, L\)"),
        (F.dropout3d, (3, 4), "dropout3d: found a 2-D input"),
    ):
        with pytest.warns(UserWarning, match=note):
            function(tm.ones(*shape), 0.5)


@pytest.mark.parametrize("function", [F.alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(function, dev):
    x = tm.randn(400, 500, device=dev)
    y = values(function(x, 0.3, training=True))
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02


def test_alpha_dropout_gradient_is_its_slope():
    x = tm.ones(2000).requires_grad_()
    y = F.alpha_dropout(x, 0.25, training=True)
    y.sum().backward()
    low = -1.7580993408473766
    a = (0.75 * (1 + 0.25 * low**2)) ** -0.5
    kept = values(y) > 0
    np.testing.assert_allclose(values(x.grad), np.where(kept, a, 0), rtol=1e-6)
    np.testing.assert_allclose(values(y)[~kept], a * low - a * low * 0.25, rtol=1e-6)
    np.testing.assert_allclose(values(y)[kept], a - a * low * 0.25, rtol=1e-6)


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout, lambda x, p, t: F.dropout1d(x, p, t)])
def test_nothing_to_do_is_the_input_itself(function):
    x = tm.ones(3, 4, 5)
    assert function(x, 0.5, False) is x
    assert function(x, 0.0, True) is x


@pytest.mark.parametrize("function", [F.dropout, F.dropout2d, F.alpha_dropout])
def test_all_dropped_is_zero(function):
    x = tm.ones(2, 3, 4, 5).requires_grad_()
    y = function(x, 1.0, True)
    y.sum().backward()
    assert not values(y).any()
    assert not values(x.grad).any()


def test_in_place():
    x = tm.ones(1000)
    y = F.dropout(x, 0.5, inplace=True)
    assert y is x
    assert x._version == 1
    assert set(np.unique(values(x))) == {0.0, 2.0}
    z = (tm.ones(1000).requires_grad_() * 1).t()
    F.dropout(z, 0.5, inplace=True).sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.dropout(tm.ones(3), 1.5), ValueError, "between 0 and 1, but got 1.5"),
        (lambda: F.dropout(tm.ones(3), -0.1), ValueError, "between 0 and 1, but got -0.1"),
        (lambda: F.dropout(tm.ones(3).to(tm.int64)), RuntimeError, "can't be cast to int64"),
        (lambda: F.dropout1d(tm.ones(3)), RuntimeError, "dropout1d: expected a 2-D or 3-D input"),
        (lambda: F.dropout2d(tm.ones(3)), RuntimeError, "dropout2d: Feature dropout requires at least 2 dimensions"),
        (lambda: F.dropout3d(tm.tensor(1.0)), RuntimeError, "dropout3d: expected at least 1 dimension"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
