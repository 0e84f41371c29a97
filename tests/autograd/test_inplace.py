"""In-place writes where views, hooks and grad modes meet, run with both libraries."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

import tinygrad_mem as tm


@pytest.fixture(params=[torch, tm], ids=["torch", "ours"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


MANY = {
    "chunk": lambda y: y.chunk(2),
    "split": lambda y: y.split(1),
    "unbind": lambda y: y.unbind(0),
    "a view of one": lambda y: [part[:1] for part in y.chunk(2)],
}


@pytest.mark.parametrize("name", MANY)
def test_one_of_several_views_may_be_written(name):
    """PyTorch refuses it: its views of one call share a node. Ours are views one by one."""
    x = tm.ones(2, 3, requires_grad=True)
    y = x * 1.0
    MANY[name](y)[0].mul_(2.0)
    (y * y).sum().backward()
    expected = torch.ones(2, 3)
    expected[0] = 8.0
    expected[1:] = 2.0
    assert x.grad is not None
    assert x.grad.tolist() == expected.tolist()


@pytest.mark.parametrize("name", MANY)
def test_one_of_several_views_may_be_written_where_nothing_is_recorded(library, name):
    y = library.ones(2, 3)
    MANY[name](y)[0].mul_(2.0)
    assert y.tolist() == [[2.0] * 3, [1.0] * 3]
    x = library.ones(2, 3, requires_grad=True)
    with library.no_grad():
        MANY[name](x * 1.0)[0].mul_(2.0)


def test_a_view_made_without_grad_is_not_written_with_it(library):
    x = library.ones(4, requires_grad=True)
    y = x * 1.0
    with library.no_grad():
        view = y[:2]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode and is being modified inplace with grad mode"):
        view.mul_(library.ones(2, requires_grad=True))
    with library.no_grad():
        view.mul_(2.0)
    assert y.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_a_detached_view_is_a_tensor_of_its_own(library):
    x = library.ones(4, requires_grad=True)
    y = (x * 1.0).detach()[:2]
    y.mul_(library.full((2,), 3.0, requires_grad=True))
    y.sum().backward()
    assert x.grad is None


def test_the_gradient_that_is_kept_is_that_of_the_last_hook(library):
    x = library.ones(2, requires_grad=True)
    y = x * 2.0
    y.retain_grad()
    y.register_hook(lambda g: g * 10.0)
    y.sum().backward()
    assert y.grad.tolist() == [10.0, 10.0]
    assert x.grad.tolist() == [20.0, 20.0]


def test_the_gradient_that_is_kept_is_that_of_the_value_written_last(library):
    x = library.ones(2, requires_grad=True)
    y = x * 2.0
    y.retain_grad()
    y.mul_(3.0)
    y.sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [6.0, 6.0]


def test_the_gradient_that_is_kept_of_a_written_base_and_of_its_view(library):
    x = library.ones(4, requires_grad=True)
    base = x * 2.0
    view = base[:2]
    base.retain_grad()
    view.retain_grad()
    view.mul_(3.0)
    (base * library.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert base.grad.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert x.grad.tolist() == [6.0, 12.0, 6.0, 8.0]


def test_gradients_that_are_kept_add_up(library):
    x = library.ones(2, requires_grad=True)
    y = x * 2.0
    y.retain_grad()
    y.retain_grad()
    z = (y * 3.0).sum()
    z.backward(retain_graph=True)
    z.backward()
    assert y.grad.tolist() == [6.0, 6.0]


def test_what_was_made_in_inference_mode_is_written_there_only(library):
    with library.inference_mode():
        x = library.ones(2)
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode is not allowed"):
        x.add_(1.0)
    assert library is torch or x.tolist() == [2.0, 2.0]  # PyTorch refuses when it has written
