"""Parameters and moments in bfloat16: as float16's, but that small numbers survive and small changes do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim.test_optim import GRID, SHAPES
from tests.witness import numpy_allocations
from tinygrad_mem import nn, optim
from tinygrad_mem.nn import functional as F

grid = pytest.mark.parametrize(("name", "options"), GRID, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain")


def parameters() -> list[tm.Tensor]:
    rng = np.random.default_rng(0)
    return [tm.tensor(rng.standard_normal(s), dtype=tm.bfloat16).requires_grad_() for s in SHAPES]


def bits(t: tm.Tensor) -> bytes:
    return t.detach().numpy().tobytes()


@grid
def test_with_masters_the_update_is_float32s_rounded_once(name: str, options: dict):
    half = parameters()
    whole = [p.detach().float().requires_grad_() for p in half]
    mine, other = getattr(optim, name)(half, master_weights=True, **options), getattr(optim, name)(whole, **options)
    rng = np.random.default_rng(100)
    for _ in range(20):
        for p, q in zip(half, whole, strict=True):
            p.grad = tm.tensor(rng.standard_normal(tuple(p.shape)), dtype=tm.bfloat16)
            q.grad = p.grad.float()
        mine.step()
        other.step()
        for p, q in zip(half, whole, strict=True):
            assert bits(mine.state[p]["master_weight"]) == bits(q)
            assert bits(p) == bits(q.bfloat16())


def test_what_others_write_to_a_parameter_enters_its_master():
    p = tm.ones(3, dtype=tm.bfloat16, requires_grad=True)
    rule = optim.SGD([p], lr=1e-3, master_weights=True)
    for _ in range(2):
        p.grad = tm.ones(3, dtype=tm.bfloat16)
        rule.step()
        with tm.no_grad():
            p[0] = 5.0
    assert abs(rule.state[p]["master_weight"][0].item() - 4.999) < 1e-6
    assert abs(rule.state[p]["master_weight"][1].item() - 0.998) < 1e-6


def test_updates_below_half_an_ulp_add_up_in_masters_alone():
    for masters, expected in ((False, 1.0), (True, 0.9)):
        p = tm.ones(4, dtype=tm.bfloat16, requires_grad=True)
        rule = optim.SGD([p], lr=1e-3, master_weights=masters)
        for _ in range(100):
            p.grad = tm.ones(4, dtype=tm.bfloat16)
            rule.step()
        assert abs(p[0].item() - expected) <= 2**-9


@grid
def test_alone_it_is_at_most_twice_as_far_off_as_pytorchs(name: str, options: dict):
    """From the same numbers, with the same gradients, against float64."""
    rng = np.random.default_rng(3)
    start, grads = rng.standard_normal(50), rng.standard_normal((10, 50))

    def run(library: Any, dtype: str) -> np.ndarray:
        p = library.tensor(start).to(library.bfloat16).to(getattr(library, dtype)).requires_grad_()
        rule = getattr(library.optim, name)([p], **options)
        for g in grads:
            p.grad = library.tensor(g).to(library.bfloat16).to(p.dtype)
            rule.step()
        return np.array(p.detach().double().tolist())

    exact = run(torch, "float64")
    mine, other = (np.abs(run(library, "bfloat16") - exact).max() for library in (tm, torch))
    assert mine <= 2 * other


def test_mean_squares_in_bfloat16_stall_and_never_fall():
    found = {}
    for dtype in (tm.float32, tm.float16, tm.bfloat16):
        p = tm.zeros(4, requires_grad=True)
        rule = optim.Adam([p], state_dtype=dtype)
        sizes = []
        for size in (1.0, 0.0):
            for _ in range(3000):
                p.grad = tm.full((4,), size)
                rule.step()
            kept = rule.state[p]["exp_avg_sq"][0].item()
            sizes.append(kept**2 if dtype == tm.float16 else kept)
        found[dtype.name] = sizes
    assert found["bfloat16"] == [0.25, 0.25]
    assert abs(found["float32"][0] - (1 - 0.999**3000)) < 1e-4
    assert found["float32"][1] < 0.05
    assert 0.25 < found["float16"][0] < 1
    assert found["float16"][1] < 0.05


def test_moments_begin_where_squares_of_gradients_are_no_float16():
    """1e-10 is 0 in float16, where roots are kept for that; bfloat16 has it."""
    p = tm.zeros(4, requires_grad=True)
    rule = optim.Adam([p], state_dtype="bfloat16")
    p.grad = tm.full((4,), 1e-5)
    rule.step()
    state = rule.state[p]
    assert {a.dtype for a in (state["exp_avg"], state["exp_avg_sq"])} == {tm.bfloat16}
    assert abs(state["exp_avg_sq"][0].item() / 1e-13 - 1) < 2**-8
    assert abs(p[0].item() + 1e-3) < 2e-5
    with numpy_allocations() as sizes:
        rule.step()
    assert [n for n in sizes if n > 64] == []


def test_state_dicts_go_between_precisions():
    p = tm.ones(4, dtype=tm.bfloat16, requires_grad=True)
    other = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    rule, theirs = optim.Adam([p], state_dtype=tm.bfloat16), torch.optim.Adam([other])
    other.grad = torch.full((4,), 0.5, dtype=torch.bfloat16)
    theirs.step()
    rule.load_state_dict(theirs.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        assert rule.state[p][name].tolist() == theirs.state[other][name].tolist()
    again = optim.Adam([p], state_dtype=tm.bfloat16)
    again.load_state_dict(rule.state_dict())
    assert again.state[p]["exp_avg"].tolist() == rule.state[p]["exp_avg"].tolist()


def test_small_gradients_need_no_scaler_and_one_takes_bfloat16s_gradients():
    x, w = tm.full((4, 8), 1e-4), tm.full((2, 8), 1e-4)
    grads = {}
    for dtype in (tm.float16, tm.bfloat16):
        leaf = w.clone().requires_grad_()
        with tm.autocast("cpu", dtype=dtype):
            loss = F.linear(x, leaf).sum() * 1e-4
        loss.backward()
        grads[dtype.name] = leaf.grad.abs().max().item()
    assert grads["float16"] == 0 or abs(grads["float16"] / 4e-8 - 1) > 0.2
    assert abs(grads["bfloat16"] / 4e-8 - 1) < 2**-7
    layer = nn.Linear(8, 2).bfloat16()
    rule, scaler = optim.SGD(layer.parameters(), lr=0.1), tm.amp.GradScaler("cpu", init_scale=4.0)
    loss = layer(x.bfloat16()).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(rule)
    assert layer.bias.grad.tolist() == [4.0, 4.0]
    scaler.step(rule)
    assert scaler.stepped(rule)
