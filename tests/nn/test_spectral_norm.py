"""Spectral normalisation, in its two forms, and parametrizations of one's own: training equals PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values

LAYERS = {
    "linear": (lambda lib: lib.nn.Linear(4, 3), (5, 4)),
    "conv": (lambda lib: lib.nn.Conv2d(2, 3, 3), (2, 2, 5, 5)),
    "transposed": (lambda lib: lib.nn.ConvTranspose2d(2, 3, 3), (2, 2, 4, 4)),
    "embedding": (lambda lib: lib.nn.Embedding(7, 3), None),
}


def pair(layer: str, form: str, **options: Any) -> tuple[Any, Any]:
    """Ours and PyTorch's, with the same state."""
    made = []
    for lib in (tm, torch):
        apply = lib.nn.utils.spectral_norm if form == "hook" else lib.nn.utils.parametrizations.spectral_norm
        made.append(apply(LAYERS[layer][0](lib).double(), **options))
    mine, theirs = made
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    return mine, theirs


@pytest.mark.parametrize("form", ["hook", "parametrization"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_training_is_pytorchs(layer: str, form: str, steps: int):
    mine, theirs = pair(layer, form, n_power_iterations=steps)
    shape = LAYERS[layer][1]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 7, (2, 3)) if shape is None else rng.standard_normal(shape)
    for lib, model in ((tm, mine), (torch, theirs)):
        optimizer = lib.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(3):
            optimizer.zero_grad()
            model(lib.tensor(x)).square().sum().backward()
            optimizer.step()
        model.eval()
    for (name, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(values(a), b.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(values(mine(tm.tensor(x))), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-9)


def test_two_forwards_before_a_backward():
    """A discriminator sees real and fake images before it learns: each backward has the u and v of its forward."""
    mine, theirs = pair("linear", "hook")
    for lib, model in ((tm, mine), (torch, theirs)):
        loss = model(lib.ones(2, 4).double()).sum() - model(lib.ones(2, 4).double() * 3).square().sum()
        loss.backward()
    np.testing.assert_allclose(values(mine.weight_orig.grad), theirs.weight_orig.grad.numpy(), rtol=1e-9)


def test_it_can_be_taken_away():
    layer = tm.nn.utils.spectral_norm(tm.nn.Linear(3, 2)).eval()
    before = values(layer(tm.ones(1, 3)))
    with pytest.raises(RuntimeError, match="Cannot register two spectral_norm hooks"):
        tm.nn.utils.spectral_norm(layer)
    tm.nn.utils.remove_spectral_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(values(layer(tm.ones(1, 3))), before, rtol=1e-6)
    with pytest.raises(ValueError, match="spectral_norm of 'weight' not found"):
        tm.nn.utils.remove_spectral_norm(layer)
    for apply in (tm.nn.utils.spectral_norm, tm.nn.utils.parametrizations.spectral_norm):
        with pytest.raises(ValueError, match="Expected n_power_iterations to be positive"):
            apply(layer, n_power_iterations=0)
    with pytest.raises(ValueError, match="has no parameter or buffer with name 'nonsense'"):
        tm.nn.utils.parametrizations.spectral_norm(layer, "nonsense")


def test_a_vector_is_divided_by_its_length():
    layer = tm.nn.utils.parametrizations.spectral_norm(tm.nn.Linear(3, 2), "bias")
    assert abs(layer.bias.norm().item() - 1) < 1e-6


def symmetric(lib: Any) -> Any:
    class Symmetric(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).t()

        def right_inverse(self, x: Any) -> Any:
            return x.triu()

    return Symmetric()


def test_parametrizations_of_ones_own():
    made = []
    for lib in (tm, torch):
        parametrize = lib.nn.utils.parametrize
        layer = lib.nn.Linear(3, 3).double()
        with lib.no_grad():
            layer.weight.copy_(lib.arange(9).double().reshape(3, 3))
        parametrize.register_parametrization(layer, "weight", symmetric(lib))
        parametrize.register_parametrization(layer, "weight", lib.nn.Tanh())
        assert parametrize.is_parametrized(layer)
        assert parametrize.is_parametrized(layer, "weight")
        assert not parametrize.is_parametrized(layer, "bias")
        with parametrize.cached():
            layer(lib.ones(1, 3).double()).sum().backward()
        made.append(layer)
    mine, theirs = made
    assert list(mine.state_dict()) == list(theirs.state_dict())
    found, wanted = mine.parametrizations.weight.original.grad, theirs.parametrizations.weight.original.grad
    np.testing.assert_allclose(values(found), wanted.numpy(), rtol=1e-10)
    for lib, layer in ((tm, mine), (torch, theirs)):
        lib.nn.utils.parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is lib.nn.Linear
    np.testing.assert_allclose(values(mine.weight), theirs.weight.detach().numpy(), rtol=1e-10)


def test_what_cannot_be_parametrized():
    parametrize, layer = tm.nn.utils.parametrize, tm.nn.Linear(3, 2)
    with pytest.raises(ValueError, match="does not have a parameter, a buffer, or a parametrized element 'nonsense'"):
        parametrize.register_parametrization(layer, "nonsense", tm.nn.Tanh())
    with pytest.raises(ValueError, match="may not change the shape"):
        parametrize.register_parametrization(layer, "weight", tm.nn.Flatten(0))
    assert not parametrize.is_parametrized(layer)
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")
