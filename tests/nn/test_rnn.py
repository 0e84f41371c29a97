"""Recurrent layers: what they keep beside PyTorch's, gates made again, truncated backward, half precision, refusals."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tests.profiles import examples
from tests.pytorch_memory import pytorch_bytes
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.errors import DTypeError, NotOfferedError, ShapeError
from tinygrad_mem.functional.recurrent import recurrent_layer
from tinygrad_mem.kernels.numpy import recurrent
from tinygrad_mem.kernels.numpy.fast import blas, gate_steps, threads
from tinygrad_mem.nn.utils.rnn import pack_padded_sequence
from tinygrad_mem.ops.recurrent import Recurrent
from tinygrad_mem.utils.checkpoint import checkpoint

KINDS = ["RNN", "LSTM", "GRU"]
T, N, H = 64, 32, 64  # 4 chunks of 16 steps


def pair(kind: str, *args: Any, dtype: str = "float64", **options: Any) -> tuple[Any, Any]:
    """Our layer and PyTorch's, with the same weights."""
    torch.manual_seed(0)
    other = getattr(torch.nn, kind)(*args, **options).to(getattr(torch, dtype))
    mine = getattr(nn, kind)(*args, **options).to(getattr(tm, dtype))
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    return mine, other


def first(framework: Any, kind: str, **options: Any) -> tuple[Any, Any, Any]:
    """A layer, its input, its output."""
    layer, x = getattr(framework.nn, kind)(H, H, **options), framework.ones(T, N, H)
    return layer, x, layer(x)[0]


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kept_and_peak_bytes_are_below_pytorchs(kind: str, options: dict):
    def step(framework: Any) -> Any:
        layer, x, y = first(framework, kind, **options)
        y.sum().backward()
        return layer, x, y

    kept, _ = pytorch_bytes(lambda: first(torch, kind, **options))
    _, peak = pytorch_bytes(lambda: step(torch))
    pool = device("meta").pool
    with tm.device("meta"):
        gc.collect()
        before = pool.used_bytes()
        alive = first(tm, kind, **options)
        ours = pool.used_bytes() - before
        del alive
        with memory.track("meta") as track:
            step(tm)
    share = {"RNN": 0.4, "GRU": 0.5, "LSTM": 0.2}[kind]
    assert share * kept <= ours <= (1.0 if kind == "RNN" else 0.75) * kept, f"{ours:,} against {kept:,}: {ours / kept:.3f}"
    assert 0.2 * peak <= track.peak - before <= peak, f"{track.peak - before:,} against {peak:,}"


