"""``checkpoint``: everything is bit for bit what it is without it, whatever is passed, nested, stopped or walked twice."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import threading
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import share
from tinygrad_mem import nn
from tinygrad_mem.devices import device
from tinygrad_mem.errors import ArgumentError, CheckpointError, GraphError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.recompute import checkpointed
from tinygrad_mem.recompute.schedule import sqrt
from tinygrad_mem.recompute.scheduled import apply
from tinygrad_mem.scope import Listener, listen, local, unlisten
from tinygrad_mem.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

POOL = device("cpu").pool


class Ops(Listener):
    """Names of the ops that ran, by phase."""

    def __init__(self) -> None:
        self.ran: dict[str, list[str]] = {}

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        if node.op.__name__ != "Checkpoint":
            self.ran.setdefault(local.phase, []).append(node.op.__name__)

    def skipped(self, node: Any) -> None:
        self.ran[local.phase].pop()

    def __enter__(self) -> Ops:
        listen(self)
        return self

    def __exit__(self, *exc: object) -> None:
        unlisten(self)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 6),
    "norm": lambda: nn.BatchNorm1d(6),
    "cumulative norm": lambda: nn.BatchNorm1d(6, momentum=None),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "dropout": lambda: nn.Dropout(0.4),
    "layer norm": lambda: nn.LayerNorm(6),
    "residual": lambda: Residual(),
    "in place": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)),
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 6)

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return x + self.second(F.dropout(F.relu(self.norm(self.first(x))), 0.2, self.training))


def network(names: list[str]) -> list[nn.Module]:
    tm.manual_seed(3)
    return [BLOCKS[name]() for name in names]


def everything(blocks: list[nn.Module], run: Callable[[list, tm.Tensor], tm.Tensor], steps: int = 2) -> list:
    """Losses, gradients, buffers and generators of some steps, as arrays."""
    found: list = []
    x = tm.tensor(np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32), requires_grad=True)
    for _ in range(steps):
        loss = run(blocks, x).square().sum()
        loss.backward()
        found.append(loss.numpy(force=True).copy())
    model = nn.Sequential(*blocks)
    found += [x.grad.numpy(), *(p.grad.numpy() for p in model.parameters()), *(b.numpy() for b in model.buffers())]
    return [*found, device("cpu").generator.state]


def assert_same(mine: list, plain: list) -> None:
    assert len(mine) == len(plain)
    for a, b in zip(mine, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def plainly(blocks: list, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


def nested(blocks: list, x: Any, tree: Any) -> Any:
    """``tree``: numbers are blocks, lists are checkpointed."""
    for item in tree:
        x = blocks[item](x) if isinstance(item, int) else checkpoint(nested, blocks, x, item)
    return x


def cut(numbers: list[int], draw: Any, depth: int) -> list:
    """Some consecutive parts of ``numbers`` as lists, inside lists of lists."""
    if depth == 0 or len(numbers) < 1:
        return numbers
    tree: list = []
    while numbers:
        size = draw(st.integers(1, len(numbers)))
        part, numbers = numbers[:size], numbers[size:]
        tree += [cut(part, draw, depth - 1)] if draw(st.booleans()) else part
    return tree


@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=7), st.data())
def test_random_networks_and_nestings_are_bit_for_bit_the_same(names: list[str], data: Any):
    tree = cut(list(range(len(names))), data.draw, 3)
    assert_same(everything(network(names), lambda b, x: nested(b, x, tree)), everything(network(names), plainly))


def nestings(numbers: list[int], depth: int) -> Iterator[list]:
    """All lists of ``numbers`` in order, of which some parts are in lists, at most ``depth`` deep."""
    if not numbers:
        yield []
    for size in range(1, len(numbers) + 1):
        firsts = [numbers[0]] * (size == 1) + (list(nestings(numbers[:size], depth - 1)) if depth else [])
        yield from ([first, *rest] for first in firsts for rest in nestings(numbers[size:], depth))


def test_all_nestings_of_three_are_bit_for_bit_the_same():
    """All layers are alike, so that a recomputation that stops at another one finds arrays of the right shape."""
    names = ["linear"] * 3
    plain, trees = everything(network(names), plainly), list(nestings([0, 1, 2], 3))
    assert len(trees) == 246
    for tree in [[[[0], 1], 2], *share(trees, 3, "nestings")]:  # the first is one that was wrong
        assert_same(everything(network(names), lambda b, x, tree=tree: nested(b, x, tree)), plain)


def with_gradient(within: Callable) -> Callable:
    """A function that runs a backward of its own, of what ``within`` calls, and uses the gradient."""

    def block(layer: nn.Module, x: tm.Tensor) -> tm.Tensor:
        with tm.enable_grad():
            z = x.detach().requires_grad_()
            (g,) = tm.autograd.grad(within(lambda z: (z.tanh() * layer(z)).tanh(), z).sum(), [z])
        return layer(x) * g

    return block


WRAPPERS = {
    "checkpoint": checkpoint,
    "to the end": functools.partial(checkpoint, early_stop=False),
    "selective": functools.partial(checkpoint, context_fn=lambda: create_selective_checkpoint_contexts(["Linear", "Tanh"])),
    "scheduled": lambda f, x: apply(nn.Sequential(Called(f), nn.Identity()), sqrt(2))(x),
}
PARTS = {
    "layer": lambda layer, x: layer(x),
    "gradient": with_gradient(lambda f, z: f(z)),
    "gradient of a checkpoint": with_gradient(checkpoint),
}


class Called(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("inner", WRAPPERS)
@pytest.mark.parametrize("outer", WRAPPERS)
def test_backward_inside_of_nested_checkpoints(outer: str, inner: str):
    """It runs the functions again that have not ended, each up to what it needs; what they have entered does not see it."""
    names, plain = ["linear"] * 3, dict.fromkeys(WRAPPERS, lambda f, x: f(x))
    for first, middle, last in share(list(itertools.product(PARTS.values(), repeat=3)), 5, (outer, inner)):

        def run(blocks: list, x: tm.Tensor, wrap: dict[str, Callable], parts: tuple = (first, middle, last)) -> tm.Tensor:
            first, middle, last = (functools.partial(part, block) for part, block in zip(parts, blocks, strict=True))
            return wrap[outer](lambda x: last(wrap[inner](lambda x: middle(first(x)), first(x))), x)

        assert_same(
            everything(network(names), functools.partial(run, wrap=WRAPPERS)),
            everything(network(names), functools.partial(run, wrap=plain)),
        )


@pytest.mark.parametrize("recording", [0, 1])
def test_ops_of_a_context_are_none_of_the_functions(recording: int):
    """Either context records one; the function's last op is of a kind that a nested checkpoint has too."""

    def contexts():
        entered = [contextlib.nullcontext(), contextlib.nullcontext()]
        entered[recording] = one_op()
        return tuple(entered)

    @contextlib.contextmanager
    def one_op() -> Iterator[None]:
        tm.ones(2, requires_grad=True).exp()
        yield

    def inner(blocks: list, x: tm.Tensor, tree: list) -> tm.Tensor:
        return checkpoint(nested, blocks, x, tree, context_fn=contexts)

    names = ["linear"] * 3
    for tree in nestings([0, 1, 2], 1):
        mine = everything(network(names), lambda b, x, tree=tree: checkpoint(inner, b, x, tree))
        assert_same(mine, everything(network(names), plainly))


