"""Argument names, their order and their defaults are PyTorch's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tinygrad_mem import nn


def _arguments(function: Any) -> list[tuple]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, getattr(p.default, "__name__", p.default)) for p in found]


CLASSES = sorted(n for n, v in vars(nn).items() if isinstance(v, type) and issubclass(v, nn.Module))
METHODS = sorted(
    n for n, f in vars(torch.nn.Module).items() if inspect.isfunction(f) and not n.startswith("_") and hasattr(nn.Module, n)
)


def _recurrent(name: str) -> list[tuple]:
    """What PyTorch's recurrent layers take: they have ``*args`` and hand them to their base, with small differences."""
    arguments = [a for a in _arguments(torch.nn.RNNBase.__init__) if a[0] != "mode" and (a[0] != "proj_size" or name == "LSTM")]
    if name == "RNN":
        arguments.insert(4, ("nonlinearity", "POSITIONAL_OR_KEYWORD", "tanh"))
    return arguments


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_and_forwards(name: str):
    mine, other = getattr(nn, name), getattr(torch.nn, name)
    assert _arguments(mine.__init__) == (_recurrent(name) if name in ("RNN", "LSTM", "GRU") else _arguments(other.__init__))
    if name not in ("Module", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"):
        assert [a[0] for a in _arguments(mine.forward)] == [a[0] for a in _arguments(other.forward)]


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_modules(name: str):
    if name in ("to", "forward"):
        pytest.skip("PyTorch takes *args and reads them itself")
    assert _arguments(getattr(nn.Module, name)) == _arguments(getattr(torch.nn.Module, name))


@pytest.mark.parametrize("name", sorted(n for n in vars(nn.init) if n.endswith("_") and not n.startswith("_")))
def test_initial_values(name: str):
    assert _arguments(getattr(nn.init, name)) == _arguments(getattr(torch.nn.init, name))


@pytest.mark.parametrize("name", sorted(n for n in vars(nn.utils) if callable(getattr(nn.utils, n)) and not n.startswith("_")))
def test_utilities(name: str):
    assert _arguments(getattr(nn.utils, name)) == _arguments(getattr(torch.nn.utils, name))


def test_parameters():
    assert [a[0] for a in _arguments(nn.Parameter)] == ["data", "requires_grad"]
