"""Optimizers for little memory: their papers' rules, written again in float64; bytes; bad input; going on bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.optim.light import LIGHT, NAMES, rule
from tests.profiles import examples, pairs, share
from tests.witness import numpy_allocations
from tinygrad_mem import optim
from tinygrad_mem.devices import device

every = pytest.mark.parametrize("name", NAMES)
grid = pytest.mark.parametrize(("name", "options"), LIGHT, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain")
SHAPES = [(7, 5), (4, 9), (2, 20), (6,), (), (2, 3, 4), (0, 2)]

Array = Any
TWO: Any = (1, 2)
Reference = Callable[..., Array]


# --- the papers' rules: (parameter, gradient, state, step from 1, options) -> parameter


def lion(p: Array, g: Array, s: dict, t: int, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False) -> Array:
    g, m = (-g if maximize else g), s.get("m", 0.0)
    moved = p - lr * (np.sign(betas[0] * m + (1 - betas[0]) * g) + weight_decay * p)
    s["m"] = betas[1] * m + (1 - betas[1]) * g
    return moved


def adamw(p: Array, g: Array, s: dict, t: int, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0) -> Array:
    p = p - lr * weight_decay * p
    s["m"] = betas[0] * s.get("m", 0.0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0.0) + (1 - betas[1]) * g**2
    return p - lr * (s["m"] / (1 - betas[0] ** t)) / (np.sqrt(s["v"] / (1 - betas[1] ** t)) + eps)


def adam_mini(p: Array, g: Array, s: dict, t: int, maximize=False, **options: Any) -> Array:
    """As AdamW, block by block, with the mean of all squares of a block in place of each square."""
    g = -g if maximize else g
    moved = p.copy()
    for i, block in enumerate(range(len(p)) if p.ndim > 1 else [...]):
        part = s.setdefault(i, {})
        mean = np.full(g[block].shape, np.mean(g[block] ** 2) ** 0.5)
        betas = options.get("betas", (0.9, 0.999))
        m = part["exp_avg"] = betas[0] * part.get("exp_avg", 0.0) + (1 - betas[0]) * g[block]
        v = part["exp_avg_sq"] = betas[1] * part.get("exp_avg_sq", 0.0) + (1 - betas[1]) * mean**2
        lr, eps = options.get("lr", 1e-3), options.get("eps", 1e-8)
        moved[block] -= lr * options.get("weight_decay", 0) * p[block]
        moved[block] -= lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return moved


def muon(
    p: Array, g: Array, s: dict, t: int, lr=1e-3, weight_decay=0.1, nesterov=True, adjust_lr_fn=None, adamw=True, mu=0.95
) -> Array:
    if p.ndim != 2:
        return _ADAMW(p, g, s, t, lr=lr, weight_decay=weight_decay)
    if not p.size:
        return p
    buf = s["buf"] = mu * s.get("buf", 0.0) + (1 - mu) * g
    u = mu * buf + (1 - mu) * g if nesterov else buf
    x = u / max(np.linalg.norm(u), 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    rows, columns = p.shape
    rate = lr * (max(1, rows / columns) ** 0.5 if adjust_lr_fn is None else 0.2 * max(rows, columns) ** 0.5)
    return p * (1 - lr * weight_decay) - rate * x


def lomo(p: Array, g: Array, s: dict, t: int, lr=1e-3, clip_grad_value=np.inf, maximize=False) -> Array:
    return p - lr * np.clip(-g if maximize else g, -clip_grad_value, clip_grad_value)


def adalomo(
    p: Array, g: Array, s: dict, t: int, lr=1e-3, decay_rate=-0.8, clip_threshold=1.0, eps=1e-3, maximize=False
) -> Array:
    if not p.size:
        return p
    keep = 1 - float(t) ** decay_rate

    def mean(name: str, value: Array) -> Array:
        s[name] = keep * s.get(name, 0.0) + (1 - keep) * value
        return s[name]

    g = -g if maximize else g
    if p.ndim < 2:
        square = mean("v", g**2)
    else:
        rows, columns = mean("r", (g**2).mean(-1, keepdims=True)), mean("c", (g**2).mean(-2, keepdims=True))
        square = rows * columns / rows.mean(-2, keepdims=True)
    u = g / np.sqrt(square)
    u = u / max(1.0, np.sqrt((u**2).mean()) / clip_threshold)
    return p - lr * max(eps, np.sqrt((p**2).mean())) * u


_ADAMW = adamw
RULES: dict[str, Reference] = {"Lion": lion, "AdamMini": adam_mini, "Muon": muon, "Lomo": lomo, "AdaLomo": adalomo}


@pytest.mark.parametrize(("name", "options"), [row for row in LIGHT if row[0] in RULES], ids=str)
def test_many_steps_are_the_papers(name: str, options: dict, dev: str):
    rng = np.random.default_rng(0)
    starts = [np.asarray(rng.standard_normal(shape)) for shape in SHAPES]
    dtypes = [("float64", 1e-10), ("float32", 2e-5)]
    for dtype, tolerance in dtypes if dev == "cpu" else share(dtypes, 2, (name, options)):
        ours = [tm.tensor(a.astype(dtype), device=dev).requires_grad_() for a in starts]
        papers, states = list(starts), [{} for _ in starts]
        o, counts = getattr(optim, name)(ours, **options), [0] * len(starts)
        for step in range(examples(10)):
            for i, p in enumerate(ours):
                g = np.asarray(np.random.default_rng([step, i]).standard_normal(p.shape))
                p.grad = None if i == 1 and step % 7 == 0 else tm.tensor(g.astype(dtype), device=dev)
                if p.grad is not None:
                    counts[i] += 1
                    papers[i] = RULES[name](papers[i], g, states[i], counts[i], **options)
            o.step()
        for p, expected in zip(ours, papers, strict=True):
            np.testing.assert_allclose(p.detach().cpu().numpy(), expected, rtol=tolerance, atol=tolerance)


# --- Muon beside PyTorch's

MUONS: list[dict[str, Any]] = [
    {},
    {"lr": 0.02, "nesterov": False, "weight_decay": 0.0},
    {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "eps": 1e-3, "momentum": 0.5},
    {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5)},
    {"ns_steps": 0},
]


def beside_pytorch(options: dict[str, Any], dtype: str) -> list[tuple[Array, Array]]:
    """Parameters after some steps of our Muon and of PyTorch's."""
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal(shape).astype(dtype) for shape in [(7, 5), (3, 30), (16, 16), (1, 1100), (1100, 2)]]
    ours, theirs = [tm.tensor(a).requires_grad_() for a in starts], [torch.tensor(a, requires_grad=True) for a in starts]
    mine, other = optim.Muon(ours, **options), torch.optim.Muon(theirs, **options)
    assert mine.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    for _ in range(examples(10)):
        for p, q in zip(ours, theirs, strict=True):
            g = rng.standard_normal(p.shape).astype(dtype)
            p.grad, q.grad = tm.tensor(g), torch.tensor(g)
        mine.step()
        other.step()
    again = optim.Muon(ours)
    again.load_state_dict(other.state_dict())
    for p in ours:
        kept = (each.state[p]["momentum_buffer"].numpy() for each in (again, mine))
        np.testing.assert_allclose(*kept, rtol=1e-5, atol=1e-6)
    return [(p.detach().numpy(), q.detach().numpy()) for p, q in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("options", MUONS, ids=str)
def test_muon_is_pytorchs_but_for_its_bfloat16(options: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # its Newton-Schulz in the gradient's dtype
    for dtype, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        for mine, other in beside_pytorch(options, dtype):
            np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", MUONS[:2], ids=str)
def test_muon_is_within_pytorchs_rounding(options: dict):
    """Of each step, whose numbers are below 1.5 times the rate times sqrt(rows / columns), 2**-8 is lost in bfloat16."""
    rate = options.get("lr", 1e-3)
    for mine, other in beside_pytorch(options, "float32"):
        scale = max(1.0, mine.shape[0] / mine.shape[1]) ** 0.5
        assert np.abs(mine - other).max() < 50 * rate * scale * 1.5 * 2**-7


# --- memory: a workspace, and nothing else


@every
def test_a_second_step_takes_its_workspace_alone(name: str):
    """It is asked of the pool, and given back; NumPy allocates nothing beside it."""
    p = tm.zeros(40, 60, requires_grad=True)
    p.grad = tm.ones(40, 60)
    o = rule(name)([p])
    o.step()
    pool = device("cpu").pool
    before = pool.used_bytes()
    with numpy_allocations() as sizes:
        o.step()
        hidden = [n for n in sizes if n > 64]
    assert hidden == []
    assert pool.used_bytes() == before


@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        ("AdamMini", (40, 60), {}, 4 * 40),
        ("AdamMini", (40, 60), {"blocks": 8}, 4 * 8),
        ("AdamMini", (60,), {}, 4),
        ("Muon", (1500, 2000), {}, 4 * (1500 * 2000 + 2 * 1500**2 + 1)),
        ("Muon", (2000, 1500), {}, 4 * (1500 * 2000 + 2 * 1500**2 + 1)),
        ("Muon", (10, 5000), {}, 4 * (10 * 5000 + 10 * 1024 + 10**2 + 1)),
    ],
)
def test_the_workspace_is_what_the_docstring_says(name: str, shape: tuple, options: dict, expected: int):
    p = tm.zeros(*shape, device="meta", requires_grad=True)
    p.grad = tm.zeros(*shape, device="meta")
    o = rule(name)([p], **options)
    o.step()
    assert o.workspace(p.device, o.param_groups[0], p) == expected
    pool = device("meta").pool
    used = pool.used_bytes()
    pool.reset_peak()
    o.step()
    assert pool.used_bytes() == used
    assert pool.counts().peak_used - used == -(-expected // 512) * 512


# --- going on


@pytest.mark.parametrize(("row", "dtype"), pairs(LIGHT, ["float32", "float16", "bfloat16"]), ids=str)
def test_a_run_goes_on_bit_for_bit(row: tuple[str, dict], dtype: str, tmp_path: Path):
    name, options = row
    rng = np.random.default_rng(0)
    shapes = [(70, 90), (50,), (2, 3, 4)]
    params = [tm.tensor(rng.standard_normal(s).astype(np.float32)).to(getattr(tm, dtype)).requires_grad_() for s in shapes]
    o = getattr(optim, name)(params, **options)
    gs = [[tm.tensor(rng.standard_normal(s).astype(np.float32)).to(getattr(tm, dtype)) for s in shapes] for _ in range(5)]
    for some in gs[:3]:
        for p, g in zip(params, some, strict=True):
            p.grad = g
        o.step()
    tm.save({"p": [p.detach() for p in params], "o": o.state_dict()}, tmp_path / "c")
    found = tm.load(tmp_path / "c")
    again = [p.requires_grad_() for p in found["p"]]
    twin = rule(name)(again)
    twin.load_state_dict(found["o"])
    third = copy.deepcopy(o)
    runs = [(params, o), (again, twin), (third.param_groups[0]["params"], third)]
    for some in gs[3:]:
        for ps, each in runs:
            for p, g in zip(ps, some, strict=True):
                p.grad = g
            each.step()
    for ps, _ in runs[1:]:
        for p, q in zip(params, ps, strict=True):
            np.testing.assert_array_equal(p.detach().float().numpy(), q.detach().float().numpy())


# --- bad input


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda p: optim.Lion([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.Lion([p], betas=(0.9, 1.0)), "Invalid beta parameter at index 1: 1.0"),
        (lambda p: optim.AdamMini([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.Lomo([p], lr=-1), "Invalid learning rate: -1"),
        (
            lambda p: optim.Lomo([p], clip_grad_value=0),
            "Lomo: clip_grad_value should be above 0, or None to cut nothing, found 0",
        ),
        (lambda p: optim.AdaLomo([p], decay_rate=0.1), "AdaLomo: decay_rate should be at most 0 and .* found 0.1 and 1.0"),
        (lambda p: optim.AdaLomo([p], clip_threshold=0), "clip_threshold above 0, found -0.8 and 0"),
        (lambda p: optim.Adam4bit([p], optim_bits=8), "optim_bits should be 4 or 32, found 8"),
        (lambda p: optim.AdamW4bit([p], block_size=65), "block_size should be between 64 and 16384, and even, found 65"),
        (lambda p: optim.Adam4bit([p], min_4bit_size=-1), "min_4bit_size should be a number of elements, found -1"),
        (lambda p: optim.Muon([p], momentum=-1), "Invalid momentum value: -1"),
        (
            lambda p: optim.Muon([p[0].detach()]),
            r"Muon only supports 2D parameters .* size: \[6\]. Give it to AdamW .* adamw=True",
        ),
        (lambda p: optim.Muon([p], adjust_lr_fn="other"), "Adjust learning rate function 'other' is not supported: give 'orig"),
        (lambda p: optim.Muon([p], ns_steps=100), "ns_steps should be a number of steps below 100, found 100"),
        (lambda p: optim.Muon([p], ns_coefficients=TWO), r"ns_coefficients should be three numbers, found \(1, 2\)"),
    ],
)
def test_refusals(build: Callable, match: str):
    with pytest.raises(ValueError, match=match):
        build(tm.ones(4, 6, requires_grad=True))


@pytest.mark.parametrize("blocks", [3, 0, -1, 1.5])
def test_blocks_that_do_not_divide_the_rows(blocks: Any):
    p = tm.ones(4, 6, requires_grad=True)
    o = optim.AdamMini([p], blocks=blocks)
    p.grad = tm.ones(4, 6)
    with pytest.raises(ValueError, match=rf"AdamMini: blocks={blocks} of a parameter of shape \[4, 6\]: its 4 rows should"):
        o.step()
    assert not o.state[p]
    assert (p == 1).all()


def test_heads_are_blocks():
    """Two heads of three rows: each has one mean square."""
    rng = np.random.default_rng(0)
    start, g = rng.standard_normal((2, 6, 4))
    p = tm.tensor(start).requires_grad_()
    p.grad = tm.tensor(g)
    optim.AdamMini([{"params": [p], "blocks": 2}], lr=0.1).step()
    expected = adam_mini(start.reshape(2, 12), g.reshape(2, 12), {}, 1, lr=0.1).reshape(6, 4)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


def test_parameters_that_are_divided_over_ranks_are_refused():
    for name in NAMES:
        if getattr(optim, name).needs_whole:
            p = tm.ones(4, 6, requires_grad=True)
            p.grad = tm.ones(4, 6)
            p._shard = type("Shard", (), {"name": "weight"})()
            with pytest.raises(NotImplementedError, match=f"{name}: weight is divided over ranks, and the rule needs all"):
                rule(name)([p]).step()