@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=8), st.data())
def test_sequential_is_bit_for_bit_the_same(names: list[str], data: Any):
    segments = data.draw(st.integers(1, len(names)))
    mine = everything(network(names), lambda b, x: checkpoint_sequential(nn.Sequential(*b), segments, x))
    assert_same(mine, everything(network(names), plainly))


def test_batch_norm_advances_once():
    norm = nn.BatchNorm1d(3)
    x = tm.randn(8, 3, requires_grad=True)
    for steps in (1, 2, 3):
        checkpoint(lambda x: norm(norm(x)), x).sum().backward()
        assert norm.num_batches_tracked.item() == 2 * steps
    norm = nn.InstanceNorm1d(3, track_running_stats=True)
    before = norm.running_mean.numpy().copy()
    out = checkpoint(norm, tm.randn(2, 3, 5, requires_grad=True) + 1)
    moved = norm.running_mean.numpy().copy()
    out.square().sum().backward()
    assert (moved != before).any()
    np.testing.assert_array_equal(norm.running_mean.numpy(), moved)


def test_dropout_repeats_and_generators_stand_where_they_stood():
    gen = tm.Generator().manual_seed(5)

    def noisy(x: tm.Tensor, generator: tm.Generator) -> tm.Tensor:
        return F.dropout(x * x, 0.5) * tm.rand(4, 4, generator=generator) * x

    def run(call: Callable) -> tuple:
        tm.manual_seed(1)
        gen.manual_seed(5)
        x = tm.ones(4, 4, requires_grad=True)
        out = call(noisy, x, gen)
        tm.rand(3)  # others draw in between
        before = device("cpu").generator.state, gen.state
        out.sum().backward()
        assert (device("cpu").generator.state, gen.state) == before
        return out.numpy(force=True), x.grad.numpy()

    for a, b in zip(run(checkpoint), run(lambda f, *args: f(*args)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_preserving_other_numbers_are_drawn():
    x = tm.ones(64, requires_grad=True)
    out = checkpoint(lambda x: (x * tm.rand(64)).square(), x, preserve_rng_state=False)
    before = device("cpu").generator.state
    out.sum().backward()
    assert device("cpu").generator.state == (before[0], before[1] + 1)


def test_switches_hold_inside_the_recomputation():
    seen = []

    def look(x: tm.Tensor) -> tm.Tensor:
        seen.append((tm.is_grad_enabled(), str(tm.zeros(1).device), tm.is_inference_mode_enabled(), local.phase))
        return x.exp()

    with tm.device("meta"):
        out = checkpoint(look, tm.ones(2, requires_grad=True)).sum()
    with tm.no_grad():
        out.backward()
    assert seen[0][:3] == seen[1][:3] == (True, "meta", False)
    assert (seen[0][3], seen[1][3]) == ("user", "recompute")


@pytest.mark.parametrize("cached", [True, False])
def test_autocast_holds_inside_the_recomputation(cached: bool):
    def run(call: Callable) -> list[np.ndarray]:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.Softmax(1), nn.Linear(6, 6), nn.Tanh())
        x = tm.randn(4, 6)
        with tm.amp.autocast("cpu", dtype=tm.float16, cache_enabled=cached):
            warm = model(x)
            out = call(lambda x: model(model(x)), x)
        assert out.dtype == tm.float16
        (out.float().square().sum() + warm.float().sum()).backward()
        assert local.autocast is None
        return [p.grad.numpy() for p in model.parameters()]

    for mine, plain in zip(run(checkpoint), run(lambda f, x: f(x)), strict=True):
        np.testing.assert_array_equal(mine, plain)


def test_modules_and_ops_are_named_in_the_recomputation_as_in_the_forward():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh())])

        def forward(self, x: tm.Tensor) -> tm.Tensor:
            return checkpoint(self.body[0], x).exp()

    class Paths(Listener):
        def __init__(self) -> None:
            self.found: dict[str, set] = {}

        def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
            self.found.setdefault(local.phase, set()).add((node.op.__name__, node.module))

    paths = Paths()
    listen(paths)
    try:
        Net()(tm.ones(2, 3)).sum().backward()
    finally:
        unlisten(paths)
    assert paths.found["recompute"] == {("Linear", "Net.body.0.0"), ("Tanh", "Net.body.0.1")}
    assert paths.found["recompute"] < paths.found["forward"]


