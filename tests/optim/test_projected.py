"""GaLore and APOLLO: the papers' rules in float64, what a step takes, and what is random."""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.optim.light import LIGHT
from tests.optim.test_light import SHAPES, adamw
from tests.profiles import on_devices, pairs
from tests.witness import numpy_allocations
from tinygrad_mem import memory, optim
from tinygrad_mem.devices import device
from tinygrad_mem.kernels.numpy.fast import blas
from tinygrad_mem.kernels.uncounted import KNOWN
from tinygrad_mem.memory import Category

ROWS = [(name, options) for name, options in LIGHT if name in ("GaLore", "APOLLO", "APOLLOMini")]
grid = pytest.mark.parametrize(("name", "options"), ROWS, ids=str)
DEFAULTS: dict[str, dict[str, Any]] = {
    "GaLore": {"rank": 128, "update_proj_gap": 200, "scale": 0.25},
    "APOLLO": {"rank": 128, "update_proj_gap": 200, "scale": 1.0, "scale_type": "channel"},
    "APOLLOMini": {"rank": 1, "update_proj_gap": 200, "scale": 128**0.5, "scale_type": "tensor"},
}
Array = Any


def direction(r: Array, s: dict, t: int) -> Array:
    """Adam's step of ``r``, without its rate."""
    return -adamw(np.zeros_like(r), r, s, t, lr=1.0)


def galore(p: Array, g: Array, s: dict, t: int, o: dict, signs: Array) -> Array:
    """Algorithm 2: project from the left a matrix of no more rows than columns, else from the right."""
    if (t - 1) % o["update_proj_gap"] == 0:
        u = np.linalg.svd(g if p.shape[0] <= p.shape[1] else g.T, full_matrices=False)[0][:, : o["rank"]]
        s["P"] = u * np.sign((u * signs).sum(0))  # of a singular vector the opposite is one too
    if p.shape[0] <= p.shape[1]:
        return p - o["lr"] * o["scale"] * s["P"] @ direction(s["P"].T @ g, s, t)
    return p - o["lr"] * o["scale"] * direction((g @ s["P"]).T, s, t).T @ s["P"].T


def apollo(p: Array, g: Array, s: dict, t: int, o: dict, random: Array) -> Array:
    """Algorithm 1, with the limit of the length of its update."""
    wide = p.shape[0] <= p.shape[1]
    r = random @ (g if wide else g.T)
    d = direction(r, s, t)
    if o["scale_type"] == "tensor":
        u = g * np.linalg.norm(d) / np.linalg.norm(r)
    else:
        scales = np.linalg.norm(d, axis=0) / np.linalg.norm(r, axis=0)
        u = g * (scales if wide else scales[:, None])
    length, most = np.linalg.norm(u), 1.01 * s.get("length", np.inf)
    if length > most:
        u = u / length * most
    s["length"] = np.linalg.norm(u)
    return p - o["lr"] * o["scale"] * u


PLACES = pairs(["float64", "float32"], ["cpu", "cuda"])


@pytest.mark.parametrize(
    ("name", "options", "dtype", "dev"), on_devices([(*row, *place) for row, place in pairs(ROWS, PLACES)]), ids=str
)
def test_fifty_steps_are_the_papers(name: str, options: dict, dtype: str, dev: str):
    o = DEFAULTS[name] | {"lr": 1e-3, "weight_decay": 0.0} | options
    starts = [np.asarray(np.random.default_rng(i).standard_normal(shape)) for i, shape in enumerate(SHAPES)]
    tolerance = {"float64": 1e-7, "float32": 1e-4}[dtype]  # eps beside the scales is not the paper's
    ours = [tm.tensor(a.astype(dtype), device=dev).requires_grad_() for a in starts]
    papers, states, rule = list(starts), [{} for _ in starts], getattr(optim, name)(ours, **options)
    for t in range(1, 51):
        gs = [np.asarray(np.random.default_rng([t, i]).standard_normal(p.shape)) for i, p in enumerate(ours)]
        for p, g in zip(ours, gs, strict=True):
            p.grad = tm.tensor(g.astype(dtype), device=dev)
        rule.step()
        for i, (p, g) in enumerate(zip(ours, gs, strict=True)):
            g = -g if o.get("maximize") else g
            decayed = papers[i] * (1 - o["lr"] * o["weight_decay"])
            if p.ndim != 2 or min(p.shape) <= o["rank"]:
                papers[i] = adamw(decayed, g, states[i], t, lr=o["lr"])
            elif name == "GaLore":
                papers[i] = galore(decayed, g, states[i], t, o, rule.state[p]["projection"].cpu().numpy())
            else:
                papers[i] = apollo(decayed, g, states[i], t, o, drawn(rule, p, t, o))
    for p, expected in zip(ours, papers, strict=True):
        np.testing.assert_allclose(p.detach().cpu().numpy(), expected, rtol=tolerance, atol=tolerance)


