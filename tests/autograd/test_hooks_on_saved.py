"""``saved_tensors_hooks``: what is packed, when it is unpacked, and that nothing stays behind."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.autograd.graph import saved_tensors_hooks
from tinygrad_mem.errors import GraphError

POOL = tm.device("cpu").pool


def identity(x):
    return x


def test_gradients_through_packed_arrays_are_the_same():
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    mine = [tm.tensor(a, requires_grad=True) for a in (x, y)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, y)]
    with saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), tm.tensor):
        out = (mine[0] * mine[1]).exp().sum()
    out.backward()
    (theirs[0] * theirs[1]).exp().sum().backward()
    for m, t in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(m.grad.numpy(), t.grad.numpy(), rtol=1e-12)


def test_a_leaf_is_packed_itself_and_everything_else_detached():
    packed = []

    def pack(t):
        packed.append(t)
        return t

    w, x = tm.ones(2, requires_grad=True), tm.ones(2)
    with saved_tensors_hooks(pack, identity):
        h = w * x
        y = h * w
        z = y.exp()
    assert any(p is w for p in packed)
    assert all(p is not t for p in packed for t in (h, y, z))
    assert all(p is w or not p.requires_grad for p in packed)
    z.sum().backward()


def test_identity_hooks_pin_nothing():
    gc.disable()
    try:
        w = tm.ones(1000, requires_grad=True)
        before = POOL.used_bytes()
        with saved_tensors_hooks(identity, identity):
            y = (w * w).exp()
        del y
        assert POOL.used_bytes() == before
    finally:
        gc.enable()


def test_what_pack_did_not_keep_is_freed():
    gc.collect()  # what earlier tests left would count here when it goes
    x = tm.ones(1000, requires_grad=True)
    before = POOL.used_bytes()
    with saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), tm.tensor):
        y = (x * 2).exp().exp().sum()
    assert POOL.used_bytes() == before + 512
    y.backward()
    assert POOL.used_bytes() == before + 512 + 4096


def test_hooks_nest_and_the_innermost_applies():
    calls = []

    def named(name):
        return saved_tensors_hooks(lambda t: calls.append(name) or t, lambda t: calls.append(f"un{name}") or t)

    w = tm.ones(1, requires_grad=True)
    with named("a"):
        with named("b"):
            y = w.exp()
        z = y.exp()
    z.backward()
    assert calls == ["b", "a", "una", "unb"]


def test_hooks_may_compute_without_being_called_again_or_recorded():
    w = tm.ones(3, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t / 2):
        y = w.exp().sum()
    y.backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp([1.0, 1.0, 1.0]), rtol=1e-6)


def test_backward_with_retain_graph_unpacks_each_time():
    unpacked = []
    w = tm.ones(3, requires_grad=True)
    with saved_tensors_hooks(identity, lambda t: unpacked.append(1) or t):
        y = w.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    assert len(unpacked) == 2
    with pytest.raises(GraphError, match="second time"):
        y.backward()


def test_an_original_written_after_packing_is_the_hooks_affair():
    w = tm.ones(3, requires_grad=True)
    h = w * 2
    with saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), tm.tensor):
        y = (h * h).sum()
    h.detach().fill_(100)
    y.backward()
    assert w.grad.tolist() == [8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("unpack", "error", "message"),
    [
        (lambda t: 3, TypeError, "unpack must return a tensor, found int"),
        (lambda t: tm.ones(2), GraphError, r"float32 on cpu; unpack must return the same, found shape \[2\]"),
        (lambda t: t.double(), GraphError, "found shape .* float64 on cpu"),
        (lambda t: tm.ones(3, device="meta"), GraphError, "on meta"),
    ],
    ids=range(4),
)
def test_unpack_must_give_back_what_pack_was_given(unpack, error, message):
    w = tm.ones(3, requires_grad=True)
    with saved_tensors_hooks(identity, unpack):
        y = w.exp().sum()
    with pytest.raises(error, match=message):
        y.backward()


def test_errors_in_hooks_come_out_and_leave_the_engine_usable():
    w = tm.ones(1000, requires_grad=True)
    before = POOL.used_bytes()

    def broken(t):
        raise ValueError("broken hook")

    with pytest.raises(ValueError, match="broken hook"), saved_tensors_hooks(broken, identity):
        w.exp()
    with saved_tensors_hooks(identity, broken):
        y = w.exp().sum()
    with pytest.raises(ValueError, match="broken hook"):
        y.backward()
    del y
    assert POOL.used_bytes() == before
    w.exp().sum().backward()
    assert w.grad is not None


def test_what_is_no_hook():
    with pytest.raises(TypeError, match="must be callable"):
        saved_tensors_hooks(None, identity)


@pytest.mark.parametrize("write", ["exp", "mul"])
def test_a_pack_hook_that_writes_its_input_is_refused(write: str):
    for lib in (torch, tm):
        x = lib.ones(3, requires_grad=True)
        with (
            lib.autograd.graph.saved_tensors_hooks(lambda t: t.detach().add_(1), lambda t: t),
            pytest.raises(RuntimeError, match="pack hook is modifying its input in place"),
        ):
            x.exp() if write == "exp" else x.clone() * lib.ones(3, requires_grad=True).clone()
