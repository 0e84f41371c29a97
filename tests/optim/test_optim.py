"""Optimizers against PyTorch's, step by step; state, memory and failure."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim import light
from tests.optim.light import rule
from tests.profiles import examples, share
from tests.witness import numpy_allocations
from tinygrad_mem import optim, scope
from tinygrad_mem.devices import device

SHAPES = [(7, 5), (3,), (), (2, 3, 4), (0, 2)]
GRID: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "nesterov": True, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "maximize": True}),
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "maximize": True, "weight_decay": 0.3}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "maximize": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "alpha": 0.9}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.8, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {"weight_decay": 0.1}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {"eps": (1e-4, 1e-2), "d": 1.5, "beta2_decay": -0.5}),
]
NAMES = sorted({name for name, _ in GRID})
grid = pytest.mark.parametrize(("name", "options"), GRID, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain")
every = pytest.mark.parametrize("name", [*NAMES, *light.NAMES])


def parameters(dtype: str = "float64", shapes: list = SHAPES, dev: str = "cpu") -> tuple[list, list]:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(s)).astype(dtype) for s in shapes]
    ours = [tm.tensor(a, device=dev).requires_grad_() for a in arrays]
    return ours, [torch.tensor(a, requires_grad=True) for a in arrays]


def shapes_for(name: str) -> list:
    """PyTorch's Adafactor divides by the number of elements."""
    return SHAPES[:-1] if name == "Adafactor" else SHAPES


def gradients(ours: list, theirs: list, step: int, skip: int | None = None) -> None:
    rng = np.random.default_rng(100 + step)
    for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        g = np.asarray(rng.standard_normal(tuple(q.shape))).astype(q.detach().numpy().dtype)
        p.grad = None if i == skip else tm.tensor(g, device=p.device)
        q.grad = None if i == skip else torch.tensor(g)


def same(ours: list, theirs: list, rtol: float = 1e-10, atol: float = 1e-10) -> None:
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach().cpu().numpy(), q.detach().numpy(), rtol=rtol, atol=atol)


def test_every_optimizer_has_a_row():
    offered = {n for n in vars(optim) if isinstance(getattr(optim, n), type) and issubclass(getattr(optim, n), optim.Optimizer)}
    eight_bit = {"Adam8bit", "AdamW8bit", "SGD8bit"}  # which PyTorch has not: test_eight_bit.py
    apart = {"SparseAdam", "LBFGS"}  # of sparse gradients alone: test_sparse.py; of closures: test_lbfgs.py
    assert offered - {"Optimizer"} == set(NAMES) | set(light.NAMES) | eight_bit | apart


@grid
def test_many_steps_equal_pytorch(name: str, options: dict, dev: str):
    """On a GPU, whose kernels are the same source in both, a usual run takes one of the two dtypes."""
    dtypes = [("float64", 1e-10, 1e-10), ("float32", 1e-5, 2e-5)]
    for dtype, rtol, atol in dtypes if dev == "cpu" else share(dtypes, 2, (name, options)):
        ours, theirs = parameters(dtype, shapes_for(name), dev)
        mine, other = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, foreach=False, **options)
        for step in range(examples(10)):
            gradients(ours, theirs, step, skip=1 if step % 7 == 0 else None)
            mine.step()
            other.step()
        same(ours, theirs, rtol, atol)


@grid
def test_group_keys_are_pytorchs(name: str, options: dict):
    ours, theirs = parameters()
    mine, other = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)
    assert mine.state_dict()["param_groups"] == other.state_dict()["param_groups"]


@grid
def test_state_moves_to_pytorch_and_back(name: str, options: dict):
    ours, theirs = parameters(shapes=shapes_for(name))
    mine, other = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, foreach=False, **options)

    def both(first: int, last: int) -> None:
        for step in range(first, last):
            gradients(ours, theirs, step)
            mine.step()
            other.step()

    both(0, 5)
    state = mine.state_dict()
    converted = {
        k: {n: torch.tensor(v.numpy()) if isinstance(v, tm.Tensor) else v for n, v in s.items()}
        for k, s in state["state"].items()
    }
    expected = other.state_dict()["state"]
    assert {k: set(s) for k, s in converted.items()} == {k: set(s) for k, s in expected.items()}
    other = getattr(torch.optim, name)(theirs, foreach=False, **options)
    other.load_state_dict({"state": converted, "param_groups": state["param_groups"]})
    both(5, 10)
    mine = getattr(optim, name)(ours)
    mine.load_state_dict(other.state_dict())
    both(10, 15)
    same(ours, theirs)


@every
def test_half_precision_is_sane(name: str):
    start = np.linspace(-1, 1, 64).astype(np.float16)
    p = tm.tensor(start).requires_grad_()
    o = rule(name)([p], lr=1e-2)
    for gradient in (1e-4, 0.0, 3e-5):  # their squares are 0 in float16, and so is 1e-8
        p.grad = tm.tensor(np.full(64, gradient, np.float16))
        o.step()
    assert p.dtype == tm.float16
    values = p.detach().numpy()
    assert np.isfinite(values).all()
    assert np.abs(values.astype(float) - start).max() < 0.3  # three steps of at most ten times the rate
    floats = {"AdamMini": [np.float16, np.float32]}.get(name, [np.float16])
    floats = [np.float32] if name in ("Adafactor", "AdaLomo") or "4bit" in name else floats
    assert {t.dtype for t in o.state[p].values() if isinstance(t, tm.Tensor)} <= {np.dtype(each) for each in floats}