def test_parameters_get_gradients_when_no_input_requires_one():
    layer = nn.Linear(3, 2)
    out = checkpoint(layer, tm.ones(4, 3))
    assert out.requires_grad
    out.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy(), np.full((2, 3), 4.0))


Pair = namedtuple("Pair", "first second")


def test_arguments_of_all_kinds():
    def mixed(a, pair, items, none, text, *, scale, table=None):
        assert none is None
        assert text == "text"
        out = a.exp() * pair.first.tanh() * items[0].exp() * scale * table["w"].exp()
        return out, None, {"twice": out.exp()}, 7, a is items[1]

    def run(call: Callable) -> list:
        a, b, c, w = (tm.full((3,), v, requires_grad=True) for v in (0.1, 0.2, 0.3, 0.4))
        out, none, more, seven, same = call(
            mixed, a * 1, Pair(b * 1, 5), [c, a], None, "text", scale=tm.tensor(2.0), table={"w": w * 1}
        )
        assert none is None
        assert seven == 7
        assert not same
        (out.sum() + more["twice"].sum()).backward()
        return [t.grad.numpy() for t in (a, b, c, w)]

    for mine, plain in zip(run(checkpoint), run(lambda f, *args, **kwargs: f(*args, **kwargs)), strict=True):
        np.testing.assert_array_equal(mine, plain)


