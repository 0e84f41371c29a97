"""Float32 copies of float16 parameters: the update is float32's, bit for bit; what they cost, keep, and survive."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim import light
from tests.optim.light import LIGHT
from tests.optim.test_optim import GRID, NAMES, SHAPES
from tests.profiles import examples, on_devices, share
from tests.witness import numpy_allocations
from tinygrad_mem import memory, nn, optim, scope
from tinygrad_mem.devices import device
from tinygrad_mem.memory import Category

every = pytest.mark.parametrize("name", [*NAMES, *light.NAMES])
grid = pytest.mark.parametrize(
    ("name", "options"), [*GRID, *LIGHT], ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain"
)


def halves(shapes: list = SHAPES, dev: str = "cpu") -> list[tm.Tensor]:
    rng = np.random.default_rng(0)
    return [tm.tensor(rng.standard_normal(s).astype(np.float16), device=dev).requires_grad_() for s in shapes]


def give(params: list[tm.Tensor], step: int, dtype: Any = np.float16) -> None:
    rng = np.random.default_rng(100 + step)
    for p in params:
        g = np.asarray(rng.standard_normal(tuple(p.shape))).astype(np.float16)
        p.grad = tm.tensor(g.astype(dtype), device=p.device)


def bits(t: tm.Tensor) -> bytes:
    return t.detach().cpu().numpy().tobytes()


def same(a: tm.Tensor, b: tm.Tensor, on_a_gpu: bool) -> None:
    """To the bit. A GPU's compiler joins a product and a sum into one rounding where it likes: its last bits may differ."""
    if not on_a_gpu:
        assert bits(a) == bits(b)
    np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().cpu().numpy(), rtol=1e-4, atol=1e-6)


def master(o: optim.Optimizer, p: tm.Tensor) -> tm.Tensor:
    return o.state[p]["master_weight"]


WAYS = [*itertools.product(["float16", "float32"], ["cpu", "cuda"])]


@pytest.mark.parametrize(
    ("name", "options", "grads", "dev"),
    on_devices([(*row, *way) for row in [*GRID, *LIGHT] for way in share(WAYS, len(WAYS), row)]),
    ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain",
)
def test_the_update_is_float32s_rounded_once(name: str, options: dict, grads: str, dev: str, real_gpu: bool):
    on_a_gpu = real_gpu and dev == "cuda"
    half = halves(dev=dev)
    tm.manual_seed(0)
    whole = [p.detach().float().requires_grad_() for p in half]
    mine = getattr(optim, name)(half, master_weights=True, **options)
    tm.manual_seed(0)
    other = getattr(optim, name)(whole, **options)
    for p in half if grads == "float32" else ():
        p.grad_dtype = tm.float32
    for step in range(examples(5)):
        give(half, step, np.dtype(grads))
        give(whole, step, np.float32)
        mine.step()
        other.step()
        for p, q in zip(half, whole, strict=True):
            same(master(mine, p), q, on_a_gpu)
            assert bits(p) == bits(master(mine, p).half())
            assert p.dtype == tm.float16


def test_updates_below_half_an_ulp_add_up():
    plain, kept = tm.ones(4, dtype=tm.float16, requires_grad=True), tm.ones(4, dtype=tm.float16, requires_grad=True)
    for p, o in ((plain, optim.SGD([plain], lr=1e-4)), (kept, optim.SGD([kept], lr=1e-4, master_weights=True))):
        for _ in range(100):
            p.grad = tm.ones(4, dtype=tm.float16)
            o.step()
    assert plain.tolist() == [1.0] * 4  # 1e-4 is below half an ulp, 2.4e-4, of what is just below 1
    assert abs(float(kept[0]) - 0.99) < 2**-12


