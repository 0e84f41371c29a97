"""Moments of half-precision parameters: PyTorch's dtypes, bytes and state dicts, and its numbers within a half's rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim.test_optim import GRID
from tinygrad_mem import memory, nn, optim
from tinygrad_mem.memory import Category

RULES = [(name, options) for name, options in GRID if name != "Adafactor"]  # its factors are no moments: they stay float32
grid = pytest.mark.parametrize(("name", "options"), RULES, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain")
both = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def floats(t: Any) -> np.ndarray:
    return t.detach().double().numpy()


def stepped(library: Any, name: str, options: dict, dtype: str, count: int = 6) -> tuple[Any, Any]:
    """A parameter that has made steps, and its optimizer."""
    rng = np.random.default_rng(3)
    half = getattr(library, dtype)
    p = library.tensor(rng.standard_normal(40)).to(half).requires_grad_()
    rule = getattr(library.optim, name)([p], **options)
    for _ in range(count):
        p.grad = library.tensor(rng.standard_normal(40)).to(half)
        rule.step()
    return p, rule


@both
@grid
def test_moments_are_pytorchs(name: str, options: dict, dtype: str):
    """Their dtypes, and their values: PyTorch rounds after each operation, and so is the farther off."""
    (mine, ours), (other, theirs) = (stepped(library, name, options, dtype) for library in (tm, torch))
    found, expected = ours.state_dict()["state"].get(0, {}), theirs.state_dict()["state"].get(0, {})
    moments = {key: value for key, value in expected.items() if value is not None and getattr(value, "ndim", 0)}
    live = {key: value for key, value in ours.state.get(mine, {}).items() if isinstance(value, tm.Tensor)}
    assert live.keys() == moments.keys()
    assert {value.dtype.name for value in live.values()} <= {dtype}
    digit = 2.0**-10 if dtype == "float16" else 2.0**-7
    for key, value in moments.items():
        np.testing.assert_allclose(floats(found[key]), floats(value), rtol=8 * digit, atol=8 * digit, err_msg=key)
    np.testing.assert_allclose(floats(mine), floats(other), rtol=8 * digit, atol=8 * digit)


@both
@grid
def test_state_dicts_go_both_ways(name: str, options: dict, dtype: str):
    (mine, ours), (_, theirs) = (stepped(library, name, options, dtype, 2) for library in (tm, torch))
    moments = {k: v for k, v in theirs.state_dict()["state"].get(0, {}).items() if getattr(v, "ndim", 0)}
    ours.load_state_dict(theirs.state_dict())
    again = ours.state_dict()["state"].get(0, {})
    for key, value in moments.items():
        np.testing.assert_allclose(floats(again[key]), floats(value), rtol=2.0**-6, atol=1e-6, err_msg=key)
    rule = getattr(optim, name)([mine], **options)
    rule.load_state_dict(ours.state_dict())
    for key, value in ours.state.get(mine, {}).items():
        if isinstance(value, tm.Tensor):  # a root comes back as it was
            assert rule.state[mine][key].dtype == value.dtype
            assert floats(rule.state[mine][key]).tolist() == floats(value).tolist()


def test_a_dict_of_roots_that_was_saved_with_state_dtype_is_read_as_roots():
    p = tm.zeros(4, requires_grad=True)
    rule = optim.Adam([p], state_dtype=tm.float16)
    p.grad = tm.full((4,), 0.5)
    rule.step()
    older = rule.state_dict()
    older["state"][0]["exp_avg_sq"] = rule.state[p]["exp_avg_sq"]  # earlier versions wrote what was kept
    for options in ({"state_dtype": tm.float16}, {}):
        again = optim.Adam([p], **options)
        again.load_state_dict(older)
        assert abs(again.state_dict()["state"][0]["exp_avg_sq"][0].item() / (0.001 * 0.25) - 1) < 2e-3


def test_a_square_that_float16_does_not_have_is_kept_as_its_root():
    for name in ("Adam", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam"):
        p = tm.zeros(4, dtype=tm.float16, requires_grad=True)
        rule = getattr(optim, name)([p])
        p.grad = tm.full((4,), 1e-4, dtype=tm.float16)
        rule.step()
        key = next(key for key in rule.squares if key in rule.state[p])
        assert rule.state[p][key].dtype == tm.float16
        share = {"Adam": 0.001, "NAdam": 0.001, "RAdam": 0.001, "RMSprop": 0.01, "Adadelta": 0.1}.get(name, 1)
        assert abs(rule.state_dict()["state"][0][key][0].item() / (share * 1e-8) - 1) < 5e-3


@both
def test_state_dtype_and_masters_say_otherwise(dtype: str):
    for rule, options, expected in (
        (optim.Adam, {}, 4),
        (optim.AdamW, {"amsgrad": True}, 6),
        (optim.SGD, {"momentum": 0.9}, 2),
        (optim.Adam, {"state_dtype": tm.float32}, 8),
        (optim.SGD, {"momentum": 0.9, "state_dtype": tm.float32}, 4),
        (optim.Adam, {"master_weights": True}, 8),
    ):

        def step() -> None:
            layer = nn.Linear(256, 256, bias=False, dtype=getattr(tm, dtype))
            o = rule(layer.parameters(), **options)  # noqa: B023
            layer(tm.ones(2, 256, dtype=getattr(tm, dtype))).sum().backward()
            o.step()
            memory.mark("stepped")

        assert memory.predict(step).by_category("stepped")[Category.OPTIMIZER_STATE] == expected * 256 * 256


@both
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyTorch's Adagrad
def test_a_table_of_half_precision_is_trained_by_rows_as_in_pytorch(dtype: str):
    index = [[1, 2, 2, 4], [0, 2, 3, 3]]
    rng = np.random.default_rng(0)
    start, weight = rng.standard_normal((6, 5)), rng.standard_normal((4, 5))
    for name in ("SparseAdam", "Adagrad"):
        found = []
        for library in (tm, torch):
            half = getattr(library, dtype)
            table = library.tensor(start).to(half).requires_grad_()
            rule = getattr(library.optim, name)([table], lr=0.1)
            for ids in index:
                rule.zero_grad()
                rows = library.nn.functional.embedding(library.tensor(ids), table, sparse=True)
                (rows * library.tensor(weight).to(half)).sum().backward()
                rule.step()
            kept = rule.state_dict()["state"][0]
            found.append([table, *[kept[key] for key in sorted(kept) if key not in ("step",)]])
        for mine, other in zip(*found, strict=True):
            np.testing.assert_allclose(floats(mine), floats(other), rtol=2.0**-5, atol=2.0**-7)


def test_states_of_numbers_are_loaded_on_every_device(dev: str):
    """Of a tensor without dimensions NumPy's root is no array."""
    p = tm.tensor(2.0, dtype=tm.float16, device=dev, requires_grad=True)
    p.grad = tm.tensor(0.5, dtype=tm.float16, device=dev)
    rule, again = optim.Adam([p]), optim.Adam([p])
    rule.step()
    again.load_state_dict(rule.state_dict())
    assert again.state[p]["exp_avg_sq"].item() == rule.state[p]["exp_avg_sq"].item() > 0