def test_a_dict_of_another_class_stays_one_and_its_tensors_are_inputs():
    seen = []

    def f(ordered, counted):
        seen.append((type(ordered), list(ordered), counted.default_factory, counted["w"].is_leaf))
        return ordered["a"].exp() * counted["w"]

    a, w = (tm.ones(3, requires_grad=True) for _ in range(2))
    checkpoint(f, OrderedDict(b=1, a=a * 2), defaultdict(list, w=w * 3)).sum().backward()
    expected = OrderedDict, ["b", "a"], list
    assert seen == [(*expected, False), (*expected, True)]  # in backward they are leaves: the function's inputs, detached
    np.testing.assert_allclose(a.grad.numpy(), 6 * np.exp(2), rtol=1e-6)


def test_a_tensor_passed_twice_is_one_tensor_inside():
    same = []

    def f(a, b):
        same.append(a is b)
        return a.exp() * b

    x = tm.ones(3, requires_grad=True) * 2
    checkpoint(f, x, x).sum().backward()
    assert same == [True, True]


def test_integer_inputs():
    table = nn.Embedding(5, 3)
    checkpoint(lambda i: table(i).exp(), tm.tensor([0, 2, 2])).sum().backward()
    assert (table.weight.grad.numpy() != 0).any(1).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("reentrant", [True, False, None])
def test_retain_graph_several_backwards_and_grad(reentrant: bool | None):
    blocks = network(["linear", "tanh", "linear", "norm"])
    x = tm.randn(4, 6, requires_grad=True)
    with Ops() as ops:
        out = checkpoint(plainly, blocks, x, use_reentrant=reentrant).square().sum()
        out.backward(retain_graph=True)
        first = [p.grad.numpy().copy() for block in blocks for p in block.parameters()]
        (gx,) = tm.autograd.grad(out, x, retain_graph=True)
        out.backward()
    second = [p.grad.numpy() for block in blocks for p in block.parameters()]
    for once, twice in zip(first, second, strict=True):
        np.testing.assert_array_equal(2 * once, twice)
    np.testing.assert_array_equal(2 * gx.numpy(), x.grad.numpy())
    assert len(ops.ran["recompute"]) == 3 * 4
    with pytest.raises(GraphError, match="second time"):
        out.backward()


def test_two_outputs_walked_one_after_the_other():
    x, w = tm.ones(3, requires_grad=True), tm.full((3,), 2.0, requires_grad=True)
    a, b = checkpoint(lambda x, w: (x.exp(), w.exp()), x, w)
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), a.numpy(force=True))
    np.testing.assert_array_equal(w.grad.numpy(), b.numpy(force=True))


def test_early_stop_ends_at_the_last_array_that_is_wanted():
    def f(x: tm.Tensor) -> tm.Tensor:
        return x.exp().sin() + 1.0 - 2.0

    # sine saves its input, so that it need not run to give it
    for stop, expected in ((True, ["Exp"]), (False, ["Exp", "Sin", "Add", "Sub"])):
        with Ops() as ops:
            checkpoint(f, tm.ones(3, requires_grad=True), early_stop=stop).sum().backward()
        assert ops.ran["recompute"] == expected
    with Ops() as ops, set_checkpoint_early_stop(False):
        checkpoint(f, tm.ones(3, requires_grad=True)).sum().backward()
    assert len(ops.ran["recompute"]) == 4
    calls_itself = set_checkpoint_early_stop(False)(lambda n: calls_itself(n - 1) if n else local.early_stop)
    assert (calls_itself(2), local.early_stop) == (False, None)
    with Ops() as ops:  # a branch that nobody wants is not recomputed, though others come after it in vain
        out, other = checkpoint(lambda x: (x.exp(), x.sin().cos().sin()), tm.ones(3, requires_grad=True))
        del other
        out.sum().backward()
    assert ops.ran["recompute"] == ["Exp"]


