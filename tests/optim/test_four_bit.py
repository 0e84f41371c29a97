"""4-bit moments: the paper's 16 numbers and its algorithm, step by step; bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.optim.test_eight_bit import Paper
from tests.profiles import examples
from tests.witness import numpy_allocations
from tinygrad_mem import optim
from tinygrad_mem.devices import device
from tinygrad_mem.kernels.code_tables import TABLES
from tinygrad_mem.kernels.numpy.fast import blocks
from tinygrad_mem.scope import local

RULES = {"Adam4bit": {"lr": 0.01}, "AdamW4bit": {"lr": 0.01, "weight_decay": 0.1}}
every = pytest.mark.parametrize("name", RULES)
SIGNED = [-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055]
SIGNED += [0.0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1.0]
"""The dynamic exponent of 4 bits: the middles of 4, 2 and 1 parts of three decades, with a sign, and 0 and 1."""


def test_the_numbers_of_four_bits():
    np.testing.assert_allclose(TABLES["dynamic4"].numbers, SIGNED, rtol=1e-6)
    np.testing.assert_allclose(TABLES["linear4"].numbers, [(i + 1) / 16 for i in range(16)])


def packed(x: np.ndarray, signed: bool, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes, top = np.full(-(-x.size // 2), 255, np.uint8), np.zeros(-(-x.size // block), np.float32)
    again, coded = np.empty_like(x), TABLES["dynamic4" if signed else "linear4"]
    local.run(blocks.pack, x, coded, block, top, codes)
    local.run(blocks.unpack, codes, top, coded, block, again)
    return codes, top, again


@given(signed=st.booleans(), block=st.sampled_from([64, 100, 128]), size=st.integers(1, 999), seed=st.integers(0, 99))
def test_packing_takes_the_nearest_two_in_a_byte(signed: bool, block: int, size: int, seed: int):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * np.exp(2 * rng.standard_normal(size))).astype(np.float32)
    x = x if signed else np.abs(x)
    codes, top, again = packed(x, signed, block)
    numbers = np.array(SIGNED) if signed else np.arange(1, 17) / 16
    single = np.stack([codes & 15, codes >> 4], -1).reshape(-1)[:size]
    scales = np.repeat(top, block)[:size]
    assert (top == [np.abs(x[i : i + block]).max() for i in range(0, size, block)]).all()
    distance = np.abs(x / scales - numbers[single])
    assert (distance <= np.abs((x / scales)[:, None] - numbers).min(1) + 1e-6).all()
    np.testing.assert_allclose(again, numbers[single] * scales, rtol=1e-6)


class Paper4(Paper):
    """Adam as the paper has it: unpack, update in 32 bits, pack."""

    def nearest(self, x: np.ndarray, signed: bool) -> np.ndarray:
        numbers, out = np.array(SIGNED) if signed else np.arange(1, 17) / 16, np.empty_like(x)
        for start in range(0, x.size, self.block):
            part = x[start : start + self.block]
            top = np.abs(part).max()
            out[start : start + self.block] = numbers[np.abs((part / top)[:, None] - numbers).argmin(1)] * top
        return out


@every
@pytest.mark.parametrize(("size", "block"), [(4096, 128), (10_001, 128), (5_000, 64), (5_000, 4096)])
def test_steps_are_the_papers(name: str, size: int, block: int, dev: str):
    rng = np.random.default_rng(0)
    start = rng.standard_normal(size).astype(np.float32)
    p = tm.tensor(start, device=dev).requires_grad_()
    o = getattr(optim, name)([p], block_size=block, **RULES[name])
    paper = Paper4(start, "AdamW8bit" if name == "AdamW4bit" else "Adam8bit", RULES[name], block)
    for _ in range(8):
        g = (rng.standard_normal(size) * np.exp(rng.standard_normal(size))).astype(np.float32)
        p.grad = tm.tensor(g, device=dev)
        o.step()
        paper.step(g)
        found = p.detach().cpu().numpy()
        np.testing.assert_allclose(found, paper.p, rtol=1e-5, atol=2e-6)
        kept = [o.state[p][key].cpu().numpy() for key in ("state1", "absmax1", "state2", "absmax2")]
        for codes, top, numbers, expected in (
            (*kept[:2], np.array(SIGNED), paper.m),
            (*kept[2:], np.arange(1, 17) / 16, paper.v),
        ):
            single = np.stack([codes & 15, codes >> 4], -1).reshape(-1)[:size]
            mine = (numbers[single] * np.repeat(top, block)[:size]).astype(np.float32)
            assert np.isclose(mine, expected, rtol=1e-4, atol=1e-9).mean() > 0.995, "but for numbers beside a border"
            expected[...] = mine
        paper.p = found.copy()


# --- rank-1 normalization, stated again in float64


def nearest(x: np.ndarray, scales: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """What is kept of x: scales are kept in float32."""
    share = np.divide(x, scales, out=np.zeros_like(x), where=scales > 0)
    return numbers[np.abs(share[..., None] - numbers).argmin(-1)] * scales


def in_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """The largest number of each number's block."""
    flat = np.abs(x).reshape(-1)
    tops = [flat[i : i + block].max() for i in range(0, flat.size, block)]
    return np.repeat(np.array(tops, np.float32).astype(float), block)[: flat.size].reshape(x.shape)