@every
def test_non_contiguous_parameters_and_gradients(name: str):
    start, gradient = np.arange(300.0).reshape(20, 15), np.cos(np.arange(300.0)).reshape(20, 15)
    plain = tm.tensor(start).requires_grad_()
    turned = tm.tensor(start.T.copy()).t().detach().requires_grad_()
    plain.grad = tm.tensor(gradient)
    turned.grad = tm.tensor(gradient.T.copy()).t().detach()
    assert not turned.is_contiguous()
    for p in (plain, turned):
        tm.manual_seed(0)
        rule(name)([p]).step()
    same([plain], [torch.tensor(turned.detach().numpy())], 1e-12 if name in light.WHOLE else 0, 0)


@pytest.mark.parametrize("name", [n for n in (*NAMES, *light.NAMES) if not (getattr(optim, n).needs_whole or "4bit" in n)])
def test_large_parameters_are_split_without_a_difference(name: str):
    rng = np.random.default_rng(0)
    start, gradient = rng.standard_normal(600_000, np.float32), rng.standard_normal(600_000, np.float32)
    whole = tm.tensor(start).requires_grad_()
    whole.grad = tm.tensor(gradient)
    getattr(optim, name)([whole]).step()
    parts = [tm.tensor(part).requires_grad_() for part in np.array_split(start, 60)]
    for part, g in zip(parts, np.array_split(gradient, 60), strict=True):
        part.grad = tm.tensor(g)
    getattr(optim, name)(parts).step()
    np.testing.assert_array_equal(whole.detach().numpy(), np.concatenate([p.detach().numpy() for p in parts]))


def test_groups_have_their_own_options():
    ours, theirs = parameters()
    build = [{"params": [0, 1], "lr": 0.5}, {"params": [2, 3, 4], "momentum": 0.9}]
    mine = optim.SGD([{**g, "params": [ours[i] for i in g["params"]]} for g in build], lr=0.1)
    other = torch.optim.SGD([{**g, "params": [theirs[i] for i in g["params"]]} for g in build], lr=0.1)
    for step in range(10):
        gradients(ours, theirs, step)
        mine.step()
        other.step()
        mine.param_groups[0]["lr"] *= 0.9
        other.param_groups[0]["lr"] *= 0.9
    same(ours, theirs)
    assert mine.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    assert list(mine.state_dict()["state"]) == [2, 3, 4]


def test_a_group_can_be_added_later():
    ours, theirs = parameters()
    mine, other = optim.Adam(ours[:2]), torch.optim.Adam(theirs[:2], foreach=False)
    for step in range(6):
        if step == 3:
            mine.add_param_group({"params": ours[2:], "lr": 0.1})
            other.add_param_group({"params": theirs[2:], "lr": 0.1})
        gradients(ours, theirs, step)
        mine.step()
        other.step()
    same(ours, theirs)


def test_named_parameters():
    p, q = (tm.zeros(3, requires_grad=True) for _ in range(2))
    o = optim.SGD([("a", p), ("b", q)])
    assert o.state_dict()["param_groups"][0]["param_names"] == ["a", "b"]
    with pytest.raises(ValueError, match="with/without names"):
        o.add_param_group({"params": [tm.zeros(1)]})
    with pytest.raises(ValueError, match="Some param names are missing"):
        optim.SGD([("a", p), q])


# --- memory


def live(work: Any) -> int:
    pool = device("cpu").pool
    gc.collect()
    before = pool.used_bytes()
    kept = work()
    found = pool.used_bytes() - before
    del kept
    return found


