"""Compressed activations: errors within what is stated, right on average, and the bytes by formula."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tests.techniques.training import Plan
from tinygrad_mem import memory, nn
from tinygrad_mem.autograd.core import apply
from tinygrad_mem.autograd.shape import address_of
from tinygrad_mem.devices import device, round_up
from tinygrad_mem.errors import ArgumentError, GraphError
from tinygrad_mem.ops.quantize import Dequantize, Quantize
from tinygrad_mem.techniques import compressed

BITS = pytest.mark.parametrize("bits", [16, 8, 4, 2])


def round_trip(x: np.ndarray, bits: int, group: int, call: int = 0) -> np.ndarray:
    codes, scales = apply(Quantize, tm.tensor(x), bits=bits, group=group, ticket=(7, call))
    assert codes.nbytes == -(-x.size * bits // 8)
    assert scales.nbytes == -(-x.size // group) * 2 * max(4, x.itemsize)
    return apply(Dequantize, codes, scales, bits=bits, group=group, shape=x.shape, dtype=tm.tensor(x).dtype).numpy()


@given(
    st.integers(1, 3000), st.sampled_from([8, 4, 2]), st.sampled_from([8, 64, 256]), st.sampled_from(["f4", "f8", "f2"]),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=examples(80))
def test_each_value_is_within_a_step(size: int, bits: int, group: int, dtype: str, seed: int):
    x = (np.random.default_rng(seed).standard_normal(size) * 10.0 ** (seed % 5 - 2)).astype(dtype)
    found = round_trip(x, bits, group)
    for i in range(0, size, group):
        part, ours = x[i : i + group].astype("f8"), found[i : i + group].astype("f8")
        step = (part.max() - part.min()) / (2**bits - 1)
        rounding = 4 * np.finfo(dtype).eps * np.abs(part).max()
        assert np.abs(part - ours).max() <= step * (1 + 1e-5) + rounding


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_values_are_right_on_average(bits: int):
    x = np.random.default_rng(0).standard_normal(512)
    runs = np.stack([round_trip(x, bits, 64, call) for call in range(400)])
    step = (x.reshape(-1, 64).max(1) - x.reshape(-1, 64).min(1)) / (2**bits - 1)
    error = np.abs(runs.mean(0) - x).reshape(-1, 64).max(1)
    assert (error < 5 * 0.5 * step / np.sqrt(400)).all(), "five standard deviations of the mean"
    assert (np.abs(runs[0] - x).reshape(-1, 64).max(1) > 0.4 * step).all(), "while each by itself is rounded"


def test_constant_groups_are_exact_and_what_is_not_finite_spoils_its_group_only():
    x = np.full(512, 3.25, "f4")
    np.testing.assert_array_equal(round_trip(x, 2, 64), x)
    x = np.random.default_rng(0).standard_normal(512).astype("f4")
    x[70] = np.nan
    found = round_trip(x, 8, 64)
    assert np.isnan(found[64:128]).all()
    assert np.isfinite(found[:64]).all()
    assert np.isfinite(found[128:]).all()


CALM = [name for name in training.LAYERS if "norm" not in name]  # a norm of two numbers makes much of little noise


@given(training.plans(CALM), st.sampled_from([16, 8]))
@settings(max_examples=examples(20))
def test_equal_within_tolerance_and_generators_where_they_stood(plan: Plan, bits: int):
    """Losses of the first step are those of a plain one; gradients are near."""
    plan = Plan(plan.layers, plan.width, plan.batch, 1, "SGD")
    plain = training.train(plan)
    ours = training.train(plan, lambda: compressed(bits, group=8, at_least=1))
    np.testing.assert_array_equal(ours[0], plain[0])
    np.testing.assert_array_equal(ours[1], plain[1])
    for a, b in zip(ours, plain, strict=True):
        assert np.abs(a - b).max(initial=0) <= 0.15 * max(np.abs(b).max(initial=0), 1.0), "a gradient is far off"


def test_gradients_are_right_on_average():
    rng = np.random.default_rng(0)
    x, w = tm.tensor(rng.standard_normal((64, 32))), rng.standard_normal((32, 32))
    found = []
    for seed in range(200):
        weight = tm.tensor(w, requires_grad=True)
        with compressed(2, group=64, seed=seed):
            y = (x * 1.0) @ weight
        y.sum().backward()
        assert weight.grad is not None
        found.append(weight.grad.numpy())
    exact = np.repeat(x.numpy().sum(0)[:, None], 32, 1)
    spread = np.std(found, 0).max() / np.sqrt(200)
    assert np.abs(np.mean(found, 0) - exact).max() < 5 * spread
    assert np.std(found, 0).min() > 0


# --- what stays


def test_parameters_integers_small_tensors_and_statistics_stay():
    norm, linear = nn.BatchNorm1d(2000), nn.Linear(2000, 2000)
    linear.weight.requires_grad_(False)
    x = tm.randn(4, 2000)
    with compressed(2):
        y = nn.functional.cross_entropy(linear(norm(x)), tm.tensor([1, 2, 3, 4]))
    kept = {name: array for node in nodes(y) for name, array in ((f"{node.op.__name__}.{n}", a) for n, a in node.kept())}
    assert {a.dtype.name for name, a in kept.items() if name in ("BatchNorm.x", "CrossEntropy.x")} <= {"uint8", "float32"}
    y.backward()
    assert norm.weight is not None
    assert norm.weight.grad is not None
    before = device("cpu").pool.used_bytes()
    with compressed(4):
        z = (tm.ones(10, requires_grad=True) * 2).exp()
    assert device("cpu").pool.used_bytes() - before == 3 * 512 - 512, "a small result as it is"
    z.sum().backward()


def nodes(loss: Any) -> list:
    found, stack = {}, [loss.grad_fn]
    while stack:
        node = stack.pop()
        if id(node) not in found and node is not None:
            found[id(node)] = node
            stack += [edge[0] for edge in node.edges if edge is not None and not isinstance(edge[0], tm.Tensor)]
    return list(found.values())


def test_what_stays_is_watched_for_writes():
    x = tm.ones(10, requires_grad=True)
    with compressed(8):
        y = x * 1.0
        z = y.exp()
    with tm.no_grad():
        z.mul_(2.0)
    with pytest.raises(GraphError, match="modified by an inplace operation"):
        z.sum().backward()


# --- bytes

N, WIDTH, LAYERS = 256, 64, 8
A = N * WIDTH * 4


def packed_bytes(bits: int) -> int:
    if bits == 16:
        return round_up(A // 2)
    return round_up(N * WIDTH * bits // 8) + round_up(N * WIDTH // 256 * 8)


def chain(bits: int | None) -> Any:
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())])
    x = tm.ones(N, WIDTH)
    before = x.device.pool.used_bytes()
    if bits is None:
        loss = model(x).sum()
    else:
        with compressed(bits):
            loss = model(x).sum()
    kept = x.device.pool.used_bytes() - before
    loss.backward()
    return kept


@BITS
def test_bytes_of_a_chain_by_formula(bits: int):
    """Each result once, though tanh saves it and the next layer too; the batch as well, which the user holds."""
    found: list = []
    training.assert_predicted(lambda: found.append(chain(bits)))
    assert set(found) == {(LAYERS + 1) * packed_bytes(bits) + 512}
    plain: list = []
    memory.predict(lambda: plain.append(chain(None)))
    assert plain == [LAYERS * A + 512]


@BITS
def test_peak_of_a_chain_falls(bits: int):
    plain, ours = memory.predict(chain, None).peak, memory.predict(chain, bits).peak
    assert plain - ours >= LAYERS * (A - packed_bytes(bits)) - packed_bytes(bits) - 3 * A


OWN = ("mean", "rstd", "lse")  # statistics that ops make for themselves: they stay


def predicted_bytes(loss: Any) -> int:
    """By formula, from the graph of a plain forward: what it keeps in 8 bits, each view once, parameters apart."""
    found: dict[Any, int] = {}
    for address, name, array in training.kept_under(loss):
        if array.dtype.kind == "f" and array.size >= 1024 and name not in OWN:
            part = address, address_of(array), array.shape, array.strides
            found[part] = round_up(array.size) + round_up(-(-array.size // 256) * 8)
        else:
            found[address, None] = round_up(loss.device.sizes(array)[0])
    return sum(found.values())


@pytest.mark.parametrize("name", training.BIG)
def test_bytes_of_the_big_networks(name: str):
    """To the byte: each activation in a byte an element and 8 a group; masks, places and statistics as they are."""
    found: list[int] = []

    def compressed_step() -> None:
        training.big_step(name, lambda: compressed(8), lambda loss: found.append(sum(training.saved_storages(loss).values())))

    memory.predict(compressed_step)
    memory.predict(training.big_step, name, inspect=lambda loss: found.append(predicted_bytes(loss)))
    assert found[0] == found[1] < 0.4 * training.plain_saved_bytes(name)


def test_never_above_pytorch_with_the_same_technique():
    """PyTorch's hooks around a cast to float16, which keep a copy for each node that saves a tensor."""

    def theirs() -> Any:
        make = torch.nn
        model = make.Sequential(*[m for _ in range(LAYERS) for m in (make.Linear(WIDTH, WIDTH, bias=False), make.Tanh())])
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half() if t.dim() == 2 else t, lambda t: t.float()):
            loss = model(torch.ones(N, WIDTH)).sum()
        loss.backward()
        return model

    bound, ours = pytorch_peak(theirs), training.requested(memory.predict(chain, 16))
    assert 0.3 * bound <= ours <= bound, (ours, bound)


def test_nothing_is_left_behind():
    pool = device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        chain(4)
        assert pool.used_bytes() == before
    finally:
        gc.enable()


# --- bad input


def test_bad_input():
    for bits in (3, 32, 0, None):
        with pytest.raises(ArgumentError, match="bits must be 16, 8, 4 or 2, found"):
            compressed(bits)  # type: ignore[arg-type]
    for group in (0, 12, 1 << 16, True, 8.0):
        with pytest.raises(ArgumentError, match=r"group must be a multiple of 8 up to 32,768, found"):
            compressed(8, group=group)  # type: ignore[arg-type]