@every
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_bytes(name: str, where: str):
    """A copy is 4 bytes a parameter, and its moments are float32; a second step takes nothing."""
    pool, n = device(where).pool, 1 << 14
    o = []
    for masters in (False, True):
        p = tm.zeros(n, dtype=tm.float16, device=where, requires_grad=True)
        p.grad = tm.ones(n, dtype=tm.float16, device=where)
        made = light.rule(name)([p], master_weights=masters)
        before = pool.used_bytes()
        made.step()
        o.append((made, pool.used_bytes() - before))
    (plain, alone), (_, together) = o
    kept = [t for state in plain.state.values() for t in state.values() if isinstance(t, tm.Tensor)]
    assert alone == sum(-(-t.nbytes // 512) * 512 for t in kept)
    assert together == 4 * n + alone + sum(t.nbytes for t in kept if t.dtype == tm.float16)
    assert plain.param_groups[0].get("master_weights") is None
    with numpy_allocations() as sizes:
        before = pool.used_bytes()
        o[1][0].step()
        assert pool.used_bytes() == before
        assert [n for n in sizes if n > 64] == []


def test_the_tracker_knows_them():
    def step(where: str) -> Any:
        with memory.track(where) as track:
            layer = nn.Linear(64, 64, bias=False, device=where, dtype=tm.float16)
            o = optim.Adam(layer.parameters(), master_weights=True)
            for _ in range(2):
                layer(tm.ones(2, 64, device=where, dtype=tm.float16)).sum().backward()
                o.step()
            memory.mark("stepped")
        others = (Category.INPUT, Category.UNTRACKED)  # what is older is other tests'
        found = {c: n for c, n in track.by_category("stepped").items() if n and c not in others}
        return found, track.peak - track.by_category().get(Category.UNTRACKED, 0)

    found, peak = step("cpu")
    n = 64 * 64
    assert found[Category.PARAMETER] == found[Category.GRADIENT] == 2 * n
    assert found[Category.MASTER_WEIGHT] == 4 * n
    assert found[Category.OPTIMIZER_STATE] == 8 * n
    assert step("meta") == (found, peak)


def test_float32_parameters_have_none():
    p, q = tm.zeros(8, requires_grad=True), tm.zeros(8, dtype=tm.float16, requires_grad=True)
    o = optim.SGD([{"params": [p]}, {"params": [q]}], master_weights=True)
    p.grad, q.grad = tm.ones(8), tm.ones(8, dtype=tm.float16)
    o.step()
    assert p not in o.state
    assert set(o.state[q]) == {"master_weight"}


def test_groups_choose():
    a, b = halves([(5,), (5,)])
    o = optim.Adam([{"params": [a], "master_weights": True}, {"params": [b]}])
    give([a, b], 0)
    o.step()
    assert "master_weight" in o.state[a]
    assert "master_weight" not in o.state[b]
    assert [group.get("master_weights", False) for group in o.param_groups] == [True, False]
    o.add_param_group({"params": halves([(3,)]), "master_weights": True})
    assert "master_weights" not in optim.Adam(halves()).param_groups[0], "PyTorch's groups have no such key"


# --- what others write


def test_what_somebody_writes_is_taken_over_element_by_element():
    p, twin = (tm.full((6,), 1.0, dtype=tm.float16, requires_grad=True) for _ in range(2))
    o, other = (optim.SGD([q], lr=1e-4, master_weights=True) for q in (p, twin))

    def step() -> None:
        for q, rule in ((p, o), (twin, other)):
            q.grad = tm.ones(6, dtype=tm.float16)
            rule.step()

    step()
    with tm.no_grad():
        p[:2] = 5.0
    p.data[2] = -3.0  # which no version counter sees
    step()
    step()
    assert p.tolist()[:3] == [5.0, 5.0, -3.0]
    np.testing.assert_allclose(master(o, p).numpy()[:3], [5 - 2e-4, 5 - 2e-4, -3 - 2e-4], rtol=1e-7)
    assert bits(master(o, p)[3:]) == bits(master(other, twin)[3:]), "what nobody wrote keeps its digits"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.0])
def test_odd_values_are_taken_over_too(value: float):
    p = tm.ones(4, dtype=tm.float16, requires_grad=True)
    o = optim.SGD([p], lr=0.0, master_weights=True)
    p.grad = tm.zeros(4, dtype=tm.float16)
    o.step()
    p.data[1] = value
    o.step()
    o.step()
    assert bits(master(o, p)) == bits(p.float())


def test_loading_the_model_after_the_optimizer_was_made():
    layer, source = (nn.Linear(3, 3, dtype=tm.float16) for _ in range(2))
    o = optim.SGD(layer.parameters(), lr=1e-5, master_weights=True)
    for _ in range(2):
        layer(tm.ones(1, 3, dtype=tm.float16)).sum().backward()
        o.step()
    layer.load_state_dict(source.state_dict())
    o.step()
    for p, q in zip(layer.parameters(), source.parameters(), strict=True):
        assert np.abs(p.detach().numpy().astype(float) - q.detach().numpy()).max() < 1e-3, "a stale master undid the load"


