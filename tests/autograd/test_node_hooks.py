"""Hooks on nodes of the graph: what they see, what they may answer, lifetimes; against PyTorch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.autograd import Function
from tinygrad_mem.errors import ArgumentTypeError, DTypeError, GraphError, NotOfferedError, ShapeError

POOL = tm.device("cpu").pool


def shown(grads: tuple) -> list:
    return [None if g is None else g.tolist() for g in grads]


def program(m: Any) -> list:
    """Hooks before and after, of several nodes, that answer and that look; every gradient that they see is shared by some."""
    log: list = []
    x = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = m.tensor([[2.0], [5.0]], requires_grad=True)
    y = x * w  # (2, 3): both gradients are sums
    z = y * 4.0
    y.register_hook(lambda g: log.append(("tensor", g.tolist())))
    y.grad_fn.register_prehook(lambda out: log.append(("pre", shown(out))))
    y.grad_fn.register_prehook(lambda out: (out[0] * 10,))
    y.grad_fn.register_hook(lambda into, out: log.append(("post", shown(into), shown(out))))
    y.grad_fn.register_hook(lambda into, out: (into[0] * 3, None))
    removed = y.grad_fn.register_hook(lambda into, out: (into[0] * 1000, into[1]))
    removed.remove()
    z.grad_fn.register_hook(lambda into, out: (into[0] + 1, None))
    z.sum().backward()
    return [*log, x.grad.tolist(), None if w.grad is None else w.grad.tolist()]


def test_as_pytorch():
    ours, theirs = program(tm), program(torch)
    assert [entry[0] for entry in ours[:3]] == ["tensor", "pre", "post"]
    assert ours == theirs


def test_what_hooks_keep_is_not_written_over():
    kept: list = []
    x = tm.ones(1000, requires_grad=True)
    y = x.exp().sin().tanh()
    node = y.grad_fn
    while node.next_functions[0][0].name() != "AccumulateGrad":
        node.register_prehook(lambda out: kept.extend(out))
        node.register_hook(lambda into, out: kept.extend((*into, *out)))
        node = node.next_functions[0][0]
    y.sum().backward()
    first = [k.tolist() for k in kept]
    x.grad.fill_(0)
    assert len(first) == 6
    assert [k.tolist() for k in kept] == first
    assert first[0] == first[2]  # the incoming gradient was not overwritten by the backward


def test_several_outputs_a_slice_and_a_function_of_the_user():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gy):
            return gy * 2

    seen: list = []
    x = tm.ones(4, requires_grad=True)
    top, _ = (x * 1.0).reshape(2, 2).max(0)
    top.grad_fn.register_prehook(lambda out: seen.append(shown(out)))
    cut = x[1:3]
    cut.grad_fn.register_hook(lambda into, out: seen.append(shown(into)))
    own = Double.apply(x)
    own.grad_fn.register_hook(lambda into, out: (into[0] * 7,))
    (top.sum() + cut.sum() + own.sum()).backward()
    assert [[1.0, 1.0], None] in seen
    assert any(grads[0] == [0.0, 1.0, 1.0, 0.0] for grads in seen)
    np.testing.assert_array_equal(x.grad.numpy(), [15, 16, 15, 14])


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (lambda g: g[0], ArgumentTypeError, "MulBackward0: expected tuple, but hook returned 'Tensor'"),
        (lambda g: [*g], ArgumentTypeError, "expected tuple, but hook returned 'list'"),
        (lambda g: (*g, None), GraphError, r"incorrect number of values \(got \d, but expected \d\)"),
        (lambda g: (tm.ones(3), *g[1:]), ShapeError, r"changed the size of value: expected \[2\], found"),
        (lambda g: (1.0, *g[1:]), ShapeError, r"changed the size of value: expected \[2\], found 1.0"),
        (lambda g: (g[0].double(), *g[1:]), DTypeError, "changed the type of value: float32 became float64"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_refused(answer, error, match, before: bool):
    x = tm.ones(2, requires_grad=True)
    y = x * 2.0
    if before:
        y.grad_fn.register_prehook(answer)
    else:
        y.grad_fn.register_hook(lambda into, out: answer(into))
    with pytest.raises(error, match=match):
        y.sum().backward()
    assert x.grad is None


def test_leaves_say_what_to_use():
    x = tm.ones(2, requires_grad=True)
    end = (x * 2.0).grad_fn.next_functions[0][0]
    for register in (end.register_hook, end.register_prehook):
        with pytest.raises(NotOfferedError, match=r"use the leaf's register_hook\(\) .* register_post_accumulate_grad_hook"):
            register(print)


def test_hooks_go_with_their_graph():
    gc.collect()
    gc.disable()
    before = POOL.used_bytes()
    try:
        x = tm.ones(1000, requires_grad=True)
        y = (x * 2.0).exp()
        y.grad_fn.register_hook(lambda into, out: (into[0] * 2,))
        y.grad_fn.register_prehook(lambda out: (out[0] * 2,))
        y.sum().backward()
        del x, y
        assert POOL.used_bytes() == before
    finally:
        gc.enable()
