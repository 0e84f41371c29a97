"""Optimizers: gradients, closures, hooks, copies, refusals."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim.test_optim import gradients, parameters
from tinygrad_mem import optim


def test_zero_grad():
    p, q = tm.ones(3, requires_grad=True), tm.ones(3, requires_grad=True)
    o = optim.SGD([p, q])
    p.grad = tm.ones(3)
    o.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0, 0.0, 0.0]
    assert q.grad is None
    o.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize("library", [torch, tm])
def test_zeros_in_a_gradient_that_an_op_has_saved_are_noticed(library: Any):
    """The gradient is a factor of a product. With zeros in it, backward would give zeros."""
    p, x = (library.ones(3, requires_grad=True) for _ in range(2))
    p.grad = library.full((3,), 2.0)
    product = (x * p.grad).sum()
    library.optim.SGD([p], lr=0.5).zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_closure_runs_with_gradients_on():
    p = tm.ones(3, requires_grad=True)
    o = optim.SGD([p], lr=0.5)

    def closure() -> tm.Tensor:
        o.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with tm.no_grad():
        assert float(o.step(closure)) == 3.0
    assert p.tolist() == [0.0, 0.0, 0.0]
    assert o.step() is None


def test_hooks():
    p = tm.ones(1, requires_grad=True)
    p.grad = tm.ones(1)
    o = optim.SGD([p], lr=1.0)
    heard = []
    first = o.register_step_pre_hook(lambda opt, args, kwargs: heard.append(("before", opt is o, float(p))))
    o.register_step_post_hook(lambda opt, args, kwargs: heard.append(("after", opt is o, float(p))))
    o.step()
    first.remove()
    o.step()
    assert heard == [("before", True, 1.0), ("after", True, 0.0), ("after", True, -1.0)]
    o.register_step_pre_hook(lambda *a: 3)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        o.step()


@pytest.mark.parametrize("lib", [torch, tm], ids=["torch", "tinygrad_mem"])
def test_hooks_of_steps_see_and_change_the_call(lib):
    p = lib.ones(1, requires_grad=True)
    rule, heard = lib.optim.SGD([p], lr=0.25), []

    def loss():
        p.grad = None
        total = (p * p).sum()
        total.backward()
        return total

    handle = rule.register_step_pre_hook(lambda opt, args, kwargs: heard.append((args[0] is opt, len(args), kwargs)))
    rule.register_step_post_hook(lambda opt, args, kwargs: heard.append((args[0] is opt, len(args), kwargs)))
    rule.step()
    rule.step(loss)
    handle.remove()
    rule.register_step_pre_hook(lambda opt, args, kwargs: ((*args, loss), kwargs))
    assert rule.step().item() == 0.25
    assert heard == [(True, 1, {})] * 2 + [(True, 2, {})] * 3
    assert p.tolist() == [0.25]


def test_repr_is_pytorchs():
    ours, theirs = parameters()
    assert repr(optim.Adam(ours)) == repr(torch.optim.Adam(theirs))


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_are_independent(copying: Any):
    ours, theirs = parameters()
    o = optim.Adam(ours, lr=0.1)
    gradients(ours, theirs, 0)
    o.step()
    twin = copying(o)
    copies = twin.param_groups[0]["params"]
    for p, q in zip(ours, copies, strict=True):
        assert q is not p
        q.grad = tm.tensor(p.grad.numpy())
    before = [p.detach().numpy().copy() for p in ours]
    twin.step()
    for p, b in zip(ours, before, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), b)
    o.step()
    for p, q in zip(ours, copies, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_a_step_counts_as_a_write():
    p = tm.ones(3, requires_grad=True)
    loss = (p * p).sum()
    p.grad = tm.ones(3)
    optim.SGD([p]).step()
    assert p._version == 1
    with pytest.raises(RuntimeError, match=r"SGD\.step"):
        loss.backward()


def test_loading_does_not_share_memory():
    p, q = tm.ones(4, requires_grad=True), tm.ones(4, requires_grad=True)
    p.grad = tm.ones(4)
    first, second = optim.Adam([p]), optim.Adam([q])
    first.step()
    second.load_state_dict(first.state_dict())
    assert not np.shares_memory(first.state[p]["exp_avg"].array, second.state[q]["exp_avg"].array)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda p: optim.SGD([]), ValueError, "optimizer got an empty parameter list"),
        (lambda p: optim.SGD(tm.nn.Linear(2, 2)), TypeError, r"but got Linear: give its parameters\(\)"),
        (lambda p: optim.Adam([p], betas=0.9), TypeError, "betas: expected two numbers, .* found 0.9"),
        (lambda p: optim.SGD(p), TypeError, "iterable of Tensors or dicts, but got Tensor"),
        (lambda p: optim.SGD([3]), TypeError, "can only optimize Tensors, but one of the params is int"),
        (lambda p: optim.SGD([{"params": {p}}]), TypeError, "ordered collections"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": p}]), ValueError, "appear in more than one parameter group"),
        (lambda p: optim.SGD([p * 2]), ValueError, "can't optimize a non-leaf Tensor"),
        (lambda p: optim.SGD([{"params": p}, 4]), TypeError, "param_group must be a dict"),
        (lambda p: optim.SGD([p], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda p: optim.SGD([p], momentum=-1), ValueError, "Invalid momentum value: -1"),
        (lambda p: optim.SGD([p], weight_decay=-1), ValueError, "Invalid weight_decay value: -1"),
        (lambda p: optim.SGD([p], nesterov=True), ValueError, "Nesterov momentum requires"),
        (lambda p: optim.SGD([p], differentiable=True), NotImplementedError, "differentiable=True is not offered"),
        (lambda p: optim.Adam([p], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda p: optim.Adam([p], eps=-1), ValueError, "Invalid epsilon value: -1"),
        (lambda p: optim.Adam([p], betas=(1.0, 0)), ValueError, "Invalid beta parameter at index 0: 1.0"),
        (lambda p: optim.AdamW([p], betas=(0, 1.0)), ValueError, "Invalid beta parameter at index 1: 1.0"),
        (lambda p: optim.Adam([p], weight_decay=-1), ValueError, "Invalid weight_decay value: -1"),
        (lambda p: optim.RMSprop([p], alpha=-1), ValueError, "Invalid alpha value: -1"),
        (lambda p: optim.RMSprop([p], momentum=-1), ValueError, "Invalid momentum value: -1"),
        (lambda p: optim.Adagrad([p], lr_decay=-1), ValueError, "Invalid lr_decay value: -1"),
        (lambda p: optim.Adagrad([p], initial_accumulator_value=-1), ValueError, "Invalid initial_accumulator_value"),
        (lambda p: optim.Adadelta([p], rho=2), ValueError, "Invalid rho value: 2"),
        (lambda p: optim.NAdam([p], momentum_decay=-1), ValueError, "Invalid momentum_decay value: -1"),
        (
            lambda p: optim.SGD([p]).load_state_dict({"state": {}, "param_groups": []}),
            ValueError,
            "different number of parameter",
        ),
        (
            lambda p: optim.SGD([p]).load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}),
            ValueError,
            "doesn't match the size",
        ),
    ],
)
def test_refusals(build: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        build(tm.ones(2, requires_grad=True))


def test_duplicates_warn():
    p = tm.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optim.SGD([p, p])


CLASSES = [
    pytest.param(vars(module)[name], getattr(theirs, name), id=name)
    for module, theirs in ((optim, torch.optim), (optim.lr_scheduler, torch.optim.lr_scheduler))
    for name in sorted(vars(module))
    if inspect.isclass(vars(module)[name]) and hasattr(theirs, name)
]


@pytest.mark.parametrize(("mine", "other"), CLASSES)
def test_no_method_takes_an_argument_that_pytorchs_refuses(mine: type, other: type):
    """Such an argument would be read by nobody: ``SequentialLR.step(epoch)`` went on by one epoch."""
    for name in (name for name in dir(mine) if not name.startswith("_") and inspect.isfunction(getattr(other, name, None))):
        taken, known = (inspect.signature(getattr(each, name)).parameters for each in (mine, other))
        assert set(taken) <= set(known), name


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Adafactor", "Lion"])
def test_a_gradient_that_stayed_on_another_device_is_refused(name: str):
    """The step read the memory of ``meta`` as zeros, and changed nothing."""
    p = tm.ones(2, 2, device="meta", requires_grad=True)
    p.sum().backward()
    optimizer = getattr(tm.optim, name)([p], lr=0.1)
    p.data = tm.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"parameter on cpu, its \.grad on meta: call backward again"):
        optimizer.step()
    assert p.tolist() == [[1.0, 1.0], [1.0, 1.0]]
