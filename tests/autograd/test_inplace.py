"""In-place writes where views, hooks and grad modes meet, run with both libraries."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.errors import GraphError


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


WRITES = {
    "mul_": lambda view: view.mul_(2.0),
    "fill_": lambda view: view.fill_(2.0),
    "of a view": lambda view: view[:1].mul_(2.0),
    "key": lambda view: view.__setitem__(0, 2.0),
}


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", WRITES)
def test_no_write_is_missing_in_the_graph_of_a_base(library, name: str, leaf: bool):
    x = library.ones(4, requires_grad=True)
    base = x if leaf else x * 1.0
    with library.no_grad():
        view = base[:2]
    with pytest.raises(RuntimeError, match="was created in no_grad mode and"):
        WRITES[name](view)
    with library.no_grad():
        WRITES[name](view)
    WRITES[name](view.detach())
    (base * 1.0).sum().backward()
    assert x.grad.tolist() == [1.0] * 4


def test_a_base_that_requires_grad_later_is_not_written_unrecorded(library):
    base, w = library.ones(4), library.ones(1, requires_grad=True)
    with library.no_grad():
        view = base[:2]
    base.mul_(w)
    with pytest.raises(RuntimeError, match="was created in no_grad mode and"):
        view.mul_(2.0)


def test_a_view_requires_grad_as_its_base_does(library):
    base = library.ones(4)
    before = base[:2]
    with library.no_grad():
        during = base[:2]
    assert not before.requires_grad
    assert not during.requires_grad
    base.requires_grad_()
    for view in before, during, before[:1], during[:1]:
        assert view.requires_grad
        assert (view * 1.0).requires_grad
    assert [before.is_leaf, during.is_leaf, before[:1].is_leaf] == [True, True, False]
    (before * 1.0).sum().backward()
    assert base.grad is before.grad is None, "it was a constant when the view was made"


@pytest.mark.parametrize("write", [lambda base, view: base.mul_(2.0), lambda base, view: view.mul_(2.0)])
def test_a_view_made_without_grad_is_not_used_after_a_write(library, write):
    base = library.ones(4, requires_grad=True)
    with library.no_grad():
        view = base[:2]
        write(base, view)
        assert (view * 3.0).tolist() == [6.0, 6.0]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode and its base or another view"):
        _ = view * 3.0
    assert (view.detach() * 3.0).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_view_keeps_its_gradient_when_its_base_is_detached(library, later: bool, written: bool):
    """It was lost, or went to the base where that became a leaf."""
    x = library.ones(4, requires_grad=True)
    base = x * 2.0
    view = base[:2]
    inner = view[:1]
    if written:
        base.mul_(3.0)
        assert not view.is_leaf
        assert not inner.is_leaf
    base.detach_()
    if later:
        base.requires_grad_()
    (view.sum() + inner.sum()).backward()
    assert x.grad.tolist() == ([12.0, 6.0, 0.0, 0.0] if written else [4.0, 2.0, 0.0, 0.0])
    assert base.grad is None
    with library.no_grad(), pytest.raises(RuntimeError, match="Can't detach views in-place"):
        base[:2].detach_()


def test_a_view_of_a_view_made_before_its_base_requires_grad_gets_the_gradient_after_a_write(library):
    base = library.ones(4)
    view = base.view(-1)
    base.requires_grad_()
    inner = view[:2]
    with library.no_grad():
        base.mul_(2.0)
    (view.sum() + inner.sum()).backward()
    assert base.grad.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_a_view_made_without_grad_keeps_no_graph():
    base = tm.ones(4, requires_grad=True) * 1.0
    with tm.no_grad():
        view = base[:2]
    gone = weakref.ref(base)
    del base
    assert gone() is None
    assert view.mul_(2.0).tolist() == [2.0, 2.0], "nobody's gradient misses it"


def test_a_view_made_before_its_base_requires_grad_leaves_no_graph(library):
    """It neither becomes an array nor a copy without its history."""
    base, w = library.ones(2, 3), library.ones(1, requires_grad=True)
    view = base[0]
    base.mul_(w)
    with pytest.raises(RuntimeError, match="on Tensor that requires grad"):
        view.numpy()
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        copy.deepcopy(view)


STALE: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "multiplied": (lambda base, view: view.mul_(3.0), 12.0),
    "overwritten": (lambda base, view: view.fill_(3.0), 3.0),
    "a key": (lambda base, view: view.__setitem__(slice(0, 1), 3.0), 5.0),
    "added": (lambda base, view: base[1].add_(view), 9.0),
    "copied": (lambda base, view: base[1].copy_(view), 6.0),
}


@pytest.mark.parametrize("name", STALE)
def test_a_view_made_before_its_base_requires_grad(name: str):
    """PyTorch refuses to write it, with a leaf as the reason."""
    w, base = tm.ones(1, requires_grad=True), tm.ones(2, 3)
    view = base[0]
    base.mul_(w)
    write, expected = STALE[name]
    write(base, view)
    base.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [expected]


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


def test_any_output_of_an_op_can_be_written(library):
    """Backward looked for the written tensor's gradient at the place that it had among the op's outputs: IndexError."""

    class Both(library.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0, x * 3.0

        @staticmethod
        def backward(ctx, g, h):
            return g * 2.0 + h * 3.0

    x = library.ones(2, requires_grad=True)
    first, second = Both.apply(x)
    second.mul_(5.0)
    second.retain_grad()
    first.add_(second)
    (first.sum() + second.sum()).backward()
    assert x.grad.tolist() == [1.0 * 2.0 + 2.0 * 5.0 * 3.0] * 2
    assert second.grad.tolist() == [2.0, 2.0]
    rnn, grads = library.nn.GRU(3, 2), []
    for double in (lambda h: h * 2.0, lambda h: h.mul_(2.0)):
        x = library.ones(4, 1, 3, requires_grad=True)
        double(rnn(x)[1]).sum().backward()
        grads.append(x.grad)
    assert library.equal(*grads)


def test_what_was_made_in_inference_mode_is_written_there_only(library):
    with library.inference_mode():
        x = library.ones(2)
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode is not allowed"):
        x.add_(1.0)
    assert library is torch or x.tolist() == [2.0, 2.0]  # PyTorch refuses when it has written


REWRITES = {
    "floor_divide_": (2.0,), "nan_to_num_": (0.5,), "clamp_min_": (0.2,), "clamp_max_": (0.4,), "ge_": ("other",),
    "logical_and_": ("other",), "logical_or_": ("other",), "logical_not_": (), "clip_": (0.1, 0.6), "absolute_": (),
    "negative_": (), "multiply_": ("other",), "divide_": ("other",), "true_divide_": (3.0,), "subtract_": ("other",),
    "greater_equal_": (0.2,),
}  # fmt: skip
NO_DERIVATIVE = {"floor_divide_", "logical_and_", "logical_or_", "logical_not_"}  # PyTorch records none


@pytest.mark.parametrize("name", REWRITES)
def test_the_form_in_place_of_every_function(name):
    def program(library):
        values = library.tensor([[0.25, -1.5, 0.75], [2.25, 0.5, -0.125]], dtype=library.float64)
        other = library.tensor([0.5, 0.75, 1.25], dtype=library.float64)
        given = [other if a == "other" else a for a in REWRITES[name]]
        plain = values.clone()
        assert getattr(plain, name)(*given) is plain
        if name in NO_DERIVATIVE:
            return [plain.tolist()]
        x = values.clone().requires_grad_()
        y = x * 1.5
        seen = y.view(6)
        assert getattr(y, name)(*given) is y
        (y * y).sum().backward()
        with pytest.raises(RuntimeError, match="leaf"):
            getattr(x, name)(*given)
        return plain.tolist(), y.tolist(), seen.tolist(), x.grad.tolist()

    for found, expected in zip(program(tm), program(torch), strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))


def test_operators_in_place_write_where_they_are(library):
    x = y = library.tensor([7.0, -7.0, 5.0])
    x //= 2.0
    x **= 2
    x %= 5.0
    assert x is y
    assert y.tolist() == [4.0, 1.0, 4.0]
    i = j = library.tensor([1, 6])
    i <<= 2
    i >>= 1
    i //= 2
    assert i is j
    assert j.tolist() == [1, 6]


def test_an_operator_in_place_does_not_grow_its_tensor(library):
    x = library.ones(3)
    with pytest.raises(RuntimeError, match="shape"):
        x //= library.ones(2, 3)
    assert x.shape == (3,)


def test_elements_in_one_place_are_not_written(dev: str):
    """CuPy marks no array as read-only: kernels wrote each element several times, and .grad of a leaf too."""
    base = tm.ones(3, device=dev)
    for view in (base.expand(2, 3), base[:1].expand(3), base.as_strided((2, 2), (0, 1)), base.expand(2, 3).T):
        for write, argument in (("mul_", 2), ("copy_", base.sum())):
            with pytest.raises(GraphError, match=r"read-only, for example expanded; write into a clone\(\)"):
                getattr(view, write)(argument)
    assert base.tolist() == [1, 1, 1]
    leaf = tm.ones(2, device=dev, requires_grad=True)
    leaf.grad = tm.ones(1, device=dev).expand(2)
    with pytest.raises(GraphError, match=r"the memory of \.grad is read-only, for example expanded"):
        leaf.sum().backward()
    assert base.expand(1, 3).mul_(2).tolist() == [[2, 2, 2]], "nothing is repeated"


@pytest.mark.parametrize("windows", ["unfold(0, 2, 1)", "as_strided((3, 2), (1, 1))", "unfold(0, 3, 2).T"])
def test_windows_that_overlap_are_not_written(windows: str, dev: str):
    """The last write of an element won, and each had a gradient. One value everywhere is no question of order."""
    base = tm.ones(5, device=dev, requires_grad=True) * 1.0
    view = eval(f"base.{windows}")
    for write, argument in (("mul_", 2), ("add_", tm.ones_like(view.detach())), ("copy_", base.sum())):
        with pytest.raises(GraphError, match=r"share memory, as in overlapping windows; write into a clone\(\)"):
            getattr(view, write)(argument)
    assert base.tolist() == [1] * 5
    view.zero_()
    assert set(view.flatten().tolist()) == {0}
    leaf = tm.ones(2, 2, device=dev, requires_grad=True)
    leaf.grad = tm.ones(3, device=dev).unfold(0, 2, 1)
    with pytest.raises(GraphError, match=r"elements of \.grad share memory"):
        leaf.sum().backward()
    for apart in ("unfold(0, 2, 2)", "unfold(0, 2, 3)", "as_strided((2, 2), (1, 3))", "as_strided((1, 2), (0, 4))"):
        eval(f"base.{apart}").mul_(2)


@pytest.mark.parametrize("write", ["sub_(x[0])", "add_(x.t())", "addcmul_(x.t(), x)", "copy_(x.t())", "mul_(x[:, :1])"])
def test_data_does_not_read_what_it_writes(write: str, dev: str):
    """Data has a version of its own, but no memory of its own: tiles and threads read what others had written."""
    x = tm.ones(3, 3, device=dev)
    with pytest.raises(GraphError, match="refer to a single memory location"):
        eval(f"x.data.{write}")
    x.data.mul_(x)
    x.data[:1].copy_(x[1:2])


def test_a_part_of_what_changed_its_shape_under_no_grad_has_its_gradient(library):
    a = library.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    x = a * 1.0
    with library.no_grad():
        x.unsqueeze_(0)
    (x[:, :, :1] ** 2).sum().backward()
    assert a.grad.tolist() == [[2, 0], [6, 0]]


@pytest.mark.parametrize("write", ["base", "view"])
def test_a_view_made_before_its_base_required_grad_sends_its_gradient_there_after_a_write(library, write):
    base = library.ones(2, 3)
    part = base[0]
    base.requires_grad_()
    with library.no_grad():
        (base if write == "base" else part).mul_(2)
    loss = (part * part).sum() + base.sum()
    loss.backward()
    assert not part.is_leaf
    assert base.grad.tolist() == [[5.0] * 3, [1.0] * 3]


def test_a_hook_that_would_be_lost_is_refused():
    """PyTorch calls it. Here the write goes to what the tensor was before unsqueeze_(), past the hook."""
    seen: list = []
    y = tm.ones(3, requires_grad=True) * 2
    handle = y.unsqueeze_(0).register_hook(seen.append)
    with pytest.raises(GraphError, match=r"a hook of this tensor, registered between .* would not be called"):
        y.mul_(3)
    assert y.tolist() == [[2.0, 2.0, 2.0]]
    handle.remove()
    y.mul_(3).register_hook(seen.append)
    y.sum().backward()
    assert [g.tolist() for g in seen] == [[[1.0, 1.0, 1.0]]]