def test_a_parameter_that_changes_its_dtype():
    layer = nn.Linear(3, 3, dtype=tm.float16)
    o = optim.SGD(layer.parameters(), lr=0.5, master_weights=True)
    for dtype in (tm.float16, tm.float32, tm.float16):
        layer.to(dtype)
        o.zero_grad()
        layer(tm.ones(1, 3, dtype=dtype)).sum().backward()
        before = layer.bias.detach().clone()
        o.step()
        assert (before - layer.bias).tolist() == [0.5] * 3 or np.allclose((before - layer.bias).tolist(), 0.5, atol=1e-3)


# --- state dicts


@pytest.mark.parametrize("optimizer_first", [True, False])
@every
def test_a_run_goes_on_bit_for_bit(name: str, optimizer_first: bool, tmp_path: Path):
    params = halves()
    o = light.rule(name)(params, master_weights=True)
    for step in range(3):
        give(params, step)
        o.step()
    tm.save({"model": [p.detach() for p in params], "optimizer": o.state_dict()}, tmp_path / "checkpoint")
    found = tm.load(tmp_path / "checkpoint")
    again = halves()
    twin = light.rule(name)(again, master_weights=True)

    def load_model() -> None:
        with tm.no_grad():
            for p, value in zip(again, found["model"], strict=True):
                p.copy_(value)

    if not optimizer_first:
        load_model()
    twin.load_state_dict(found["optimizer"])
    if optimizer_first:
        load_model()
    for step in range(3, 6):
        for ps, rule in ((params, o), (again, twin)):
            give(ps, step)
            rule.step()
    for p, q in zip(params, again, strict=True):
        assert bits(p) == bits(q)
        assert bits(master(o, p)) == bits(master(twin, q))


def test_a_state_dict_without_masters_makes_them_of_the_parameters():
    params = halves()
    plain = optim.Adam(params)
    give(params, 0)
    plain.step()
    o = optim.Adam(params, master_weights=True)
    o.load_state_dict(plain.state_dict())
    assert o.param_groups[0]["master_weights"] is True, "what the dict does not say stays"
    before = [p.detach().float() for p in params]
    give(params, 1)
    for p in params:
        p.grad = tm.zeros_like(p)
    o.state_dict()
    o.param_groups[0]["lr"] = 0.0
    o.step()
    for p, b in zip(params, before, strict=True):
        assert bits(master(o, p)) == bits(b)
        assert o.state[p]["step"] == 2


def test_momentum_without_masters_goes_on_as_it_was():
    """A master that is new does not make the first gradient of a momentum buffer that is not."""
    params = halves([(4,)])
    plain = optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5)
    give(params, 0)
    plain.step()
    o = optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5, master_weights=True)
    o.load_state_dict(plain.state_dict())
    give(params, 1)
    g = params[0].grad.numpy().astype(np.float32)
    expected = o.state[params[0]]["momentum_buffer"].numpy() * np.float32(0.9) + g * np.float32(0.5)
    o.step()
    np.testing.assert_allclose(o.state[params[0]]["momentum_buffer"].numpy(), expected, rtol=1e-6)


def test_pytorch_reads_the_state_dict():
    params = halves()
    o = optim.Adam(params, master_weights=True)
    give(params, 0)
    o.step()
    state = o.state_dict()
    converted = {
        k: {n: torch.tensor(v.numpy()) if isinstance(v, tm.Tensor) else v for n, v in s.items()}
        for k, s in state["state"].items()
    }
    other = torch.optim.Adam([torch.tensor(p.detach().numpy(), requires_grad=True) for p in params], foreach=False)
    other.load_state_dict({"state": converted, "param_groups": state["param_groups"]})
    for p in other.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    other.step()


