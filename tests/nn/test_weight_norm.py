"""Weights as direction and length, against PyTorch."""

from __future__ import annotations

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

LAYERS = {
    "linear": lambda lib: lib.nn.Linear(3, 4),
    "conv": lambda lib: lib.nn.Conv1d(3, 4, 2),
    "transposed": lambda lib: lib.nn.ConvTranspose1d(3, 4, 2),
}


def old(lib, layer, dim):
    with warnings.catch_warnings(action="ignore"):
        return lib.nn.utils.weight_norm(layer, "weight", dim)


def new(lib, layer, dim):
    return lib.nn.utils.parametrizations.weight_norm(layer, "weight", dim)


def spectral(lib, layer, dim):
    return lib.nn.utils.spectral_norm(layer, "weight", dim=dim)


@pytest.mark.parametrize("norm", [old, new])
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_keys_and_gradients(name, dim, norm):
    theirs, ours = norm(torch, LAYERS[name](torch), dim), norm(tm, LAYERS[name](tm), dim)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    state = {k: tm.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    assert [v.shape for v in state.values()] == [v.shape for v in ours.state_dict().values()]
    ours.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((2, 3) if name == "linear" else (2, 3, 5)).astype("f4")
    for _ in range(2):  # once more after a step
        mine, other = ours(tm.tensor(x)), theirs(torch.tensor(x))
        np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-5, atol=1e-5)
        mine.square().sum().backward()
        other.square().sum().backward()
        for (key, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            assert p.grad is not None
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-4, err_msg=key)
        for lib, layer in ((tm, ours), (torch, theirs)):
            lib.optim.SGD(layer.parameters(), lr=0.01).step()
            layer.zero_grad()


def test_removing_makes_one_parameter_again():
    layer = tm.nn.Linear(3, 4)
    before, keys = layer.weight.clone(), set(layer.state_dict())
    x = tm.randn(2, 3)
    expected = layer(x)
    tm.nn.utils.remove_weight_norm(tm.nn.utils.weight_norm(layer))
    assert set(layer.state_dict()) == keys
    assert isinstance(layer.weight, tm.nn.Parameter)
    assert tm.allclose(layer.weight, before)
    assert tm.allclose(layer(x), expected, atol=1e-6)


def test_twice_and_not_at_all_are_refused():
    layer = tm.nn.utils.weight_norm(tm.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        tm.nn.utils.weight_norm(layer)
    with pytest.raises(ValueError, match="weight_norm of 'bias' not found"):
        tm.nn.utils.remove_weight_norm(layer, "bias")
    layer = tm.nn.utils.parametrizations.weight_norm(tm.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="weight of ParametrizedLinear is parametrized already"):
        tm.nn.utils.parametrizations.weight_norm(layer)
    for first, second in itertools.product((old, new, spectral), repeat=2):  # what one computes is no parameter for the other
        if first is not second:
            with pytest.raises(ValueError, match="Linear does not have a parameter 'weight' to compute from others"):
                second(tm, first(tm, tm.nn.Linear(2, 2), 0), 0)
    for norm in (old, new):
        for layer, dim, error in ((tm.nn.Linear(2, 2), 2, IndexError), (tm.nn.BatchNorm1d(2, affine=False), 0, ValueError)):
            before = str(layer)
            with pytest.raises(error, match=r"Dimension out of range|does not have a parameter 'weight'"):
                norm(tm, layer, dim)
            assert str(layer) == before
            assert len(layer._parameters) == 2
    with pytest.raises(AttributeError, match="orthogonal is not offered"):
        tm.nn.utils.parametrizations.orthogonal  # noqa: B018


def test_a_copy_is_independent():
    layer = tm.nn.utils.parametrizations.weight_norm(tm.nn.Linear(3, 2))
    other = copy.deepcopy(layer)
    with tm.no_grad():
        other.parametrizations["weight"].original0.mul_(2)
    assert tm.allclose(other.weight, 2 * layer.weight)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm")
def test_a_state_dict_of_the_older_function_is_loaded():
    for saved_by in (torch, tm):
        older = saved_by.nn.utils.weight_norm(saved_by.nn.Linear(4, 5))
        layer = tm.nn.utils.parametrizations.weight_norm(tm.nn.Linear(4, 5))
        state = {name: tm.tensor(value.tolist()) for name, value in older.state_dict().items()}
        layer.load_state_dict(state)
        x = np.arange(4, dtype=np.float32)
        wanted = older(saved_by.tensor(x)).detach().numpy()
        np.testing.assert_allclose(layer(tm.tensor(x)).detach().numpy(), wanted, 1e-5, 1e-6)
