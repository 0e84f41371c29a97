"""``accumulate_in(float16)``: what float32 accumulation is for, shown op by op; off it is as if it were not there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem.backends import accumulate_in
from tinygrad_mem.nn import functional as F

N = 3000


def ones(*shape: int) -> tm.Tensor:
    return tm.ones(*shape, dtype=tm.float16, requires_grad=True)


STALLS = {
    "matmul": (lambda: (x := ones(2, N), x @ ones(N, 3)), N, 2048),
    "batches": (lambda: (x := ones(2, 2, N), x @ ones(2, N, 3)), N, 2048),
    "linear": (lambda: (x := ones(2, N), F.linear(x, ones(3, N), ones(3))), N + 1, 2048),
    "addmm": (lambda: (x := ones(2, N), tm.addmm(ones(3), x, ones(N, 3))), N + 1, 2048),
}


@pytest.mark.parametrize("name", STALLS)
def test_sums_stall(name: str):
    run, right, stalled = STALLS[name]
    with accumulate_in(tm.float16):
        narrow = run()[1].detach().numpy()
        with accumulate_in(tm.float32):
            inside = run()[1].detach().numpy()
    after = run()[1].detach().numpy()
    np.testing.assert_allclose(narrow.astype(float), stalled, rtol=2**-10)
    for found in (inside, after):
        np.testing.assert_allclose(found.astype(float), right, rtol=2**-10)


def test_gradients_stall_too():
    def grads() -> list[Any]:
        x, w, b = ones(N, 2), ones(3, 2), ones(3)
        F.linear(x, w, b).backward(tm.ones(N, 3, dtype=tm.float16))
        return [float(w.grad.max()), float(b.grad.max())]

    with accumulate_in(tm.float16):
        assert grads() == [2048.0, N]
    assert grads() == [N, N]


def test_float32_is_not_touched():
    x = tm.ones(5000)
    with accumulate_in(tm.float16):
        assert float(x.sum()) == 5000
        assert float((x[None] @ x[:, None]).sum()) == 5000


def test_an_exception_ends_it():
    with pytest.raises(KeyError), accumulate_in("float16"):
        raise KeyError
    assert float(ones(1, N) @ ones(N, 1)) == N


def test_sums_and_convolutions_are_not_touched(dev: str):
    with accumulate_in(tm.float16):
        assert float(ones(N).to(dev).sum()) == N
        assert float(F.conv2d(ones(1, 400, 3, 3).to(dev), ones(1, 400, 3, 3).to(dev))) == 3600


def test_products_overflow_whatever_the_order(dev: str):
    """A GPU adds up in groups: there a sum of ones need not stall, but each group of these is larger than float16 holds."""
    large = tm.full((1, N), 60_000, dtype=tm.float16, device=dev)
    large[:, N // 2 :] = -60_000
    column = ones(N, 1).to(dev)
    assert float(large @ column) == 0
    with accumulate_in(tm.float16):
        assert not math.isfinite(float(large @ column))


@pytest.mark.parametrize("dtype", [tm.float64, tm.int32])
def test_refusals(dtype: Any):
    with pytest.raises(ValueError, match="expected float16, bfloat16 or float32, found"):
        accumulate_in(dtype)