@pytest.mark.parametrize("recompute", [0, 1, 8, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_layer_keeps_of_its_own(kind: str, recompute: int):
    """Of what is kept, neither input nor output nor weights."""
    layer, x = getattr(nn, kind)(H, H), tm.ones(T, N, H)
    layer.recompute = recompute
    rows = memory.saved(lambda: layer(x)[0])
    own = {row.name: row.bytes for row in rows if row.name in ("gates", "cells")}
    chunk = recompute or 512 // N
    gates = {"gates": 4 * H * N * T * 4} if kind != "RNN" and not recompute else {}
    cells = {"cells": -(-T // chunk) * N * H * 4} if kind == "LSTM" else {}
    assert own == gates | cells


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recompute_lowers_the_peak(kind: str):
    def peak(recompute: int) -> int:
        def run() -> None:
            layer = getattr(nn, kind)(H, H, 2)
            layer.recompute = recompute
            layer(tm.ones(256, N, H))[0].sum().backward()

        return memory.predict(run).peak

    assert 0.3 * peak(0) < peak(16) < 0.55 * peak(0)


@given(
    st.sampled_from(["RNN_TANH", "RNN_RELU", "LSTM", "GRU"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(1, 2),
    st.integers(0, 6),
)
@settings(max_examples=examples(60))
def test_gates_made_again_give_the_same(mode: str, lengths: list, ways: int, recompute: int):
    """Any lengths, chunks of any size: forward bit for bit, gradients to rounding."""
    sizes = tuple(sum(n > t for n in lengths) for t in range(max(lengths)))
    rng, rows = np.random.default_rng(1), {"LSTM": 4, "GRU": 3}.get(mode, 1) * 3
    arrays = [rng.standard_normal((sum(sizes), 2))]
    arrays += [rng.standard_normal(s) for _ in range(ways) for s in ((rows, 2), (rows, 3), (rows,), (rows,))]

    def run(steps: int) -> list[np.ndarray]:
        x, *weights = [tm.tensor(a, requires_grad=True) for a in arrays]
        y, *last = recurrent_layer(mode, x, (), weights, sizes, steps)
        tm.autograd.backward([y, last[0]], [tm.ones_like(y), tm.ones_like(last[0])])
        return [values(y), *[values(state) for state in last], *[values(t.grad) for t in (x, *weights)]]

    for found, expected in zip(run(recompute), run(0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_twice_and_what_hooks_hold(kind: str):
    """Gates turn into gradients in place, but not where somebody else may still want them."""
    layer, x = getattr(nn, kind)(3, 4).double(), tm.randn(5, 2, 3, dtype=tm.float64)
    y = layer(x)[0].sum()
    y.backward(retain_graph=True)
    once = [values(p.grad).copy() for p in layer.parameters()]
    y.backward()
    for p, g in zip(layer.parameters(), once, strict=True):
        np.testing.assert_array_equal(values(p.grad), 2 * g)
    layer.zero_grad()
    held: list = []

    def pack(t: tm.Tensor) -> tm.Tensor:
        held.append((t, values(t).copy()))
        return t

    with tm.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = layer(x)[0].sum()
    y.backward()
    for t, before in held:
        np.testing.assert_array_equal(values(t), before)
    for p, g in zip(layer.parameters(), once, strict=True):
        np.testing.assert_array_equal(values(p.grad), g)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_several_chunks_are_pytorchs_and_the_same_bits_however_run(kind: str, options: dict):
    """The products of one chunk beside the steps of another: gates in place, kept for a second backward, packed by hooks, or
    made again by a checkpoint."""
    mine, other = pair(kind, 24, 40, **options)  # 3 chunks of 512 rows and one of 64
    x = np.random.default_rng(0).standard_normal((50, 32, 24))
    seed = np.random.default_rng(1).standard_normal((50, 32, 40 * (1 + len(options))))

    def run(way: str) -> list[np.ndarray]:
        mine.zero_grad()
        given = tm.tensor(x, requires_grad=True)
        with tm.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t) if way == "hooks" else nullcontext():
            y = checkpoint(lambda t: mine(t)[0], given, use_reentrant=False) if way == "again" else mine(given)[0]
        y.backward(tm.tensor(seed), retain_graph=way == "retained")
        return [values(y), values(given.grad), *[values(p.grad) for p in mine.parameters()]]

    found = run("plain")
    for way in ("hooks", "retained", "again"):
        for a, b in zip(run(way), found, strict=True):
            np.testing.assert_array_equal(a, b)
    given = torch.tensor(x, requires_grad=True)
    y = other(given)[0]
    y.backward(torch.tensor(seed))
    expected = [y, given.grad, *[p.grad for p in other.parameters()]]
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, e.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_chunk_that_backward_begins_with_is_divided(reverse: bool, monkeypatch: pytest.MonkeyPatch):
    """The other thread waits for the first steps only. It is whole where the states before it are not all in the output."""
    found, steps_backward = [], Recurrent.registry["LSTM"].steps_backward  # type: ignore[attr-defined]

    def seen(kernels: Any, gates: Any, w_hh: Any, sizes: tuple, *rest: Any) -> None:
        found.append(len(sizes))
        steps_backward(kernels, gates, w_hh, sizes, *rest)

    monkeypatch.setattr(Recurrent.registry["LSTM"], "steps_backward", staticmethod(seen))
    layer = nn.LSTM(4, 4, bidirectional=reverse)
    layer(tm.ones(45, N, 4))[0].sum().backward()
    assert found == [7, 6, 16, 16] + ([8, 8, 16, 13] if reverse else [])  # the last chunk has 13 steps
    found.clear()
    layer(tm.ones(16, N, 4))[0].sum().backward()
    assert found == [16] * (1 + reverse)


@pytest.mark.parametrize("large", [1, 1 << 30])  # steps that threads share, and steps that they do not
def test_numbers_do_not_depend_on_who_runs_them(large: int, monkeypatch: pytest.MonkeyPatch):
    tm.manual_seed(0)
    for name in ("_LARGE", "_FORTH", "_BACK"):
        monkeypatch.setattr(recurrent, name, large)
    layer, x = nn.GRU(300, 300).double(), tm.randn(40, 32, 300, dtype=tm.float64)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads._pool, "size", count)
        layer.zero_grad()
        layer(x)[0].sum().backward()
        found.append([values(p.grad) for p in layer.parameters()])
    for others in found[1:]:
        for a, b in zip(others, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_few_rows_give_the_same_numbers(kind: str, monkeypatch: pytest.MonkeyPatch):
    """As with OpenBLAS's kernels for AVX-512, of sequences that end one after another."""
    tm.manual_seed(0)
    monkeypatch.setattr(blas, "SMALL", 9000)
    monkeypatch.setattr(blas, "_RESULTS", 100)
    monkeypatch.setattr(blas, "_TERMS", 40)
    monkeypatch.setattr(blas, "_WIDTH", 37)
    layer, x = getattr(nn, kind)(24, 74), tm.randn(9, 5, 24)
    packed = nn.utils.rnn.pack_padded_sequence(x, [9, 7, 7, 3, 1])
    ways, few_rows, found = set(), blas.few_rows, []
    monkeypatch.setattr(blas, "few_rows", lambda rows, b: ways.add(few_rows(rows, b)) or few_rows(rows, b))
    for for_avx512 in (False, True):
        monkeypatch.setattr(blas, "for_avx512", for_avx512)
        ways.clear()
        layer.zero_grad()
        y = layer(packed)[0].data
        y.sum().backward()
        found.append([values(y), *[values(p.grad) for p in layer.parameters()]])
        assert ways == ({blas._by_results, blas._by_terms} if for_avx512 else {np.matmul})
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_several_tiles(kind: str, reverse: bool, monkeypatch: pytest.MonkeyPatch):
    """Of sequences that end one after another: some of a tile were alive in the step before, and some were not."""
    tm.manual_seed(0)
    layer = getattr(nn, kind)(3, 5, bidirectional=reverse).double()
    packed = pack_padded_sequence(tm.randn(9, 7, 3, dtype=tm.float64), [9, 7, 7, 6, 3, 3, 1])
    found, tiles = [], []
    for numbers in (1 << 16, 41, 5):  # of a tile: all rows, some, one
        monkeypatch.setattr(recurrent, "_TILE", numbers)
        recurrent._tiles.cache_clear()
        layer.zero_grad()
        y = layer(packed)[0].data
        y.sum().backward()
        found.append([values(y), *[values(p.grad) for p in layer.parameters()]])
        tiles.append(len(recurrent._tiles(7, 20)))
    recurrent._tiles.cache_clear()
    assert tiles == [1, 4, 7]
    for others in found[1:]:
        for a, b in zip(others, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fast", [False, True])
def test_the_gates_logistic_function_by_both_ways(fast: bool, monkeypatch: pytest.MonkeyPatch):
    """To 1e-7, and at the ends: also where NumPy's tanh is not fast."""
    monkeypatch.setattr(gate_steps, "_BY_TANH", fast)
    x = np.array([-np.inf, -200, -20, -1, -1e-6, 0, 1e-6, 1, 20, 200, np.inf, np.nan], np.float32)
    y = x.copy()
    with np.errstate(over="ignore"):
        gate_steps._sigmoid(y)
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=0, atol=1e-7)


def test_last_states_that_nobody_uses_cost_their_own_bytes():
    """Of two layers: what is held after forward, what backward computes and takes; gone, they are not missed."""
    shape, own = (16, 8, 16), -(-2 * 8 * 16 * 4 // 512) * 512  # of two layers' states

    def run(kept: bool) -> tuple[int, int, list[str]]:
        tm.manual_seed(0)
        layer, pool, ops = nn.LSTM(16, 16, 2), device("meta").pool, []
        with tm.device("meta"):
            layer, x = layer.to("meta"), tm.ones(*shape)
            gc.collect()
            before = pool.used_bytes()
            y, last = layer(x)
            if not kept:
                del last
            held = pool.used_bytes() - before
            y.grad_fn.register_hook(lambda *_: ops.append("y"))
            for state in last if kept else ():
                state.grad_fn.register_hook(lambda *_: ops.append("state"))
            seed = tm.ones_like(y)
            with memory.track("meta") as track:
                y.backward(seed)
            return held, track.peak - before, ops

    kept, gone = run(True), run(False)
    assert kept[0] - gone[0] == 2 * own
    assert kept[1] - gone[1] == 2 * own
    assert kept[2] == gone[2] == ["y"]


@pytest.mark.parametrize("kind", KINDS)
def test_states_alone_and_frozen_weights(kind: str):
    """Only what is wanted is kept: of a frozen layer the input is not, and gradients arrive where they are asked for."""
    mine, other = pair(kind, 3, 4)
    mine.requires_grad_(False)
    other.requires_grad_(False)
    rng = np.random.default_rng(0)

    def through(layer: Any) -> Any:
        return lambda x: layer(x)[1][0] if kind == "LSTM" else layer(x)[1]

    against_torch(through(mine), through(other), [rng.standard_normal((5, 2, 3))])
    rows = memory.saved(lambda: through(mine)(tm.ones(5, 2, 3, dtype=tm.float64, requires_grad=True)))
    assert "x" not in {row.name for row in rows}
    with tm.no_grad():
        assert mine(tm.ones(5, 2, 3, dtype=tm.float64))[0].grad_fn is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 3, 4), (40, 60, 4)], ids=str)
def test_half_accumulates_in_float32(kind: str, shape: tuple):
    full, _ = pair(kind, 4, 6, 2, bidirectional=True, dtype="float32")
    half = getattr(nn, kind)(4, 6, 2, bidirectional=True).half()
    half.load_state_dict(full.state_dict())
    full.load_state_dict(half.state_dict())  # rounded, both
    x = np.random.default_rng(0).standard_normal(shape).astype("f2")
    a, b = tm.tensor(x.astype("f4"), requires_grad=True), tm.tensor(x, requires_grad=True)
    found, expected = half(b)[0], full(a)[0]
    assert found.dtype == tm.float16
    np.testing.assert_allclose(values(found), values(expected), rtol=4e-3, atol=4e-3)
    expected.mean().backward()
    (found.float().mean() * 4096).backward()
    for p, q in zip((b, *half.parameters()), (a, *full.parameters()), strict=True):
        assert p.grad.dtype == tm.float16
        np.testing.assert_allclose(values(p.grad) / 4096.0, values(q.grad), rtol=2e-2, atol=1e-2 * np.abs(values(q.grad)).max())


def test_truncated_backward_keeps_one_piece():
    """The state's detach() cuts the tape: however long the text, no more is kept than of one piece."""

    def peak(pieces: int, cut: bool) -> int:
        def run() -> None:
            layer, state = nn.LSTM(16, 32), None
            for _ in range(pieces):
                y, state = layer(tm.ones(20, 4, 16), state)
                if cut:
                    y.sum().backward()
                    layer.zero_grad()
                    state = tuple(part.detach() for part in state)

        return memory.predict(run).peak

    assert peak(10, cut=True) == peak(3, cut=True)
    kept = 20 * 4 * (4 * 32 + 32 + 16) * 4  # of a piece: gates, output and input
    assert 7 * kept <= peak(10, cut=False) - peak(3, cut=False) <= 7 * (kept + 4 * 512 * 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shut", [-30.0, -88.0, -100.0, -800.0], ids="o is sigmoid of {}".format)
def test_shut_output_gates_lose_no_gradient(shut: float, dtype: str):
    """Backward has tanh(c) from y / o: where o is small, denormal or 0, the gradients are PyTorch's still, and finite."""
    mine, other = pair("LSTM", 3, 4, dtype=dtype)
    with tm.no_grad(), torch.no_grad():
        mine.bias_ih_l0[13:] = shut  # of 4 output gates one is open
        other.bias_ih_l0[13:] = shut
    x = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(dtype)
    y, expected = mine(tm.tensor(x)), other(torch.tensor(x))
    (y[0].sum() + y[1][1].sum()).backward()  # of the outputs, and of the cells past the gates
    (expected[0].sum() + expected[1][1].sum()).backward()
    for name, parameter in other.named_parameters():
        found = getattr(mine, name).grad.numpy()
        np.testing.assert_allclose(found, parameter.grad.numpy(), rtol=1e-4 if dtype == "float32" else 1e-10, atol=1e-6)


def test_dropout_is_between_layers():
    layer = nn.LSTM(3, 8, 2, dropout=0.5)
    x = tm.randn(5, 2, 3)
    assert not np.array_equal(values(layer(x)[0]), values(layer(x)[0]))
    layer.eval()
    np.testing.assert_array_equal(values(layer(x)[0]), values(layer(x)[0]))
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        nn.LSTM(3, 8, dropout=0.5)


def test_initial_values_are_uniform_in_pytorchs_order():
    tm.manual_seed(0)
    layer = nn.LSTM(3, 16, 2, bidirectional=True)
    names = [n for n, _ in layer.named_parameters()]
    assert names == [n for n, _ in torch.nn.LSTM(3, 16, 2, bidirectional=True).named_parameters()]
    every = np.concatenate([values(p).reshape(-1) for p in layer.parameters()])
    assert -0.25 <= every.min() < -0.249
    assert 0.249 < every.max() <= 0.25
    assert [[tuple(w.shape) for w in way] for way in layer.all_weights][2] == [(64, 32), (64, 16), (64,), (64,)]


REFUSED = {
    "steps": (lambda: nn.LSTM(3, 4)(tm.ones(0, 2, 3)), RuntimeError, "Expected sequence length to be larger than 0"),
    "dims": (lambda: nn.LSTM(3, 4)(tm.ones(3)), ValueError, "LSTM: Expected input to be 2D or 3D, got 1D instead"),
    "gru dims": (lambda: nn.GRU(3, 4)(tm.ones(3)), ValueError, "GRU: Expected input to be 2D or 3D, got 1D tensor"),
    "features": (lambda: nn.GRU(3, 4)(tm.ones(2, 2, 4)), RuntimeError, r"Expected 3, got 4"),
    "dtype": (lambda: nn.GRU(3, 4)(tm.ones(2, 2, 3).double()), ValueError, r"RNN input dtype \(.*float64\) does not match"),
    "state": (lambda: nn.GRU(3, 4)(tm.ones(2, 2, 3), tm.ones(1, 3, 4)), RuntimeError, r"Expected hidden size \(1, 2, 4\), got"),
    "cell": (
        lambda: nn.LSTM(3, 4)(tm.ones(2, 2, 3), (tm.ones(1, 2, 4), tm.ones(1, 2, 5))),
        RuntimeError,
        r"Expected hidden\[1\] size \(1, 2, 4\), got \[1, 2, 5\]",
    ),
    "2-D state": (
        lambda: nn.RNN(3, 4)(tm.ones(2, 2, 3), tm.ones(1, 4)),
        RuntimeError,
        "For batched 3-D input, hx should also be 3-D but got 2-D tensor",
    ),
    "3-D states": (
        lambda: nn.LSTM(3, 4)(tm.ones(2, 3), (tm.ones(1, 1, 4), tm.ones(1, 1, 4))),
        RuntimeError,
        r"For unbatched 2-D input, hx and cx should also be 2-D but got \(3-D, 3-D\)",
    ),
    "packed dims": (
        lambda: nn.GRU(3, 4)(pack_padded_sequence(tm.ones(2, 2, 2, 3), [2, 1])),
        RuntimeError,
        "input must have 2 dimensions, got 3",
    ),
    "projection": (lambda: nn.LSTM(3, 4, proj_size=2), NotOfferedError, "proj_size is not offered: use a smaller hidden_size"),
    "large projection": (lambda: nn.LSTM(3, 4, proj_size=4), ValueError, "proj_size has to be smaller"),
    "no projection": (lambda: nn.LSTM(3, 4, proj_size=-1), ValueError, "proj_size should be a positive integer"),
    "nonlinearity": (lambda: nn.RNN(3, 4, nonlinearity="x"), ValueError, "Unknown nonlinearity 'x'"),
    "size": (lambda: nn.RNN(3, 0), ValueError, "hidden_size must be greater than zero"),
    "kind of size": (lambda: nn.RNN(3, 2.0), TypeError, "hidden_size should be of type int, got: float"),
    "dropout": (lambda: nn.GRU(3, 2, 2, dropout=2), ValueError, "dropout should be a number in range"),
    "cell's input": (lambda: nn.RNNCell(3, 2)(tm.ones(4, 5)), RuntimeError, "inconsistent input_size: got 5 expected 3"),
    "cell's dims": (lambda: nn.LSTMCell(3, 2)(tm.ones(1, 4, 3)), ValueError, "LSTMCell: Expected input to be 1D or 2D, got 3D"),
    "cell's state": (
        lambda: nn.GRUCell(3, 2)(tm.ones(4, 3), tm.ones(3, 2)),
        RuntimeError,
        "doesn't match hidden0 batch size 3",
    ),
    "cell's width": (lambda: nn.GRUCell(3, 2)(tm.ones(4, 3), tm.ones(4, 3)), RuntimeError, "inconsistent hidden_size: got 3"),
    "cell's kind": (lambda: nn.RNNCell(3, 2, nonlinearity="q")(tm.ones(4, 3)), RuntimeError, "Unknown nonlinearity: q"),
    "cell's hidden dims": (
        lambda: nn.GRUCell(3, 2)(tm.ones(3), tm.ones(1, 1, 2)),
        ValueError,
        "Expected hidden to be 1D or 2D",
    ),
    "rows": (lambda: layer(tm.ones(4, 3)), ShapeError, "LSTM: expected 5 packed rows, found x of"),
    "weights": (lambda: layer(tm.ones(5, 3), w_hh=tm.ones(8, 3)), ShapeError, "do not fit each other"),
    "bias": (lambda: layer(tm.ones(5, 3), b=tm.ones(7)), ShapeError, "a bias of .* does not fit"),
    "mixed": (lambda: layer(tm.ones(5, 3).half()), DTypeError, "input and parameters must have the same dtype, found"),
}


def layer(x: tm.Tensor, w_hh: Any = None, b: Any = None) -> Any:
    w_hh, b = tm.ones(8, 2) if w_hh is None else w_hh, tm.ones(8) if b is None else b
    return recurrent_layer("LSTM", x, (), (tm.ones(8, 3), w_hh, b, b), (3, 2))


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str):
    run, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        run()
