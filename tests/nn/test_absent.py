"""What is not offered says so."""

from __future__ import annotations

import pytest
import torch

from tinygrad_mem import nn
from tinygrad_mem.nn.absent import ABSENT


@pytest.mark.parametrize("name", [*ABSENT, "LazyLinear", "LazyConv2d"])
def test_absent_layers_name_an_alternative(name: str):
    assert hasattr(torch.nn, name), "only names of PyTorch are worth explaining"
    assert not hasattr(nn, name)
    with pytest.raises(AttributeError, match=rf"nn\.{name} is not offered: "):
        getattr(nn, name)


def test_unknown_names():
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = nn.Nonsense
