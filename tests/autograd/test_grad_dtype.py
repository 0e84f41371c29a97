"""``grad_dtype``: a leaf whose gradient has another dtype than itself, run with both libraries; and what it costs."""

from __future__ import annotations

import copy
from types import ModuleType

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import nn


@pytest.fixture(params=[torch, tm], ids=["torch", "ours"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """PyTorch first: what it does is what is expected of ours."""
    return request.param


def half_leaf(library: ModuleType, n: int = 3):
    return library.ones(n, dtype=library.float16, requires_grad=True)


def test_it_is_the_leafs_own_unless_set(library):
    p = half_leaf(library)
    assert p.grad_dtype == library.float16
    (p * 2).sum().backward()
    assert p.grad.dtype == library.float16
    layer = library.nn.Linear(2, 2)
    assert layer.half().weight.grad_dtype == library.float16  # it follows


def test_gradients_add_up_in_it(library):
    p = half_leaf(library)
    p.grad_dtype = library.float32
    (p * 2048).sum().backward()
    for _ in range(3):
        p.sum().backward()  # 2048 + 1 is 2048 in float16
    assert p.grad.dtype == library.float32
    assert p.grad.tolist() == [2051.0] * 3
    q = half_leaf(library)
    q.grad_dtype = library.float32
    (q * 2048 + q + q + q).sum().backward()  # several ways in one graph too
    assert q.grad.tolist() == [2051.0] * 3


def test_none_takes_what_comes(library):
    p = half_leaf(library)
    p.grad_dtype = None
    (p * 2).sum().backward()
    assert p.grad.dtype == library.float16
    p.grad = None
    p.grad = library.ones(3)
    assert p.grad.dtype == library.float32


def test_grad_gives_it_too(library):
    p = half_leaf(library)
    p.grad_dtype = library.float32
    assert library.autograd.grad((p * 2).sum(), [p])[0].dtype == library.float32


def test_hooks_see_it(library):
    p, seen = half_leaf(library), []
    p.grad_dtype = library.float32
    p.register_hook(lambda g: seen.append(g.dtype))
    (p * 2).sum().backward()
    assert seen == [library.float32]


@pytest.mark.parametrize("value", [3, "float32"])
def test_it_is_a_dtype(library, value):
    with pytest.raises(RuntimeError, match="grad_dtype must be a"):
        half_leaf(library).grad_dtype = value


def test_refusals(library):
    p = half_leaf(library)
    with pytest.raises(RuntimeError, match="grad_dtype can only be set on leaf tensors"):
        (p * 2).grad_dtype = library.float32
    with pytest.raises(RuntimeError, match="grad_dtype can only be accessed on leaf tensors"):
        (p * 2).grad_dtype  # noqa: B018
    (p * 2).sum().backward()
    with pytest.raises(RuntimeError, match="because there is already a gradient with dtype"):
        p.grad_dtype = library.float32
    p.grad_dtype = library.float16  # what it is
    q = half_leaf(library)
    with pytest.raises(
        (RuntimeError, TypeError), match=r"(?i)grad.* with dtype 'float'|assigned grad has data of a different type"
    ):
        q.grad = library.ones(3)
    q.grad_dtype = library.float32
    q.grad = library.ones(3)


def test_a_hook_may_not_change_the_type(library):
    p = library.ones(3, requires_grad=True)
    p.register_hook(lambda g: g.double())
    with pytest.raises((RuntimeError, TypeError), match="has changed the type of"):
        p.sum().backward()
    assert p.grad is None


def test_a_copy_has_it_and_a_moved_module_keeps_it():
    p = half_leaf(tm)
    p.grad_dtype = tm.float32
    (p * 2).sum().backward()
    twin = copy.deepcopy(p)
    assert twin.grad_dtype == tm.float32
    assert twin.grad.tolist() == [2.0] * 3
    layer = nn.Linear(2, 2)
    layer.weight.grad_dtype = tm.float32
    layer(tm.ones(1, 2)).sum().backward()
    layer.half()
    assert layer.weight.dtype == tm.float16
    assert layer.weight.grad.dtype == layer.weight.grad_dtype == tm.float32


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize(("dtype", "each"), [(tm.float16, 2), (tm.float32, 4)])
def test_bytes_of_the_gradient(where: str, dtype: np.dtype, each: int):
    n = 1 << 16
    pool = tm.device(where).pool
    x = tm.ones(n, dtype=tm.float16, device=where, requires_grad=True)
    x.grad_dtype = dtype
    before = pool.used_bytes()
    for _ in range(2):
        (x * 3).sum().backward()
    assert pool.used_bytes() - before == each * n
