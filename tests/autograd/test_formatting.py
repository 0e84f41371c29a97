"""Tensors print as PyTorch's do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinygrad_mem as tm
from tests.profiles import examples


def _same(values):
    mine, theirs = repr(tm.tensor(values)), repr(torch.tensor(values)).replace("torch.", "")
    break_ = ",\n       dtype="  # where the line ends depends on the length of the dtype's name
    assert mine.replace(break_, ", dtype=") == theirs.replace(break_, ", dtype=")


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    )
)
@settings(max_examples=examples(50), deadline=None)
def test_any_values(values):
    _same(values)


@pytest.mark.parametrize("shape", [(1001,), (40, 50), (3, 400), (12, 12, 12), (2, 2, 2, 300), (6, 200), (7, 200)])
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e9])
def test_only_the_ends_of_many(shape, scale):
    _same((np.random.default_rng(0).standard_normal(shape) * scale).astype("f"))
    _same(np.arange(np.prod(shape)).reshape(shape))


@pytest.mark.parametrize("values", [0.0, 1.5, np.nan, 7, True, [0.0, 0.0], [1.5, np.inf], [1.0, np.nan], [1e10], [-0.0, 2.5]])
def test_special_values(values):
    _same(np.array(values))


def test_what_follows_the_values():
    for lib in (tm, torch):
        x = lib.tensor(np.linspace(0, 1, 9).astype("f"), requires_grad=True)
        assert repr(x).endswith(",\n       requires_grad=True)")
        assert repr(lib.ones(2, requires_grad=True)) == "tensor([1., 1.], requires_grad=True)"
    meta = [repr(lib.empty(2, 3, device="meta")) for lib in (tm, torch)]
    assert meta[0] == meta[1] == "tensor(..., device='meta', size=(2, 3))"
    assert repr(tm.nn.Parameter(tm.ones(2))) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