@pytest.mark.parametrize(
    ("name", "options", "arrays"),
    [
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1),
        ("Adam", {}, 2),
        ("Adam", {"amsgrad": True}, 3),
        ("AdamW", {}, 2),
        ("RMSprop", {}, 1),
        ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
        ("Adagrad", {}, 1),
        ("Adadelta", {}, 2),
        ("Adamax", {}, 2),
        ("NAdam", {}, 2),
        ("RAdam", {}, 2),
    ],
)
def test_bytes_of_state(name: str, options: dict, arrays: int):
    shapes = [(100, 70), (70,), (513,)]
    params = [tm.zeros(*s, requires_grad=True) for s in shapes]
    for p in params:
        p.grad = tm.ones(*p.shape)
    o = getattr(optim, name)(params, **options)
    rounded = sum(-(-4 * int(np.prod(s)) // 512) * 512 for s in shapes)
    assert live(o.step) == arrays * rounded

    class Deaf(scope.Listener):
        mallocs = 0

        def malloc(self, *args: Any) -> None:
            self.mallocs += 1

    ear = Deaf()
    scope.listen(ear)
    try:
        with numpy_allocations() as sizes:
            o.step()
            hidden = [n for n in sizes if n > 64]
    finally:
        scope.unlisten(ear)
    assert ear.mallocs == 0, "a second step took memory"
    assert hidden == [], "a kernel allocated"


@pytest.mark.parametrize("name", [n for n in (*NAMES, *light.NAMES) if n != "Lomo"])  # which takes no memory
def test_out_of_memory_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    ours, theirs = parameters("float32")
    late = tm.ones(5, requires_grad=True)
    o = rule(name)([*ours, late], **options)
    gradients(ours, theirs, 0)
    cpu = device("cpu")
    empty = type(cpu).empty
    failing, total = 0, 1
    while failing < total:
        made, before = 0, cpu.pool.used_bytes()
        values = [p.detach().numpy().copy() for p in ours]

        def fail(self: Any, shape: tuple, dtype: Any, failing: int = failing) -> Any:
            nonlocal made
            made += 1
            if made == failing + 1:
                raise tm.OutOfMemoryError("cpu", 4, 0, 0, 0)
            return empty(self, shape, dtype)

        monkeypatch.setattr(type(cpu), "empty", fail)
        with pytest.raises(tm.OutOfMemoryError) as caught:
            o.step()
        monkeypatch.setattr(type(cpu), "empty", empty)
        assert not any(o.state.values())
        assert caught.value.__traceback__ is not None
        assert cpu.pool.used_bytes() == before, "the exception's traceback holds what was made"
        for p, v in zip(ours, values, strict=True):
            np.testing.assert_array_equal(p.detach().numpy(), v)
            assert p._version == 0
        failing, total = failing + 1, sum(len(o.kept(o.param_groups[0], p)) for p in ours)
    o.step()  # with memory it goes on
    assert all(o.state[p] for p in ours)
    # state of others is there: only the new parameter's is wanted, and nobody moves when it cannot be had
    steps = [o.state[p].get("step") for p in ours]
    late.grad = tm.ones(5)
    values = [p.detach().numpy().copy() for p in ours]
    monkeypatch.setattr(type(cpu), "empty", lambda *a: (_ for _ in ()).throw(tm.OutOfMemoryError("cpu", 4, 0, 0, 0)))
    with pytest.raises(tm.OutOfMemoryError):
        o.step()
    monkeypatch.setattr(type(cpu), "empty", empty)
    assert steps == [o.state[p].get("step") for p in ours]
    assert late not in o.state
    for p, v in zip(ours, values, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), v)


def test_a_limit_of_the_pool_is_kept():
    pool = device("cpu").pool
    gc.collect()  # what other tests left in cycles must not become free below
    p = tm.ones(1 << 20, requires_grad=True)
    p.grad = tm.ones(1 << 20)
    o = optim.Adam([p])
    pool.free_all_blocks()
    reserved, held = pool.total_bytes(), []
    while pool.total_bytes() == reserved:  # fill what other tests left half free: the pool must ask the machine for the state
        held.append(tm.empty(1 << 20))
    held.pop()
    pool.free_all_blocks()
    pool.set_limit(pool.total_bytes() + (5 << 20))  # room for one of the two
    try:
        with pytest.raises(tm.OutOfMemoryError):
            o.step()
        assert float(p[0]) == 1.0
        assert not o.state[p]
    finally:
        pool.set_limit(0)
    o.step()
    assert float(p[0]) < 1.0


@every
def test_meta_makes_the_same_state(name: str):
    events: dict[str, list] = {}

    class Ear(scope.Listener):
        def malloc(self, where: str, address: int, requested: int, rounded: int) -> None:
            events[str(where)].append((requested, rounded, scope.local.phase, scope.local.op))

        def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
            roles.append((array.shape, role))

    found = {}
    for where in ("cpu", "meta"):
        p = tm.zeros(30, 40, device=where, requires_grad=True)
        p.grad = tm.zeros(30, 40, device=where)
        o = rule(name)([p])
        events[where], roles = [], []
        ear = Ear()
        scope.listen(ear)
        try:
            o.step()
        finally:
            scope.unlisten(ear)
        found[where] = events[where], roles
    assert found["cpu"] == found["meta"]
    assert {role for _, role in roles} <= {"OPTIMIZER_STATE"}
    workspace = bool(o.workspace(p.device, o.param_groups[0], p))
    assert len(roles) == len(events["cpu"]) - workspace == len(o.kept(o.param_groups[0], p))
    assert all(event[2:] == ("optimizer", f"{name}.step") for event in events["cpu"])


def test_no_reference_cycles():
    gc.collect()
    gc.disable()
    try:
        before = device("cpu").pool.used_bytes()
        p = tm.ones(1000, requires_grad=True)
        p.grad = tm.ones(1000)
        o = optim.Adam([p])
        schedule = optim.lr_scheduler.StepLR(o, 1)
        o.step()
        schedule.step()
        del o, p, schedule
        assert device("cpu").pool.used_bytes() == before
    finally:
        gc.enable()