def rank_one(x: np.ndarray, block: int) -> np.ndarray:
    """The smallest of the largest numbers along each axis; of a vector those of blocks."""
    if x.ndim < 2:
        return in_blocks(x, block)
    others = [tuple(k for k in range(x.ndim) if k != axis) for axis in range(x.ndim)]
    return np.minimum.reduce([np.broadcast_to(np.float32(x.max(axes, keepdims=True)), x.shape) for axes in others]).astype(
        float
    )


SHAPES = [(40, 30), (1, 70), (70, 1), (5, 6, 7), (2, 3, 4, 5), (130,), ()]


@pytest.mark.parametrize(("block", "decay", "coupled"), [(128, 0.1, False), (64, 0.0, False), (128, 0.1, True)])
def test_many_steps_are_the_papers(block: int, decay: float, coupled: bool, dev: str):
    rng = np.random.default_rng(1)
    starts = [np.asarray(rng.standard_normal(shape)) for shape in SHAPES]
    ours = [tm.tensor(start, device=dev).requires_grad_() for start in starts]
    rule = optim.Adam4bit if coupled else optim.AdamW4bit
    o = rule(ours, lr=0.01, weight_decay=decay, block_size=block, min_4bit_size=0)
    states = [(start.copy(), np.zeros_like(start), np.zeros_like(start)) for start in starts]
    for t in range(1, 1 + examples(10)):
        for i, (p, mine) in enumerate(zip(states, ours, strict=True)):
            w, m, v = p
            g = np.asarray(rng.standard_normal(w.shape) * np.exp(2 * rng.standard_normal(w.shape)))
            mine.grad = tm.tensor(g, device=dev)
            g = g + decay * w if coupled else g
            w = w if coupled else w * (1 - 0.01 * decay)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            m, v = nearest(m, in_blocks(m, block), np.array(SIGNED)), nearest(v, rank_one(v, block), np.arange(1, 17) / 16)
            states[i] = w, m, v
        o.step()
    for (w, _, v), mine in zip(states, ours, strict=True):
        np.testing.assert_allclose(mine.detach().cpu().numpy(), w, rtol=1e-6, atol=1e-6)
        codes, tops = (o.state[mine][key].cpu().numpy() for key in ("state2", "absmax2"))
        assert tops.shape == (sum(v.shape) if v.ndim > 1 else -(-v.size // block),)
        single = np.stack([codes & 15, codes >> 4], -1).reshape(-1)[: v.size].reshape(v.shape)
        scale = in_scale(tops.astype(float), v.shape, block)
        np.testing.assert_allclose((single + 1) / 16 * scale, v, rtol=1e-5)


def in_scale(tops: np.ndarray, shape: tuple[int, ...], block: int) -> np.ndarray:
    """The scale of each number, of what is kept."""
    if len(shape) < 2:
        return np.repeat(tops, block)[: int(np.prod(shape))].reshape(shape)
    return np.minimum.reduce([np.broadcast_to(x, shape) for x in np.ix_(*np.split(tops, np.cumsum(shape)[:-1]))])


def test_an_outlier_spoils_its_row_and_its_column_alone():
    """A block would be scaled by it: its neighbours' mean squares would all be 1/16 of the outlier's."""
    p = tm.zeros(64, 64, requires_grad=True)
    g = np.ones((64, 64), np.float32)
    g[3, 5] = 1000
    p.grad = tm.tensor(g)
    o = optim.Adam4bit([p], min_4bit_size=0)
    o.step()
    codes = o.state[p]["state2"].numpy()
    single = np.stack([codes & 15, codes >> 4], -1).reshape(64, 64)
    tops = o.state[p]["absmax2"].numpy()
    np.testing.assert_allclose(np.delete(tops, [3, 64 + 5]), 1e-3, rtol=1e-5)
    np.testing.assert_allclose(tops[[3, 64 + 5]], 1e3, rtol=1e-5)
    assert (single == 15).all(), "each number is the largest of its row or of its column"


@every
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_matrices_in_threads(name: str, dtype: str):
    """The same as row after row would be, if all rows had the columns' largest numbers: of a matrix of equal rows."""
    rng = np.random.default_rng(0)
    row = (rng.standard_normal(1000) * np.exp(rng.standard_normal(1000))).astype(dtype)
    found = []
    for rows in (1, 300):
        p = tm.zeros(rows, 1000, dtype=getattr(tm, dtype), requires_grad=True)
        o = getattr(optim, name)([p], min_4bit_size=0, block_size=1000, **RULES[name])
        for _ in range(3):
            p.grad = tm.tensor(np.tile(row, (rows, 1)))
            o.step()
        found.append((p.detach().numpy(), o.state[p]["absmax2"].numpy()))
    (one, tops), (many, many_tops) = found
    np.testing.assert_array_equal(many, np.tile(one, (300, 1)))
    np.testing.assert_array_equal(many_tops, np.concatenate([np.repeat(tops[:1], 300), tops[1:]]))


@every
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("shape", [(1 << 20,), (1 << 10, 1 << 10), (1 << 8, 1 << 6, 1 << 6)])
def test_bytes(name: str, where: str, shape: tuple[int, ...]):
    n = 1 << 20
    p = tm.zeros(*shape, device=where, requires_grad=True)
    p.grad = tm.ones(*shape, device=where)
    o = getattr(optim, name)([p], **RULES[name])
    pool = device(where).pool
    before = pool.used_bytes()
    lines = 4 * sum(shape) if len(shape) > 1 else 0
    o.step()
    assert pool.used_bytes() - before == n + 4 * n // 128 + (lines or 4 * n // 128)
    pool.reset_peak()
    before = pool.used_bytes()
    o.step()
    assert pool.counts().peak_used - before == lines
    with numpy_allocations() as sizes:
        before = pool.used_bytes()
        o.step()
        assert pool.used_bytes() == before
        assert [n for n in sizes if n > 64] == []


def test_an_odd_number_of_elements():
    p = tm.zeros(4097, requires_grad=True)
    p.grad = tm.ones(4097)
    o = optim.Adam4bit([p])
    o.step()
    assert o.state[p]["state1"].shape == (2049,)
    assert o.state[p]["absmax1"].shape == (33,)
    np.testing.assert_allclose(p.detach().numpy(), -1e-3, rtol=1e-4)


def test_small_parameters_and_groups_of_32_bits_are_plain():
    for size, options, bits in ((4095, {}, 32), (4096, {}, 4), (6000, {"optim_bits": 32}, 32)):
        p, q = (tm.ones(size, requires_grad=True) for _ in range(2))
        p.grad = q.grad = tm.full((size,), 0.5)
        o, plain = optim.AdamW4bit([{"params": [p], **options}]), optim.AdamW([q])
        o.step()
        plain.step()
        assert ("state1" in o.state[p]) == (bits == 4)
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6 if bits == 4 else 0)


@every
def test_in_any_memory_order(name: str, dev: str):
    rng = np.random.default_rng(0)
    start, gradient = (rng.standard_normal((70, 90)).astype(np.float32) for _ in range(2))
    found = []
    for turned in (False, True):
        p = tm.tensor(start.T.copy() if turned else start, device=dev)
        p = (p.t().detach() if turned else p).requires_grad_()
        g = tm.tensor(gradient if turned else gradient.T.copy(), device=dev)
        o = getattr(optim, name)([p], block_size=1000, **RULES[name])
        for _ in range(3):
            p.grad = g if turned else g.t().detach()
            o.step()
        found.append(p.detach().cpu().numpy())
    np.testing.assert_array_equal(*found)
