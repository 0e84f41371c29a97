"""Arrays of several tiles, with lines shorter and longer than one: results as PyTorch's, and nothing that NumPy allocates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import against_torch, ours
from tests.profiles import pairs
from tests.witness import numpy_allocations

SHAPES = [(700, 90), (90, 700), (3, 40000), (40000, 3), (6, 20, 500)]
BUFFERS = 256 * 8  # bytes of a ufunc's buffer: scope.BUFFER numbers of an operand, as kernels/uncounted.py says

AXIS = {
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "prod": lambda x, d: (1 + x / 4096).prod(d),
    "cumsum": lambda x, d: (x / 64).cumsum(d),
    "gather": lambda x, d: x.gather(d, x.argsort(d)),
    "sort": lambda x, d: x.sort(d)[0],
    "cummax": lambda x, d: x.cummax(d)[0],
}
ROUNDED = {"prod": (1e-3, 1e-3)}  # tens of thousands of factors one after the other, as PyTorch multiplies, or by halves


@pytest.mark.parametrize(("name", "shape", "dtype"), pairs([*AXIS], SHAPES, ["float64", "float32"]))
def test_along_an_axis(name: str, shape: tuple[int, ...], dtype: str):
    count = int(np.prod(shape))
    x = (np.random.default_rng(1).permutation(count).reshape(shape) - count / 2) * 4 / count  # all different
    for dim in range(len(shape)):
        run = lambda t, dim=dim: AXIS[name](t, dim)  # noqa: E731
        against_torch(run, run, [x], dtype, tolerance=None if dtype == "float64" else ROUNDED.get(name, (2e-5, 2e-5)))


def _layers(lib: Any, name: str) -> Any:
    f = lib.nn.functional
    return {
        "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:], *(x[:2].detach() if x.ndim == 2 else ())),
        "rms_norm": lambda x: f.rms_norm(x, x.shape[-1:]),
        "gelu": f.gelu,
        "mish": f.mish,
        "softplus": f.softplus,
        "elu": f.elu,
        "leaky_relu": f.leaky_relu,
    }[name]


LAYERS = ["layer_norm", "rms_norm", "gelu", "mish", "softplus", "elu", "leaky_relu"]


ALONG = [f"{n} along an axis" for n in ("softmax", "logsumexp", "prod", "sort")]


@pytest.mark.parametrize(("name", "shape", "dtype"), pairs([*LAYERS, *ALONG], SHAPES, ["float32", "float16"]))
def test_nothing_is_allocated(name: str, shape: tuple[int, ...], dtype: str):
    rng = np.random.default_rng(1)
    run = _layers(tm, name) if name in LAYERS else lambda t: AXIS[name.split()[0]](t, -1)
    for _ in range(2):  # the first time makes the scratch
        [x] = ours([rng.standard_normal(shape)], dtype)
        with numpy_allocations() as sizes:
            y = run(x)
        forward = [n for n in sizes if n > BUFFERS]
        gy = tm.ones_like(y)
        with numpy_allocations() as sizes:
            y.backward(gy)
        backward = [n for n in sizes if n > BUFFERS]
    assert forward == []
    assert backward == []


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layers(name: str, shape: tuple[int, ...]):
    against_torch(_layers(tm, name), _layers(torch, name), [np.random.default_rng(1).standard_normal(shape)])


@pytest.mark.parametrize("name", ["l1_loss", "abs"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_signs_of_zero_and_nan(name: str, dtype: str):
    x = np.tile(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-4, -2.0, 3.0]), 2000)

    def run(lib: Any, t: Any) -> Any:
        if name == "abs":
            return t.abs()
        return lib.nn.functional.l1_loss(t, t.detach() * 0 + 1, reduction="none")

    against_torch(lambda t: run(tm, t), lambda t: run(torch, t), [x], dtype)


@pytest.mark.parametrize("zeros", [1, 2])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_products_of_lines_with_zeros(zeros: int, dims: tuple[int, ...]):
    x = 1 + np.random.default_rng(1).standard_normal((60, 700)) / 4096
    x[3, :zeros] = x[9, 500] = 0
    x[20:, 600] = 0

    def run(t: Any) -> Any:
        return t.prod(dims[0]) if len(dims) == 1 else t.prod()

    against_torch(run, run, [x])
    for _ in range(2):
        [t] = ours([x], "float64")
        y = run(t)
        gy = tm.ones_like(y)
        with numpy_allocations() as sizes:
            y.backward(gy)
    assert [n for n in sizes if n > BUFFERS] == []


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (3, 0), (0, 5)])
def test_norms_of_nothing(shape: tuple[int, ...]):
    x = tm.zeros(*shape, requires_grad=True)
    size = shape[1] if len(shape) == 3 else shape[-1]
    weight, bias = (tm.ones(size, requires_grad=True) for _ in range(2))
    f = tm.nn.functional
    y = f.group_norm(x, 2, weight, bias) if len(shape) == 3 else f.layer_norm(x, (size,), weight, bias)
    y.sum().backward()
    for t in (x, weight, bias):
        assert t.grad is not None
        assert not t.grad.numpy().any()