def test_full_recomputation_is_at_most_one_more_forward():
    names = ["linear", "norm", "relu", "dropout", "residual"] * 3
    for tree in ([list(range(15))], [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9], 10, [11, 12, 13], 14]):
        blocks = network(names)
        with Ops() as ops:
            nested(blocks, tm.randn(4, 6), tree).sum().backward()
        assert len(ops.ran["forward"]) * 0.5 <= len(ops.ran["recompute"]) <= len(ops.ran["forward"])


def test_no_grad_runs_the_function_as_it_is():
    with tm.no_grad():
        assert not checkpoint(nn.Linear(2, 2), tm.ones(1, 2)).requires_grad


def test_the_decorator():
    @checkpointed
    def f(x, *, power):
        """Doc."""
        return x.exp() + power

    @checkpointed(early_stop=False)
    def g(x):
        return x.exp() + 1

    x = tm.ones(2, requires_grad=True)
    with Ops() as ops:
        f(x, power=2).sum().backward()
        g(x).sum().backward()
    assert f.__doc__ == "Doc."
    assert ops.ran["recompute"] == ["Exp", "Exp", "Add"]


def test_backward_inside_the_function():
    def penalty(x: tm.Tensor) -> tm.Tensor:
        h = x.exp()
        (g,) = tm.autograd.grad((h * h).sum(), h)
        return h.sin() * g

    def run(call: Callable) -> np.ndarray:
        x = tm.tensor([0.1, 0.2, 0.3], requires_grad=True)
        call(penalty, x).sum().backward()
        return x.grad.numpy()

    np.testing.assert_array_equal(run(checkpoint), run(lambda f, x: f(x)))


def test_functions_of_ones_own_are_recomputed():
    class Cube(tm.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = tm.tensor([1.0, 2.0], requires_grad=True)
    checkpoint(lambda x: Cube.apply(x * 2), x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [24.0, 96.0])


# --- what goes wrong --------------------------------------------------------------------------------------------------------


def changing(*kinds: Callable) -> Callable:
    """A function that does something else each time."""
    rest = iter(kinds)
    return lambda x: next(rest)(x)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (lambda x: x.exp(), lambda x: x[:2].exp(), r"at saved array 1 of 1: .*Exp saved y, shape \[3\].*shape \[2\]"),
        (lambda x: x.exp().sin(), lambda x: x.exp().cos(), r"at saved array 2 of 2: in the forward Sin .*; now Cos saved x"),
        (lambda x: x.exp(), lambda x: x.double().exp(), "float32; now Exp saved y, .*float64"),
        (lambda x: x.exp().sin(), lambda x: x.exp(), "saved 2 arrays, the recomputation 1: in the forward Sin saved x"),
        (lambda x: x.exp(), lambda x: x + 1, "saved 1 arrays, the recomputation 0"),
    ],
)
def test_impure_functions(first: Callable, second: Callable, words: str):
    x = tm.ones(3, requires_grad=True)
    out = checkpoint(changing(first, second), x).sum()
    before = device("cpu").generator.state
    with pytest.raises(CheckpointError, match=f"did something else when it was recomputed, .*{words}"):
        out.backward()
    assert device("cpu").generator.state == before
    assert x.grad is None


def test_more_is_saved_the_second_time():
    out = checkpoint(changing(lambda x: x.exp(), lambda x: x.exp().sin()), tm.ones(3, requires_grad=True), early_stop=False)
    with pytest.raises(CheckpointError, match="forward saved 1 arrays, the recomputation has saved more: Sin saved x"):
        out.sum().backward()


def test_debug_lists_both_runs_with_source_lines():
    f = changing(lambda x: x.exp().sin(), lambda x: x.exp().cos())
    with set_checkpoint_debug_enabled(True):
        out = checkpoint(f, tm.ones(3, requires_grad=True))
    with pytest.raises(
        CheckpointError, match=r"the forward:\n  1. Exp .*test_checkpoint.py:\d+ <lambda>\n  2. Sin(.|\n)*2. Cos"
    ):
        out.sum().backward()


