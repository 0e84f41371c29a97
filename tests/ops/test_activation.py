"""The in-place activations against PyTorch: results, gradients, and that no new array is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.case import against_torch, ours
from tinygrad_mem.nn import functional as F

IN_PLACE = [
    ("relu_", ()),
    ("leaky_relu_", (0.2,)),
    ("elu_", (0.7,)),
    ("selu_", ()),
    ("celu_", (0.5,)),
    ("hardtanh_", (-0.5, 0.7)),
    ("threshold_", (0.1, 3.0)),
    ("rrelu_", (0.25, 0.25, True)),  # one slope: nothing is random
    ("rrelu_", (0.1, 0.3)),
]


@pytest.mark.parametrize(("name", "arguments"), IN_PLACE)
def test_in_place(name: str, arguments: tuple):
    x = [np.random.default_rng(1).standard_normal((3, 4))]
    against_torch(
        lambda t: getattr(F, name)(t * 1, *arguments), lambda t: getattr(torch.nn.functional, name)(t * 1, *arguments), x
    )
    [t] = ours(x, "float64", grad=False)
    assert getattr(F, name)(t, *arguments) is t