def test_another_shape_is_refused_and_changes_nothing():
    a, b = halves([(4,)]), halves([(5,)])
    o, other = optim.Adam(a, master_weights=True), optim.Adam(b, lr=0.5)
    give(a, 0)
    o.step()
    with pytest.raises(ValueError, match=r"exp_avg of a parameter of shape \[5\] should have shape \[5\], found \[4\]"):
        other.load_state_dict(o.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    assert not other.state


# --- everything else that steps


def test_closures_and_schedules():
    p, q = tm.ones(3, dtype=tm.float16, requires_grad=True), tm.ones(3, requires_grad=True)
    both = [(x, optim.SGD([x], lr=0.1, master_weights=True)) for x in (p, q)]
    for x, o in both:
        schedule = optim.lr_scheduler.StepLR(o, 1, gamma=0.5)
        for _ in range(3):

            def closure(x: tm.Tensor = x, o: optim.Optimizer = o) -> tm.Tensor:
                o.zero_grad()
                loss = (x * 0.5).sum()
                loss.backward()
                return loss

            assert o.step(closure) is not None
            schedule.step()
    assert bits(master(both[0][1], p)) == bits(q)


def test_a_copy_of_the_optimizer_has_masters_of_its_own():
    params = halves()
    o = optim.Adam(params, master_weights=True)
    give(params, 0)
    o.step()
    before = [bits(master(o, p)) for p in params]
    twin = copy.deepcopy(o)
    for q in twin.param_groups[0]["params"]:
        q.grad = tm.ones_like(q)
    twin.step()
    assert [bits(master(o, p)) for p in params] == before


@every
def test_out_of_memory_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    params = halves([(7, 5), (3,)])
    o = light.rule(name)(params, master_weights=True)
    give(params, 0)
    cpu = device("cpu")
    empty, values = type(cpu).empty, [bits(p) for p in params]
    wanted = sum(len(o._kept(o.param_groups[0], p)) for p in params)
    before = cpu.pool.used_bytes()
    for failing in range(wanted):
        made = 0

        def fail(self: Any, shape: tuple, dtype: Any, failing: int = failing) -> Any:
            nonlocal made
            made += 1
            if made == failing + 1:
                raise tm.OutOfMemoryError("cpu", 4, 0, 0, 0)
            return empty(self, shape, dtype)

        monkeypatch.setattr(type(cpu), "empty", fail)
        with pytest.raises(tm.OutOfMemoryError):
            o.step()
        monkeypatch.setattr(type(cpu), "empty", empty)
        assert not any(o.state.values())
        assert cpu.pool.used_bytes() == before
        assert [bits(p) for p in params] == values
    o.step()
    assert [bits(p) for p in params] != values


def test_one_listener_event_a_master():
    roles = []

    class Ear(scope.Listener):
        def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
            roles.append((role, of))

    params = halves([(4,)])
    o = optim.SGD(params, master_weights=True)
    give(params, 0)
    scope.listen(ear := Ear())
    try:
        o.step()
        state = o.state_dict()
        o.load_state_dict(state)
    finally:
        scope.unlisten(ear)
    assert [role for role, _ in roles] == ["MASTER_WEIGHT"] * 2
    assert all(of is params[0] for _, of in roles)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda p: optim.Adam([p], master_weights=1), ValueError, "master_weights: expected True or False, found 1"),
        (lambda p: optim.Adam([p], state_dtype=tm.int8), TypeError, "state_dtype: expected a floating dtype, found int8"),
        (lambda p: optim.Adam([p], state_dtype="quarter"), TypeError, "dtype: expected one of"),
        (
            lambda p: optim.RMSprop([{"params": [p], "state_dtype": tm.float16}]),
            NotImplementedError,
            "RMSprop: state_dtype is not",
        ),
    ],
)
def test_refusals(build: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        build(tm.ones(2, dtype=tm.float16, requires_grad=True))


def test_non_contiguous_parameters():
    start = np.arange(300.0).reshape(20, 15).astype(np.float16)
    plain, turned = tm.tensor(start).requires_grad_(), tm.tensor(start.T.copy()).t().detach().requires_grad_()
    for p in (plain, turned):
        o = optim.Adam([p], master_weights=True)
        for _ in range(3):
            p.grad = tm.tensor(np.cos(start))
            o.step()
    np.testing.assert_array_equal(plain.detach().numpy(), turned.detach().numpy())


def test_large_parameters_are_split_without_a_difference():
    rng = np.random.default_rng(0)
    start = rng.standard_normal(600_000).astype(np.float16)
    whole = tm.tensor(start).requires_grad_()
    parts = [tm.tensor(part).requires_grad_() for part in np.array_split(start, 60)]
    for params in ([whole], parts):
        o = optim.AdamW(params, master_weights=True)
        for _ in range(2):
            for p in params:
                p.grad = p.detach() * 0.5
            o.step()
    np.testing.assert_array_equal(whole.detach().numpy(), np.concatenate([p.detach().numpy() for p in parts]))
