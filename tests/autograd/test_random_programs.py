"""Random programs of elementwise ops, views and in-place writes: gradients are PyTorch's, and every buffer has one owner."""

from __future__ import annotations

import gc

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tinygrad_mem.ops.base import root_of

POOL = tm.device("cpu").pool

UNARY = ["neg", "exp", "tanh", "sin", "relu", "sigmoid", "square", "abs"]
BINARY = ["add", "sub", "mul"]
VIEWS = ["transpose", "reshape", "slice", "unsqueeze", "expand", "detach", "select"]
SHAPES = [(2, 3), (3,), (1, 3), (2, 1), ()]

step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 99)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.sampled_from(VIEWS), st.integers(0, 99)),
    st.tuples(st.just("reduce"), st.integers(0, 99)),
    st.tuples(st.just("free"), st.integers(0, 99)),
)
programs = st.tuples(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3), st.lists(step, min_size=1, max_size=14))


def view(kind: str, x):
    if kind == "transpose":
        return x.transpose(0, 1) if x.dim() >= 2 else x
    if kind == "reshape":
        return x.reshape(-1)
    if kind == "slice":
        return x[1:] if x.dim() and x.shape[0] > 1 else x
    if kind == "unsqueeze":
        return x.unsqueeze(0)
    if kind == "expand":
        return x.unsqueeze(0).expand(2, *x.shape)
    if kind == "select":
        return x[0] if x.dim() else x
    return x.detach()


def fits(a, b) -> bool:
    try:
        np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        return False
    return True


def run(library, shapes: list, steps: list) -> tuple[list, list]:
    rng = np.random.default_rng(0)
    leaves = [library.tensor(rng.uniform(-1, 1, s), requires_grad=True) for s in shapes]
    values = [x * 1.0 for x in leaves]
    for kind, *args in steps:
        x = values[args[0] % len(values)]
        if x.numel() > 200 or x.dim() > 5:
            continue
        if kind in UNARY:
            values.append(getattr(library, kind)(x))
        elif kind in BINARY:
            y = values[args[1] % len(values)]
            if fits(x, y):
                values.append(getattr(library, kind)(x, y))
        elif kind in VIEWS:
            values.append(view(kind, x))
        elif kind == "reduce":
            values.append(x.sum(0) if x.dim() else x * 0.5)
        elif len(values) > 1:
            values.pop(args[0] % len(values))
    return leaves, [v for v in values if v.requires_grad]


@settings(max_examples=examples(120))
@given(programs)
def test_gradients_are_pytorchs(program):
    shapes, steps = program
    mine, outputs = run(tm, shapes, steps)
    theirs, expected = run(torch, shapes, steps)
    assert [tuple(o.shape) for o in outputs] == [tuple(e.shape) for e in expected]
    for o, e in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(o.detach().numpy(), e.detach().numpy(), rtol=1e-10, atol=1e-12)
    if not outputs:
        return
    rng = np.random.default_rng(1)
    seeds = [rng.standard_normal(tuple(e.shape)) for e in expected]
    tm.autograd.backward(outputs, [tm.tensor(s) for s in seeds])
    torch.autograd.backward(expected, [torch.tensor(s) for s in seeds])
    for m, t in zip(mine, theirs, strict=True):
        assert (m.grad is None) == (t.grad is None)
        if m.grad is not None:
            np.testing.assert_allclose(m.grad.numpy(), t.grad.numpy(), rtol=1e-9, atol=1e-10)


@settings(max_examples=examples(60))
@given(programs)
def test_every_gradient_has_memory_of_its_own_and_nothing_is_left(program):
    shapes, steps = program
    gc.disable()
    try:
        before = POOL.used_bytes()
        leaves, outputs = run(tm, shapes, steps)
        if outputs:
            seeds = [tm.ones(*o.shape, dtype=tm.float64) for o in outputs]
            tm.autograd.backward(outputs, seeds)
            grads = [x.grad for x in leaves if x.grad is not None]
            owned = [id(root_of(t.array)) for t in (*grads, *seeds, *leaves)]
            assert len(set(owned)) == len(owned)
            assert all(g.array.flags.writeable and g.is_contiguous() for g in grads)
            assert all(s.numpy().min() == 1 for s in seeds if s.numel())
            del grads, seeds
        del outputs
        for x in leaves:
            x.grad = None
        del x
        assert POOL.used_bytes() == before + 512 * len(leaves)
    finally:
        gc.enable()


WRITES = ["add_", "mul_", "exp_", "copy_"]
writing = st.one_of(step, st.tuples(st.sampled_from(WRITES), st.integers(0, 99), st.integers(0, 99)))
writing_programs = st.tuples(
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2), st.lists(writing, min_size=2, max_size=10)
)


def run_writing(library, shapes: list, steps: list) -> list:
    """Values and gradients; or, where the library refuses, at which step."""
    rng = np.random.default_rng(0)
    leaves = [library.tensor(rng.uniform(-1, 1, s), requires_grad=True) for s in shapes]
    values = [x * 1.0 for x in leaves]
    for kind, *args in steps:
        x = values[args[0] % len(values)]
        if x.numel() > 100 or x.dim() > 4 or kind in ("free", "expand", "detach"):
            continue
        if kind in UNARY:
            values.append(getattr(library, kind)(x))
        elif kind in VIEWS:
            values.append(view(kind, x))
        elif kind == "reduce":
            values.append(x.sum(0) if x.dim() else x * 0.5)
        elif kind == "exp_":
            x.mul_(0.5).exp_()
        else:
            y = values[args[1] % len(values)]
            if kind in BINARY and fits(x, y):
                values.append(getattr(library, kind)(x, y))
            elif kind in WRITES and fits(x, y) and np.broadcast_shapes(tuple(x.shape), tuple(y.shape)) == tuple(x.shape):
                getattr(x, kind)(y.clone())  # (PyTorch refuses to read what it is writing)
    outputs = [v for v in values if v.requires_grad]
    try:
        library.autograd.backward(outputs, [library.ones_like(o).detach() for o in outputs])
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return ["refused"]
    return [t.detach().numpy().copy() for t in values] + [x.grad.numpy() for x in leaves if x.grad is not None]


@settings(max_examples=examples(100))
@given(writing_programs)
def test_in_place_writes_give_pytorchs_gradients_or_are_refused_as_there(program):
    mine, theirs = run_writing(tm, *program), run_writing(torch, *program)
    assert len(mine) == len(theirs)
    for m, t in zip(mine, theirs, strict=True):
        if isinstance(t, str):
            assert m == t
        else:
            np.testing.assert_allclose(m, t, rtol=1e-9, atol=1e-10)
