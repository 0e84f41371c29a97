"""First values: PyTorch's distributions, by moments and quantiles of many draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem.nn import init

DRAWS: dict[str, tuple[str, tuple, dict]] = {
    "uniform": ("uniform_", (200, 200), {"a": -1.0, "b": 3.0}),
    "normal": ("normal_", (200, 200), {"mean": 1.0, "std": 2.0}),
    "trunc_normal": ("trunc_normal_", (200, 200), {}),
    "trunc_normal one side": ("trunc_normal_", (200, 200), {"mean": 0.5, "std": 0.7, "a": -0.2, "b": 3.0}),
    "xavier_uniform": ("xavier_uniform_", (200, 30, 5), {"gain": 2.0}),
    "xavier_normal": ("xavier_normal_", (200, 30, 5), {}),
    "kaiming_uniform": ("kaiming_uniform_", (200, 30, 5), {"a": 0.3}),
    "kaiming_uniform fan_out": ("kaiming_uniform_", (200, 30, 5), {"mode": "fan_out", "nonlinearity": "tanh"}),
    "kaiming_normal": ("kaiming_normal_", (200, 30, 5), {"nonlinearity": "relu"}),
    "kaiming_normal fan_out": ("kaiming_normal_", (200, 30, 5), {"mode": "fan_out", "nonlinearity": "selu"}),
    "orthogonal": ("orthogonal_", (150, 200), {}),
}


@pytest.mark.parametrize(("name", "shape", "options"), DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_same_distribution_as_pytorch(name: str, shape: tuple, options: dict, dtype: str):
    tensor = tm.nn.Parameter(tm.empty(*shape, dtype=dtype))
    assert getattr(init, name)(tensor, **options) is tensor
    assert tensor.requires_grad
    assert tensor.grad_fn is None
    torch.manual_seed(0)
    expected = getattr(torch.nn.init, name)(torch.empty(shape), **options).numpy().ravel()
    found = values(tensor).astype("f8").ravel()
    scale = expected.std()
    at = np.linspace(0.01, 0.99, 40)
    np.testing.assert_allclose(np.quantile(found, at), np.quantile(expected, at), atol=0.06 * scale)
    assert abs(found.mean() - expected.mean()) < 0.03 * scale
    assert abs(found.std() / scale - 1) < 0.02


@pytest.mark.parametrize(("name", "shape", "options"), DRAWS.values(), ids=DRAWS)
def test_on_meta_nothing_happens(name: str, shape: tuple, options: dict):
    tensor = tm.empty(*shape, device="meta")
    assert getattr(init, name)(tensor, **options) is tensor


@pytest.mark.parametrize(("name", "shape", "options"), DRAWS.values(), ids=DRAWS)
def test_a_generator_decides(name: str, shape: tuple, options: dict):
    one, two = (getattr(init, name)(tm.empty(*shape), **options, generator=tm.Generator().manual_seed(3)) for _ in range(2))
    np.testing.assert_array_equal(values(one), values(two))


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.3, 1.0])
def test_a_share_of_each_column_is_zero(sparsity: float):
    tm.manual_seed(0)
    tensor = tm.nn.Parameter(tm.empty(50, 200))
    assert init.sparse_(tensor, sparsity, std=0.5) is tensor
    found = values(tensor)
    expected = torch.nn.init.sparse_(torch.empty(50, 200), sparsity, std=0.5).numpy()
    assert set((found == 0).sum(0)) == set((expected == 0).sum(0))
    assert 0 in (found == 0).sum(1) or sparsity
    if sparsity < 1:
        assert abs(found[found != 0].std() / 0.5 - 1) < 0.02
        assert not sparsity or len(set((found == 0).sum(1))) > 5  # chosen for each column by itself
    with pytest.raises(ValueError, match="Only tensors with 2 dimensions"):
        init.sparse_(tm.ones(3), 0.5)


def test_truncated_normals_stay_inside():
    found = values(init.trunc_normal_(tm.empty(10_000), mean=0.1, std=2.0, a=-1.0, b=0.5))
    assert found.min() >= -1.0
    assert found.max() <= 0.5
    with pytest.warns(UserWarning, match="mean is more than 2 std from"):
        init.trunc_normal_(tm.empty(2), mean=10.0)


def test_quantiles_of_the_normal_distribution():
    p = np.array([1e-300, 1e-12, 1e-5, 0.02, 0.07, 0.3, 0.5, 0.9, 1 - 1e-9])
    expected = torch.special.ndtri(torch.tensor(p)).numpy()
    np.testing.assert_allclose(init._normal_quantile(p), expected, rtol=1e-12)


FIXED: dict[str, Any] = {
    "constant": lambda i, t: i.constant_(t(2, 3), 0.3),
    "ones": lambda i, t: i.ones_(t(2, 3)),
    "zeros": lambda i, t: i.zeros_(t(2, 3)),
    "eye": lambda i, t: i.eye_(t(3, 4)),
    "dirac": lambda i, t: i.dirac_(t(4, 3, 3)),
    "dirac 2d": lambda i, t: i.dirac_(t(3, 4, 3, 2)),
    "dirac 3d groups": lambda i, t: i.dirac_(t(4, 2, 3, 3, 3), 2),
    "fan": lambda i, t: i._calculate_fan_in_and_fan_out(t(4, 3, 2, 5)),
    "gain": lambda i, t: [i.calculate_gain(n) for n in ("linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu")],
    "leaky gain": lambda i, t: [i.calculate_gain("leaky_relu", a) for a in (0, 0.2, 3)],
    "bad gain": lambda i, t: i.calculate_gain("leaky_relu", "a"),
    "bad name": lambda i, t: i.calculate_gain("none"),
    "bad fan": lambda i, t: i._calculate_fan_in_and_fan_out(t(4)),
    "bad mode": lambda i, t: i.kaiming_normal_(t(4, 3), mode="fan"),
    "bad eye": lambda i, t: i.eye_(t(4)),
    "bad dirac": lambda i, t: i.dirac_(t(4)),
    "bad groups": lambda i, t: i.dirac_(t(4, 3, 3), 3),
    "bad orthogonal": lambda i, t: i.orthogonal_(t(4)),
}


@pytest.mark.parametrize("script", FIXED.values(), ids=FIXED)
def test_same_values_and_the_same_words(script: Any):
    def run(framework: Any) -> Any:
        try:
            result = script(framework.nn.init, framework.empty)
        except ValueError as error:
            return str(error)
        return result if not hasattr(result, "tolist") else result.tolist()

    assert run(tm) == run(torch)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5), (6, 2, 3)])
def test_orthogonal(shape: tuple):
    w = values(init.orthogonal_(tm.empty(*shape, dtype="float64"), gain=2.0)).reshape(shape[0], -1)
    square = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(square, 4 * np.eye(len(square)), atol=1e-12)


def test_in_place_writes_are_counted():
    t = tm.ones(3)
    before = t._version
    init.zeros_(t)
    init.uniform_(t)
    assert t._version == before + 2


def test_old_names():
    with pytest.warns(FutureWarning, match="`nn.init.xavier_normal` is now deprecated in favor of `nn.init.xavier_normal_`"):
        assert init.xavier_normal(tm.empty(2, 3)).shape == (2, 3)


def test_no_elements():
    with pytest.warns(UserWarning, match="Initializing zero-element tensors is a no-op"):
        init.kaiming_uniform_(tm.empty(0, 3))
    with pytest.warns(UserWarning, match="no-op"):
        init.kaiming_normal_(tm.empty(0, 3))
    assert init.orthogonal_(tm.empty(0, 3)).shape == (0, 3)