def test_an_impure_function_that_swallows_errors():
    def second(x):
        try:
            return x.sin()
        except Exception:
            return x

    out = checkpoint(changing(lambda x: x.exp(), second), tm.ones(3, requires_grad=True))
    with pytest.raises(CheckpointError, match="now Sin saved x"):
        out.sum().backward()


def test_no_check():
    f = changing(lambda x: x.exp(), lambda x: x.cosh())
    x = tm.ones(3, requires_grad=True)
    checkpoint(f, x, determinism_check="none").sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(3, np.float32))
    with pytest.raises(ArgumentError, match="determinism_check should be one of"):
        checkpoint(f, x, determinism_check="values")


def test_an_input_that_was_overwritten():
    x = tm.ones(3, requires_grad=True) * 1
    out = checkpoint(lambda x: x.exp(), x)
    x.mul_(2)
    with pytest.raises(GraphError, match="Checkpoint saved 'x' at version 0; Mul has written to it since"):
        out.sum().backward()


def test_an_exception_in_the_forward_and_in_the_recomputation():
    def fails(x):
        raise KeyError("forward")

    gc.collect()
    gc.disable()
    try:
        x = tm.ones(1000, requires_grad=True)
        used = POOL.used_bytes()
        with pytest.raises(KeyError, match="forward"):
            checkpoint(fails, x * 2)
        assert POOL.used_bytes() == used
        f = changing(lambda x: x.exp(), fails, lambda x: x.exp())
        out = checkpoint(f, x * 2).sum()
        used = POOL.used_bytes()
        with pytest.raises(KeyError, match="forward"):
            out.backward()
        assert POOL.used_bytes() == used
        assert x.grad is None
        assert local.phase == "user"
        out.backward()  # nothing was lost
        assert x.grad is not None
    finally:
        gc.enable()


def test_sequential_refuses():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for segments in (0, 3):
        with pytest.raises(ArgumentError, match=f"expected 1 to 2 segments, found {segments}"):
            checkpoint_sequential(model, segments, tm.ones(1, 2))
    with pytest.raises(TypeError, match="unexpected keyword arguments foo"):
        checkpoint_sequential(model, 1, tm.ones(1, 2), foo=1)


def test_sequential_cuts_where_pytorch_does():
    for n, segments in ((7, 3), (8, 4), (5, 5), (6, 1)):
        calls: dict[str, list[int]] = {"ours": [], "theirs": []}

        def step(i, log):
            return lambda x: log.append(i) or x.exp()

        mine = [step(i, calls["ours"]) for i in range(n)]
        theirs = [step(i, calls["theirs"]) for i in range(n)]
        checkpoint_sequential(mine, segments, tm.zeros(1, requires_grad=True)).sum().backward()
        torch.utils.checkpoint.checkpoint_sequential(
            theirs, segments, torch.zeros(1, requires_grad=True), use_reentrant=False
        ).sum().backward()
        assert calls["ours"] == calls["theirs"]


def test_what_others_record_meanwhile_does_not_count():
    """The recomputation leaves out its last op as it does alone, though another thread records ops in the middle of it."""

    def beside() -> None:
        thread = threading.Thread(target=lambda: [(tm.ones(2, requires_grad=True) * 2).relu() for _ in range(next(turns))])
        thread.start()
        thread.join()

    def block(x: tm.Tensor) -> tm.Tensor:
        x = x.sin()
        beside()
        x = (x + 1).cos() + 2
        beside()
        return x.sin()

    turns = iter([0, 0, 0, 0, 1, 2, 3, 4])  # in forward and recomputation: alone, then beside a thread
    ran, grads = [], []
    for _ in range(2):
        x = tm.linspace(0, 1, 3, requires_grad=True)
        with Ops() as ops:
            checkpoint(block, x).sum().backward()
        ran.append(ops.ran["recompute"])
        grads.append(x.grad.tolist())
    assert ran == [["Sin", "Add", "Cos", "Add"]] * 2
    assert grads[0] == grads[1]
