"""Modules and optimizers through files, and PyTorch's weights into our modules."""

from __future__ import annotations

import io

import numpy as np
import pytest
import safetensors.torch
import torch

import tinygrad_mem as tm
from tinygrad_mem import nn


def build(library) -> tuple:
    layers = library.nn
    model = layers.Sequential(layers.Linear(4, 6), layers.ReLU(), layers.Linear(6, 3))
    return model, library.optim.Adam(model.parameters(), lr=0.1)


def step(library, model, optimizer) -> None:
    x = library.tensor(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32))
    optimizer.zero_grad()
    (model(x) * model(x)).sum().backward()
    optimizer.step()


def test_training_goes_on_where_it_was_saved(tmp_path):
    model, optimizer = build(tm)
    step(tm, model, optimizer)
    tm.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, tmp_path / "checkpoint")
    step(tm, model, optimizer)
    again, other = build(tm)
    loaded = tm.load(tmp_path / "checkpoint")
    again.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    step(tm, again, other)
    assert loaded["epoch"] == 1
    for mine, expected in zip(again.parameters(), model.parameters(), strict=True):
        assert mine.requires_grad
        np.testing.assert_array_equal(mine.detach().numpy(), expected.detach().numpy())


@pytest.mark.parametrize("through", ["safetensors", "state_dict"])
def test_pytorchs_weights_load(through, tmp_path):
    theirs, _ = build(torch)
    mine, _ = build(tm)
    if through == "safetensors":
        safetensors.torch.save_file(theirs.state_dict(), tmp_path / "m")
        mine.load_state_dict(tm.load(tmp_path / "m"))
    else:
        mine.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(mine(tm.tensor(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    step(tm, mine, tm.optim.Adam(mine.parameters()))
    assert not np.allclose(mine[0].weight.detach().numpy(), theirs[0].weight.detach().numpy(), atol=1e-6), "memory is shared"


def test_our_weights_load_into_pytorch(tmp_path):
    mine, _ = build(tm)
    theirs, _ = build(torch)
    tm.save(mine.state_dict(), tmp_path / "m")
    theirs.load_state_dict(safetensors.torch.load_file(tmp_path / "m"))
    np.testing.assert_array_equal(theirs[2].bias.detach().numpy(), mine[2].bias.detach().numpy())


def test_a_module_itself_is_refused_with_the_way_to_do_it():
    with pytest.raises(TypeError, match=r"the object is a Linear, .*; save its state_dict\(\)"):
        tm.save(nn.Linear(2, 2), io.BytesIO())
