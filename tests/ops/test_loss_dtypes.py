"""Losses of two dtypes: what PyTorch refuses is refused in words, and the result has its dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem.errors import TinygradMemError

DTYPES = ["float16", "bfloat16", "float32", "float64", "int64", "int32", "uint8", "bool"]
LOSSES = [
    "huber_loss",
    "smooth_l1_loss",
    "mse_loss",
    "l1_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "margin_ranking_loss",
    "cosine_embedding_loss",
    "pairwise_distance",
    "cosine_similarity",
    "gaussian_nll_loss",
    "triplet_margin_loss",
]


def call(lib: Any, name: str, first: str, second: str, reduction: str, grad: bool = False) -> Any:
    x = lib.tensor([[0.0, 1, 0], [1, 0, 1]], requires_grad=grad).to(getattr(lib, first))
    y = lib.tensor([[1.0, 0, 0], [0, 1, 1]]).to(getattr(lib, second))
    loss = getattr(lib.nn.functional, name)
    if name in ("pairwise_distance", "cosine_similarity"):
        return loss(x, y)
    more = {
        "margin_ranking_loss": (x, x, y),
        "cosine_embedding_loss": (x, y, lib.tensor([1, -1])),
        "gaussian_nll_loss": (x, y, lib.ones(2, 3)),
        "triplet_margin_loss": (x, y, x),
    }
    return loss(*more.get(name, (x, y)), reduction=reduction)


def answer(*given: Any) -> Any:
    try:
        return call(*given)
    except (RuntimeError, NotImplementedError) as error:
        return error


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore")
def test_pairs_of_dtypes(name: str):
    """What PyTorch computes of two dtypes is computed, with its dtype and numbers; but integers may be refused."""
    for first, second, reduction in pairs(DTYPES, DTYPES, ("mean", "none")):
        found, expected = answer(tm, name, first, second, reduction), answer(torch, name, first, second, reduction)
        said = f"{first} {second} {reduction}: {found}, PyTorch {expected}"
        if isinstance(expected, Exception):
            assert isinstance(found, TinygradMemError), said
            assert "not possible with these" not in str(found), said
        elif isinstance(found, Exception):
            integers = any(dtype.startswith(("int", "uint", "bool")) for dtype in (first, second))
            assert integers, said
            assert any(word in str(found) for word in ("expected", "floating", "dtype")), said
        else:
            assert str(found.dtype) == str(expected.dtype).removeprefix("torch."), said
            np.testing.assert_allclose(found.float().numpy(), expected.float().numpy(), 0.02, 0.02, err_msg=said)


@pytest.mark.parametrize(
    ("name", "first", "second", "words"),
    [
        (
            "huber_loss",
            "float32",
            "float64",
            "huber_loss: expected an input and a target of one dtype, found float32 and float64",
        ),
        (
            "huber_loss",
            "int64",
            "float32",
            "huber_loss: expected a floating input and target, found int64 and float32; convert",
        ),
        ("kl_div", "float32", "int64", "kl_div: expected a floating input and target, found float32 and int64"),
        ("binary_cross_entropy", "float32", "int64", "expected a floating input and target, found float32 and int64"),
        (
            "binary_cross_entropy",
            "float32",
            "float16",
            "expected an input and a target of one dtype, found float32 and float16",
        ),
        ("binary_cross_entropy_with_logits", "float32", "bool", "expected a floating input and target, found float32 and bool"),
        ("l1_loss", "float32", "bool", "l1_loss: bools are not subtracted, found float32 and bool"),
    ],
)
def test_words(name: str, first: str, second: str, words: str):
    with pytest.raises(RuntimeError, match=words):
        call(tm, name, first, second, "mean", grad=True)
