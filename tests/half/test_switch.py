"""``accumulate_in(float16)``: what float32 accumulation is for, shown op by op; off it is as if it were not there."""

from __future__ import annotations

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
    "sum": (lambda: (x := ones(N), x.sum()), N, 2048),
    "sum of columns": (lambda: (x := ones(N, 3), x.sum(0)), N, 2048),
    "mean": (lambda: (x := ones(N), x.mean()), 1, 2048 / N),
    "matmul": (lambda: (x := ones(2, N), x @ ones(N, 3)), N, 2048),
    "batches": (lambda: (x := ones(2, 2, N), x @ ones(2, N, 3)), N, 2048),
    "linear": (lambda: (x := ones(2, N), F.linear(x, ones(3, N), ones(3))), N + 1, 2048),
    "addmm": (lambda: (x := ones(2, N), tm.addmm(ones(3), x, ones(N, 3))), N + 1, 2048),
    "conv": (lambda: (x := ones(1, 400, 4, 4), F.conv2d(x, ones(2, 400, 3, 3))), 3600, 2048),
    "groups": (lambda: (x := ones(1, 800, 4, 4), F.conv2d(x, ones(4, 400, 3, 3), groups=2)), 3600, 2048),
    "transposed": (lambda: (x := ones(1, N, 2, 2), F.conv_transpose2d(x, ones(N, 2, 1, 1))), N, 2048),
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
        image, kernel, shift = ones(1, 2, 60, 60), ones(3, 2, 1, 1), ones(3)
        F.conv2d(image, kernel, shift).backward(tm.ones(1, 3, 60, 60, dtype=tm.float16))
        return [float(t.grad.max()) for t in (w, b, kernel, shift)]

    with accumulate_in(tm.float16):
        assert grads() == [2048.0] * 4
    assert grads() == [N, N, 3600.0, 3600.0]


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2}])
def test_small_convolutions_are_the_same(options: dict):
    """Where nothing stalls it computes what it should: forward and the three gradients."""
    rng = np.random.default_rng(0)

    def run() -> list[np.ndarray]:
        x, w, b = (tm.tensor(a, dtype=tm.float16).requires_grad_() for a in arrays)
        y = F.conv2d(x, w, b, **options)
        y.backward(tm.ones_like(y))
        return [t.detach().numpy().astype(float) for t in (y, x.grad, w.grad, b.grad)]

    arrays = [rng.standard_normal(s) for s in ((2, 4, 7, 7), (6, 4 // options.get("groups", 1), 3, 3), (6,))]
    expected = run()
    with accumulate_in(tm.float16):
        found = run()
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=0.02, atol=0.06)


def test_float32_is_not_touched():
    x = tm.ones(5000)
    with accumulate_in(tm.float16):
        assert float(x.sum()) == 5000
        assert float((x[None] @ x[:, None]).sum()) == 5000


def test_an_exception_ends_it():
    with pytest.raises(KeyError), accumulate_in("float16"):
        raise KeyError
    assert float(ones(N).sum()) == N


@pytest.mark.parametrize("dtype", [tm.float64, tm.int32])
def test_refusals(dtype: Any):
    with pytest.raises(ValueError, match="expected float16, bfloat16 or float32, found"):
        accumulate_in(dtype)