def drawn(rule: Any, p: tm.Tensor, t: int, o: dict) -> Array:
    """The random projection of step ``t``, from the parameter's seed."""
    out = tm.empty(o["rank"], min(p.shape), dtype=p.dtype, device=p.device)
    p.device.kernels.normal((rule.state[p]["seed"], (t - 1) // o["update_proj_gap"]), 0.0, o["rank"] ** -0.5, out=out.array)
    return out.cpu().numpy().astype(float)


def test_each_parameter_and_each_period_has_its_own_projection():
    tm.manual_seed(3)
    ps = [tm.zeros(300, 400, requires_grad=True) for _ in range(2)]
    rule = optim.APOLLO(ps, rank=4, update_proj_gap=2)
    for p in ps:
        p.grad = tm.ones(300, 400)
    rule.step()
    o = {"rank": 4, "update_proj_gap": 2}
    first, second, later, same = (drawn(rule, p, t, o) for p, t in ((ps[0], 1), (ps[1], 1), (ps[0], 3), (ps[0], 2)))
    np.testing.assert_array_equal(first, same)
    for other in (second, later):
        assert abs(np.corrcoef(first.reshape(-1), other.reshape(-1))[0, 1]) < 0.1
    assert abs(first.var() * 4 - 1) < 0.1
    seeds = [rule.state[p]["seed"] for p in ps]
    tm.manual_seed(3)
    again = optim.APOLLO(ps, rank=4)
    for p in reversed(ps):  # in any order
        again._step([(again.param_groups[0], p)])
    assert [again.state[p]["seed"] for p in ps] == seeds
    tm.manual_seed(3)
    apart = optim.APOLLO([{"params": ps[:1]}, {"params": ps[1:]}], rank=4)
    apart.step()
    assert [apart.state[p]["seed"] for p in ps] == seeds
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("rule", [optim.APOLLO, optim.APOLLOMini])
def test_a_dict_saved_before_the_first_step_has_the_seeds(rule: type):
    def steps(of: Any, p: tm.Tensor) -> list:
        for k in range(2):
            p.grad = tm.linspace(-1, 2 + k, 63).reshape(7, 9)
            of.step()
        return p.tolist()

    tm.manual_seed(3)
    first, second = (tm.ones(7, 9, requires_grad=True) for _ in range(2))
    saved = rule([first], rank=4)
    state = copy.deepcopy(saved.state_dict())
    tm.manual_seed(4)
    loaded = rule([second], rank=4)
    loaded.load_state_dict(state)
    assert steps(loaded, second) == steps(saved, first)
    del state["param_groups"][0]["seed"]  # as older dicts
    rule([second], rank=4).load_state_dict(state)


# --- bytes


def taken(rule: Any) -> int:
    """The bytes that a step takes for a while."""
    pool = device("meta").pool
    used = pool.used_bytes()
    pool.reset_peak()
    rule.step()
    assert pool.used_bytes() == used
    return pool.counts().peak_used - used


@pytest.mark.parametrize("shape", [(100, 300), (300, 100), (20, 3000)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("name", DEFAULTS)
def test_bytes_are_what_the_docstrings_say(name: str, masters: bool, dtype: str, shape: tuple):
    n, m, rank = *sorted(shape), 1 if name == "APOLLOMini" else 16
    p = tm.zeros(*shape, dtype=dtype, device="meta", requires_grad=True)
    p.grad = tm.zeros(*shape, dtype=dtype, device="meta")
    rule = getattr(optim, name)([p], rank=rank, update_proj_gap=3, master_weights=masters)
    rule.step()
    kept = sum(t.nbytes for key, t in rule.state[p].items() if isinstance(t, tm.Tensor) and key != "master_weight")
    usual = {
        "GaLore": 8 * rank * m,
        "APOLLO": 4 * (rank * n + 2 * rank * m + 3 * m + 1),
        "APOLLOMini": 4 * (rank * n + 2 * rank * m + 4),
    }[name] + (0 if dtype == "float32" else 4 * n * min(m, 1024))
    renewed = 4 * (n * n + n + n * m) if name == "GaLore" else 0
    renewed += 4 * n * (m - min(m, 1024)) if name == "GaLore" and dtype != "float32" else 0
    assert kept == {"GaLore": 4 * rank * (n + 2 * m)}.get(name, 4 * (2 * rank * m + 1))
    rounded = [-(-size // 512) * 512 for size in (usual, usual, usual + renewed, usual)]
    assert [taken(rule) for _ in range(4)] == rounded


def test_the_first_step_is_predicted_with_its_svd():
    def run() -> None:
        p = tm.zeros(200, 500, requires_grad=True)
        rule = optim.GaLore([p], rank=10)
        p.grad = tm.ones(200, 500)
        rule.step()
        memory.mark("first")
        rule.step()

    with memory.track("cpu") as track:
        run()
    predicted = memory.predict(run)
    assert predicted.peak == track.peak - track.by_category().get(Category.UNTRACKED, 0)
    assert predicted.by_category("first")[Category.OPTIMIZER_STATE] == sum(
        -(-4 * 10 * size // 512) * 512 for size in (200, 500, 500)
    )


def test_numpy_allocates_nothing_beside_an_svd():
    p = tm.tensor(np.random.default_rng(0).standard_normal((60, 90), np.float32)).requires_grad_()
    p.grad = p.detach() * 2
    rule = optim.GaLore([p], rank=4, update_proj_gap=1)
    rule.step()
    with numpy_allocations() as sizes:
        rule.step()
    assert [n for n in sizes if n > 64] == []  # LAPACK's own comes from malloc


@pytest.mark.parametrize(("n", "m"), [(2, 3), (8, 8), (100, 100), (100, 1000), (512, 2048), (4096, 11008)])
def test_what_lapack_takes_beside_is_bounded(n: int, m: int):
    """Asked of the LAPACK that NumPy has. NumPy copies the matrix and the three results, and LAPACK has integers of its own."""
    if blas._library is None:
        pytest.skip("NumPy has another LAPACK than OpenBLAS")
    library, prefix, suffix = blas._library
    whole = ctypes.c_int64 if "64" in suffix else ctypes.c_int
    for rows, columns in ((n, m), (m, n)):
        work, number = ctypes.c_float(), ctypes.byref(ctypes.c_float())
        first, second, few, asked, info = (ctypes.byref(whole(i)) for i in (rows, columns, n, -1, 0))
        results = number, first, number, number, first, number, few  # the matrix, S, U, V: not read, as only the size is asked
        getattr(library, f"{prefix}sgesdd_{suffix}")(b"S", first, second, *results, ctypes.byref(work), asked, number, info)
        assert 4 * (2 * n * m + n * n + n + work.value) + 8 * 8 * n <= 4 * (2 * n * m + 6 * n * n + 100 * (n + m))
    assert "4 * (2 * n * m + 6 * n * n + 100 * (n + m)) bytes" in KNOWN["LAPACK"]


# --- the projection


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_projection_has_the_largest_singular_vectors(turned: bool, kind: str, dev: str):
    g = np.random.default_rng(0).standard_normal((30, 50)) @ np.diag(np.linspace(1, 5, 50))
    g = (g.T if turned else g).astype(kind)
    p = tm.zeros(*g.shape, dtype=kind, device=dev, requires_grad=True)
    p.grad = tm.tensor(g, device=dev)
    rule = optim.GaLore([p], rank=5)
    rule.step()
    found = rule.state[p]["projection"].cpu().numpy()
    u, _, v = np.linalg.svd(g, full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(v[:5].T if turned else u[:, :5]), rtol=1e-4, atol=1e-5)


def test_a_gradient_of_nan_is_no_error():
    p = tm.zeros(6, 9, requires_grad=True)
    p.grad = tm.full((6, 9), float("nan"))
    optim.GaLore([p], rank=2).step()
    assert p.isnan().all()


def test_zero_gradients_move_nothing_and_are_no_end():
    for rule in (optim.GaLore, optim.APOLLO, optim.APOLLOMini):
        p = tm.ones(6, 9, requires_grad=True)
        o = rule([p], rank=1, lr=0.1)
        p.grad = tm.zeros(6, 9)
        o.step()
        assert (p == 1).all()
        p.grad = tm.ones(6, 9)
        o.step()
        assert (p != 1).any()


def test_parameters_in_another_order_of_memory(dev: str):
    """A transposed parameter or gradient is moved where it is; products take a copy of the gradient."""
    start, g = np.random.default_rng(0).standard_normal((2, 6, 9))
    for name in DEFAULTS:
        found = []
        for turned in (False, True):
            tm.manual_seed(0)
            p, grad = (
                tm.tensor(a.T.copy(), device=dev).t().detach() if turned else tm.tensor(a, device=dev) for a in (start, g)
            )
            p.requires_grad_()
            p.grad = grad
            rule = getattr(optim, name)([p], rank=2, lr=0.1, weight_decay=0.5)
            rule.step()
            found.append(p.detach().cpu().numpy())
        np.testing.assert_allclose(*found, rtol=1e-10)


@pytest.mark.parametrize("shape", [(4, 2500), (2500, 4)])
def test_a_gradient_that_is_copied_in_parts(shape: tuple, dev: str):
    """Of half precision, with a float32 copy of the parameter and without: as a float32 gradient, but for rounding."""
    start, g = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float16)
    for name in DEFAULTS:
        found = []
        for dtype, masters in (("float32", False), ("float16", True), ("float16", False)):
            tm.manual_seed(0)
            p = tm.tensor(start.astype(dtype), device=dev).requires_grad_()
            rule = getattr(optim, name)([p], rank=2, lr=0.1, update_proj_gap=2, weight_decay=0.5, master_weights=masters)
            for _ in range(3):
                p.grad = tm.tensor(g.astype(dtype), device=dev)
                rule.step()
            found.append(rule.state[p].get("master_weight", p).detach().cpu().numpy().astype(float))
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[2], found[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", ["rank", "update_proj_gap"])
@pytest.mark.parametrize("value", [0, -1, 2.5, None])
def test_refusals(name: str, value: Any):
    p = tm.ones(4, 6, requires_grad=True)
    for rule in (optim.GaLore, optim.APOLLO):
        with pytest.raises(ValueError, match=rf"{rule.__name__}: {name} should be a whole number above 0, found {value}"):
            rule([p], **{name: value})
        with pytest.raises(ValueError, match="Invalid scale value: -1"):
            rule([p], scale=-1)
    with pytest.raises(ValueError, match="scale_type should be 'channel' or 'tensor', found 'row'"):
        optim.APOLLO([p], scale_type="row")


def test_another_rank_is_refused_when_a_state_is_loaded():
    p = tm.ones(6, 9, requires_grad=True)
    p.grad = tm.ones(6, 9)
    small, large = optim.GaLore([p], rank=2), optim.GaLore([p], rank=3)
    small.step()
    saved = small.state_dict()
    saved["param_groups"][0]["rank"] = 3
    with pytest.raises(
        ValueError, match=r"exp_avg of a parameter of shape \[6, 9\] should have shape \[3, 9\], found \[2, 9\]"
    ):
        large.load_state_dict(saved)
