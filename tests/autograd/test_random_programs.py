"""Random programs of elementwise ops, views and in-place writes: gradients are PyTorch's, and every buffer has one owner."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import every, examples
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


STATEMENTS = {
    "op": [
        "v{n} = {x} * {y}",
        "v{n} = {x} * 2.0",
        "v{n} = {x}.sin()",
        "v{n} = {x}.sum(0)",
        "v{n} = {x}[..., 1:]",
        "v{n} = {x}.detach()",
        "v{n} = {x}.expand(2, *{x}.shape)",
    ],
    "hook": [
        "{x}.register_hook(lambda g: g * 2)",
        "{x}.register_hook(lambda g: seen.append([lib.is_grad_enabled(), (g * {leaf}).requires_grad, g.sum().item()]))",
        "{leaf}.register_post_accumulate_grad_hook(lambda p: seen.extend([lib.is_grad_enabled()] if p.requires_grad else []))",
        "{leaf}.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))",
        "{x}.retain_grad()",
    ],
    "backward": [
        "{x}.sum().backward(retain_graph=True)",
        "{x}.backward(lib.ones_like({x}), retain_graph=True)",
        "{x}.sum().backward(inputs=[{y}], retain_graph=True)",
        "{x}.sum().backward(inputs=[{leaf}, {y}, {leaf}], retain_graph=True)",
        "lib.autograd.backward([{x}, {y}], [lib.ones_like({x}), lib.ones_like({y})], retain_graph=True)",
        "seen.append([g.tolist() for g in lib.autograd.grad({x}.sum(), [{leaf}], retain_graph=True)])",
    ],
    "change": [
        "{leaf}.grad = None",
        "{leaf}.grad = lib.ones(1, dtype=lib.float64).expand_as({leaf})",
        "{leaf}.grad = {x}.detach().sum() * lib.ones_like({leaf}).detach()",
        "{leaf}.requires_grad_(False)",
    ],
}
"""kind -> statements: ``{x}`` and ``{y}`` are any tensors, ``{leaf}`` is a leaf, ``v{n}`` a new one. (PyTorch also calls hooks
of frozen leaves, which have no gradient then.)"""


def statements(draw: random.Random) -> list[str]:
    names, written = ["a", "b"], []
    for n in range(draw.randrange(4, 14)):
        text = draw.choice(STATEMENTS[draw.choice(["op", "op", "hook", "backward", "backward", "change"])])
        written.append(text.format(x=draw.choice(names), y=draw.choice(names), leaf=draw.choice("ab"), n=n))
        names += [f"v{n}"] if text.startswith("v") else []
    return written


def after_each(lib: Any, program: list[str]) -> list[Any]:
    """What each statement leaves: all gradients, and what hooks saw. A refusal ends the program."""
    space: dict[str, Any] = {"lib": lib, "seen": []}
    for name, data in (("a", [[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]]), ("b", [1.0, -2.0, 0.5])):
        space[name] = lib.tensor(data, dtype=lib.float64, requires_grad=True)
    left: list[Any] = []
    for statement in program:
        try:
            exec(statement, space)
        except (RuntimeError, NameError, TypeError, ValueError, IndexError):
            return [*left, [statement, "refused"]]
        tensors = {name: t for name, t in space.items() if isinstance(t, lib.Tensor)}
        left.append([statement, {name: None if t.grad is None else t.grad.tolist() for name, t in tensors.items()}])
        left[-1].append(list(space["seen"]))
    return left


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of gradients of tensors that are no leaves
def test_each_statement_leaves_pytorchs_gradients(reliability: Callable[[str, int], None]):
    count, wrong = examples(400) // every(2), []
    for seed in range(count):
        program = statements(random.Random(seed))
        pairs = zip(after_each(tm, program), after_each(torch, program), strict=False)  # a refusal here alone differs too
        different = next((pair for pair in pairs if not alike(*pair)), None)
        if different:
            wrong.append((seed, different, program))
    reliability("random programs of hooks and backwards", count)
    assert not wrong


def alike(mine: Any, expected: Any) -> bool:
    if type(mine) is not type(expected):
        return False
    if isinstance(expected, dict):
        return mine.keys() == expected.keys() and all(alike(mine[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(mine) == len(expected) and all(map(alike, mine, expected))
    return mine == pytest.approx(expected) if isinstance(expected, float) else mine == expected
