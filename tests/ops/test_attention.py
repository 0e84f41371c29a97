"""Attention: every option against PyTorch's, dropout by counter, long sequences in tiles, memory linear in tokens, messages."""

from __future__ import annotations

import gc
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tests.profiles import examples, pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.kernels.numpy.fast import attention_tiles, threads
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.attention.varlen import varlen_attn

sdpa, theirs = F.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention


def normal(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s) for s in shapes]


tokens = st.sampled_from([1, 2, 7, 64, 129, 200]) | st.integers(0, 40)


def rounded(v: np.ndarray, of_scores: tuple[int, ...], bias: tuple[int, ...]) -> float:
    """What rounding adds to the gradient of a bias: an element's is the sum of this many rows, and may be 0. Of each row, the
    probabilities, which are 1 together, are multiplied by a gradient of about the length of a row of ``v``.
    """
    one = (1,) * (len(of_scores) + 1 - len(bias)) + bias
    terms = math.prod(n for n, kept in zip(of_scores, one, strict=False) if kept == 1)
    return float(terms * np.finfo(np.float32).eps * np.linalg.norm(v, axis=-1).max())


@given(data=st.data(), dtype=st.sampled_from(["float64", "float32"]))
@settings(max_examples=examples(60))
def test_as_pytorch(data: Any, dtype: str):
    lead = data.draw(st.sampled_from([(), (3,), (2, 3), (1, 4), (2, 1, 2)]))
    rows, columns = data.draw(tokens), data.draw(tokens)
    depth, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shared = data.draw(st.sampled_from([1, 2])) if len(lead) > 1 else 1
    few = (*lead[:-1], lead[-1]) if lead else ()
    many = (*lead[:-1], lead[-1] * shared) if lead else ()
    options: dict[str, Any] = {"scale": data.draw(st.sampled_from([None, 0.3, 5.0])), "enable_gqa": shared > 1}
    arrays = normal((*many, rows, depth), (*few, columns, depth), (*few, columns, width))
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "bias"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        full = (*many, rows, columns)
        keep = data.draw(st.integers(0, len(many)))
        shape = tuple(n if data.draw(st.booleans()) else 1 for n in full[keep:])
        rng = np.random.default_rng(1)
        arrays.append(rng.random(shape) > 0.4 if kind == "bool" else rng.standard_normal(shape))
    tolerance = (1e-10, 1e-10) if dtype == "float64" else (1e-4, 1e-5 * max(options["scale"] or 1, 1))
    if kind == "bias" and dtype == "float32" and rows * columns:
        tolerance = 1e-4, max(tolerance[1], rounded(arrays[2], (*many, rows), shape))

    def reference(*x: Any) -> Any:
        y = theirs(*x, **options)
        return y + 0 * x[3].sum() if kind == "bias" and not rows * columns else y  # else PyTorch forgets that there is a bias

    against_torch(lambda *x: sdpa(*x, **options), reference, arrays, dtype, tolerance=tolerance)


@pytest.mark.parametrize(("sizes", "causal"), pairs([(700, 1100), (1100, 700), (513, 513)], [False, True]), ids=str)
def test_many_tiles(sizes: tuple[int, int], causal: bool, dev: str):
    rows, columns = sizes
    arrays = normal((2, 2, rows, 8), (2, 1, columns, 8), (2, 1, columns, 5))
    options = {"is_causal": causal, "enable_gqa": True}
    against_torch(lambda *x: sdpa(*x, **options), lambda *x: theirs(*x, **options), arrays, device=dev)


@pytest.mark.parametrize(("window", "cap"), [((40, 3), None), ((-1, 0), 2.0), ((0, -1), None), ((600, 500), 0.5)])
def test_windows_across_tiles(window: tuple[int, int], cap: float | None, dev: str):
    """Diagonals that cut tiles in every way, beside a mask of the same; more columns than rows, and fewer."""
    lengths, seen = [(700, 1100), (520, 90), (1, 600)], []
    rows, columns = ([0, *itertools.accumulate(n)] for n in zip(*lengths, strict=True))
    q, k, v = (tm.tensor(a, device=dev, requires_grad=True) for a in normal((rows[-1], 1, 4), *[(columns[-1], 1, 4)] * 2))
    starts = [tm.tensor(n, device=dev) for n in (rows, columns)]
    y = varlen_attn(q, k, v, *starts, 700, 1100, window_size=window, softcap=cap)
    seed = normal(tuple(y.shape), seed=9)[0]
    y.backward(tm.tensor(seed, device=dev))
    a, b, c = (torch.tensor(values(t), requires_grad=True) for t in (q, k, v))
    for n, (r, w) in enumerate(lengths):
        place = np.arange(w) - (np.arange(r)[:, None] + w - r)
        mask = ((window[0] < 0) | (place >= -window[0])) & ((window[1] < 0) | (place <= window[1]))
        own = [t[s[n] : s[n + 1], 0] for t, s in ((a, rows), (b, columns), (c, columns))]
        some = mask.any(1)  # PyTorch gives nan for others, and nan gradients
        scores = own[0][some] @ own[1].T / 2
        scores = (scores if cap is None else torch.tanh(scores / cap) * cap).masked_fill(torch.tensor(~mask[some]), -torch.inf)
        z = torch.zeros(r, 4, dtype=torch.float64)
        z[some] = torch.softmax(scores, -1) @ own[2]
        seen.append(z)
    z = torch.cat(seen)
    z.backward(torch.tensor(seed[:, 0]))
    for f, e in ((y, z), (q.grad[:, 0], a.grad[:, 0]), (k.grad, b.grad), (v.grad, c.grad)):
        np.testing.assert_allclose(values(f).reshape(e.shape), e.detach().numpy(), rtol=1e-9, atol=1e-10)


def test_leading_axes_broadcast(dev: str):
    arrays = normal((4, 1, 5, 3), (1, 2, 6, 3), (6, 3))
    run = lambda q, k, v: sdpa(q, k, v)  # noqa: E731
    naive = lambda q, k, v: torch.softmax(q @ k.mT / 3**0.5, -1) @ v  # noqa: E731
    against_torch(run, naive, arrays, device=dev)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e4])
def test_scores_of_any_size(size: float, dev: str):
    """Small ones are summed as they are, large ones less their largest: both say the same."""
    arrays = [a * size for a in normal((2, 200, 4), (2, 700, 4))] + normal((2, 700, 4))
    against_torch(sdpa, theirs, arrays, device=dev, tolerance=(1e-9, 1e-9 * max(size, 1)))


def test_a_row_that_sees_nothing_gives_nothing(dev: str):
    q, k, v = (tm.tensor(a, device=dev, requires_grad=True) for a in normal((3, 4), (5, 4), (5, 4)))
    mask = np.ones((3, 5), bool)
    mask[1] = False
    y = sdpa(q, k, v, tm.tensor(mask, device=dev))
    y.sum().backward()
    assert not values(y)[1].any()
    assert not values(q.grad)[1].any()
    for t in (y, q.grad, k.grad, v.grad):
        assert np.isfinite(values(t)).all()
    bias = tm.tensor(np.where(mask, 0.0, -np.inf), device=dev)
    np.testing.assert_allclose(values(sdpa(q, k, v, bias)), values(y), rtol=1e-12)


@pytest.mark.parametrize("one", range(3), ids=["q", "k", "v"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_gradient_alone_is_as_with_the_others(one: int, dtype: str, dev: str):
    arrays = [a.astype(dtype) for a in normal((1, 2, 6, 4), (1, 2, 3, 4), (1, 2, 3, 4))]
    found = []
    for wanted in ([one], range(3)):
        tensors = [tm.tensor(a, device=dev, requires_grad=i in wanted) for i, a in enumerate(arrays)]
        sdpa(*tensors).sum().backward()
        found.append(values(tensors[one].grad))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "rows", "columns"), [(1, 3, 5), (2, 300, 600)])  # 3 x 5 scores: no multiple of 4 bytes
def test_half_precision_is_computed_in_single(heads: int, rows: int, columns: int, causal: bool, dev: str):
    arrays = normal((2, heads, rows, 16), (2, heads, columns, 16), (2, heads, columns, 16))
    found = [tm.tensor(a.astype("float16"), device=dev, requires_grad=True) for a in arrays]
    exact = [torch.tensor(a.astype("float16").astype("float64"), requires_grad=True) for a in arrays]
    seed = normal((2, heads, rows, 16), seed=5)[0].astype("float16")
    y, z = sdpa(*found, is_causal=causal), theirs(*exact, is_causal=causal)
    y.backward(tm.tensor(seed, device=dev))
    z.backward(torch.tensor(seed.astype("float64")))
    pairs = [(y.detach(), z.detach()), *[(f.grad, e.grad) for f, e in zip(found, exact, strict=True)]]
    for f, e in pairs:
        top = float(np.abs(e.numpy()).max())
        np.testing.assert_allclose(values(f), e.numpy(), rtol=1e-3, atol=1e-3 * top)  # half an ulp of the largest


# --- dropout --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(20, 30), (300, 700)])
def test_dropout_is_of_the_softmax_and_the_same_in_backward(rows: int, columns: int, dev: str):
    """With the identity for values the result is the dropped softmax itself: with its mask PyTorch's gradients are ours."""
    arrays = [*normal((2, 1, rows, 4), (2, 1, columns, 4)), np.broadcast_to(np.eye(columns), (2, 1, columns, columns)).copy()]
    q, k, v = (tm.tensor(a, device=dev, requires_grad=True) for a in arrays)
    y = sdpa(q, k, v, dropout_p=0.3)
    seed = normal((2, 1, rows, columns), seed=3)[0]
    y.backward(tm.tensor(seed, device=dev))
    kept = values(y) != 0
    assert abs(kept.mean() - 0.7) < 5 * (0.21 / kept.size) ** 0.5
    a, b, c = (torch.tensor(x, requires_grad=True) for x in arrays)
    z = torch.softmax(a @ b.mT / 2, -1) * torch.tensor(kept) / 0.7 @ c
    z.backward(torch.tensor(seed))
    np.testing.assert_allclose(values(y), z.detach().numpy(), rtol=1e-10, atol=1e-12)
    for found, expected in ((q, a), (k, b), (v, c)):
        np.testing.assert_allclose(values(found.grad), expected.grad.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (150, 700)])
def test_in_half_precision_dropout_has_the_gradients_of_single(rows: int, columns: int, dtype: str):
    """Of the same numbers, with the same mask; where results are rounded, backward goes over the scores once more."""
    sizes = ((2, 3, rows, 8), (2, 3, columns, 8), (2, 3, columns, 8))
    start = [tm.randn(*size).to(getattr(tm, dtype)) for size in sizes]
    found = []
    for each in (dtype, "float32"):
        tm.manual_seed(5)
        q, k, v = (x.to(getattr(tm, each)).detach().requires_grad_() for x in start)
        y = sdpa(q, k, v, dropout_p=0.3)
        y.backward(tm.ones(y.shape, dtype=y.dtype))
        found.append([values(x.float()) for x in (y.detach(), q.grad, k.grad, v.grad)])
    for half, single in zip(*found, strict=True):
        np.testing.assert_allclose(half, single, rtol=0, atol=(1e-3 if dtype == "float16" else 1e-2) * np.abs(single).max())


def test_each_head_and_tile_has_a_mask_of_its_own():
    eye = tm.eye(600).expand(2, 2, 600, 600)
    kept = values(sdpa(tm.zeros(2, 2, 300, 4), tm.zeros(2, 2, 600, 4), eye, dropout_p=0.5)) != 0
    pieces = [kept[n, h, i : i + 100, j : j + 100] for n in (0, 1) for h in (0, 1) for i in (0, 200) for j in (0, 300, 500)]
    for a, b in itertools.combinations(pieces, 2):
        assert 0.45 < (a == b).mean() < 0.55


def test_dropout_takes_a_ticket_and_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch):
    q, k, v = (tm.tensor(a) for a in normal((2, 4, 300, 8), (2, 4, 300, 8), (2, 4, 300, 8)))
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads._pool, "size", count)
        tm.manual_seed(7)
        found.append(values(sdpa(q, k, v, dropout_p=0.5)))
    assert (values(sdpa(q, k, v, dropout_p=0.5)) != found[0]).any()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    before = tm.get_rng_state()
    sdpa(q, k, v)
    assert (tm.get_rng_state() == before).all(), "without dropout nothing is drawn"
    assert not values(sdpa(q, k, v, dropout_p=1.0)).any()


# --- memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("count", [256, 1024, 4096, 16384, 65536])
def test_memory_is_linear_in_the_tokens(count: int, where: str):
    """Saved: q, k, v and the result, and 4 bytes a row. Peak: the same, the gradients, and nothing that grows with T * T."""
    if where == "cpu" and count > 1024:
        pytest.skip("meta says the same bytes at once")
    heads, depth = 4, 32
    with memory.track(where) as track, tm.device(where):
        q, k, v = (tm.ones(1, heads, count, depth, requires_grad=True) for _ in range(3))
        kept: list[Any] = []
        rows = memory.saved(lambda: kept.append(sdpa(q, k, v, is_causal=True)) or kept)
        kept[0].backward(tm.ones_like(kept[0]))
    one, lse = 4 * heads * count * depth, 4 * heads * count
    assert sum(row.bytes for row in rows) == 4 * one + lse
    older = track.by_category().get(memory.Category.UNTRACKED, 0)  # other tests': some of it may go at any time
    assert track.peak - older == 8 * one + lse, "q, k, v, y, lse, and the gradients of all four"


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_only_rows_that_products_cannot_read_are_copied(where: str):
    """Whole rows may lie anywhere, as those of one projection or of swapped axes do; numbers apart from each other may not."""

    def peak(q: Any) -> int:
        with memory.track(where) as track, tm.no_grad():
            sdpa(q, q, q)
        return track.peak - track.by_category().get(memory.Category.UNTRACKED, 0)

    with tm.device(where):
        whole, wide = tm.ones(2, 4, 32, 64), tm.ones(2, 32, 3, 4, 64)
        least = peak(whole)
        assert peak(wide[:, :, 1].transpose(1, 2)) == least
        assert peak(whole[..., ::64]) == peak(whole[..., ::64].contiguous())
        assert peak(tm.ones(2, 4, 32, 128)[..., ::2]) == least + 3 * whole.nbytes


def test_the_projection_behind_it_keeps_the_same_memory():
    """The result lies in memory as (N, T, heads, numbers): putting the heads together again is a view."""
    x = tm.randn(2, 16, 24, requires_grad=True)

    def run() -> Any:
        q, k, v = (part.view(2, 16, 4, 6).transpose(1, 2) for part in (x * 2).split(24, -1) * 3)
        y = sdpa(q, k, v).transpose(1, 2).contiguous().view(2, 16, 24)
        return F.linear(y, tm.ones(8, 24, requires_grad=True))

    rows = memory.saved(run)
    assert rows.total == 2 * x.nbytes + 4 * 2 * 4 * 16 + 8 * 24 * 4, "q, k and v are one tensor here; its result; lse; weight"


def test_nothing_is_kept_for_what_needs_no_gradient():
    q, k, v = (tm.tensor(a) for a in normal((3, 4), (5, 4), (5, 6)))
    assert sdpa(q, k, v).grad_fn is None
    v.requires_grad_()
    assert {row.name for row in memory.saved(lambda: sdpa(q, k, v))} == {"q", "k", "lse"}
    y = sdpa(q, k, v)
    y.sum().backward()
    with torch.no_grad():
        z = torch.softmax(torch.tensor(values(q)) @ torch.tensor(values(k)).mT / 2, -1)
    np.testing.assert_allclose(values(v.grad), z.sum(0)[:, None].expand(5, 6).numpy(), rtol=1e-12)


def test_memory_falls_with_the_last_reference():
    gc.collect()
    gc.disable()
    try:
        pool = tm.device("cpu").pool
        before = pool.used_bytes()
        q = tm.randn(2, 3, 40, 8, requires_grad=True)
        y = sdpa(q, q, q, dropout_p=0.2, is_causal=True)
        del y
        sdpa(q, q, q).sum().backward()
        q.grad = None
        assert pool.used_bytes() == before + -(-q.nbytes // 512) * 512
        del q
        assert pool.used_bytes() == before
    finally:
        gc.enable()


def test_every_plan_fits_into_the_scratch():
    """All that a tile takes is within what ``needed`` says: of any shape a tile is found, and the kernel runs in it."""
    for shape in [(1, 1, 1, 1, 8192), (64, 3, 2, 5000, 1), (1, 40, 1, 1, 64), (1, 2, 1, 128, 512), (300, 8, 1, 3, 4)]:
        for dtype in ("float16", "float32", "float64"):
            for total in (1, 70, 5000):
                cut = attention_tiles.plan(shape, total, shape[-1], np.dtype(dtype))
                assert min(cut) >= 1
                sizes = (cut.batches * cut.heads, cut.rows, cut.columns, shape[-1], shape[-1])
                assert attention_tiles.needed(*sizes, np.dtype(dtype)) <= threads.SCRATCH
    for dtype in ("float16", "float64"):
        q, k, v = (
            tm.tensor(a.astype(dtype), requires_grad=True) for a in normal((1, 2, 9, 700), (1, 2, 90, 700), (1, 2, 90, 900))
        )
        sdpa(q, k, v, tm.ones(9, 90, dtype=tm.bool), dropout_p=0.1).sum().backward()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("backward", [False, True])
def test_plans_of_the_gpu_fit_the_workspace_of_the_longest_sequence(dtype: str, backward: bool):
    """Their sizes are arithmetic, which needs no GPU: 64 MiB at most, and a shorter sequence fits into what was taken."""
    kernels = pytest.importorskip("tinygrad_mem.kernels.cupy.attention")
    kind = np.dtype(dtype)
    for heads, rows, columns, depth in [(1, 1, 1, 8), (12, 65536, 65536, 64), (40, 1000, 700, 128), (3, 900, 5, 8192)]:
        shapes = [(1, heads, n, depth) for n in (rows, columns, columns)]
        room = kernels.attention_workspace(*shapes, kind, backward)
        assert room <= 64 << 20
        for r, c in [(rows, columns), (1, 1), (rows, 1), (1, columns), (rows // 2, columns // 3)]:
            rest = room - (kernels.size_of_means(heads, r) if backward and dtype == "float16" else 0)
            cut = kernels.plan(heads, r, c, depth, depth, kind, backward, rest)
            assert kernels.size_of(cut, depth, depth, kind, backward) <= rest


# --- sequences one behind the other ---------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5),
    window=st.sampled_from([(-1, -1), (-1, 0), (2, 1), (0, 0)]),
    shared=st.sampled_from([1, 3]),
    where=st.sampled_from([tm.int32, tm.int64]),
)
def test_varlen_equals_padded_with_a_mask(lengths: list, window: tuple[int, int], shared: int, where: Any):
    rows, columns = (np.array([0, *itertools.accumulate(n)]) for n in zip(*lengths, strict=True))
    count, longest = len(lengths), [max(n) for n in zip(*lengths, strict=True)]
    arrays = normal((rows[-1], 2 * shared, 4), (columns[-1], 2, 4), (columns[-1], 2, 3))
    packed = [tm.tensor(a, requires_grad=True) for a in arrays]
    y = varlen_attn(
        *packed, tm.tensor(rows, dtype=where), tm.tensor(columns, dtype=where), *longest, window_size=window, enable_gqa=True
    )
    padded, mask = [], np.zeros((count, 1, *longest), bool)
    for array, cu, size in zip(arrays, (rows, columns, columns), (longest[0], longest[1], longest[1]), strict=True):
        full = np.zeros((count, size, *array.shape[1:]))
        for n in range(count):
            full[n, : cu[n + 1] - cu[n]] = array[cu[n] : cu[n + 1]]
        padded.append(tm.tensor(full.swapaxes(1, 2), requires_grad=True))
    for n, (r, c) in enumerate(lengths):
        place = np.arange(c) - (np.arange(r)[:, None] + c - r)
        mask[n, 0, :r, :c] = ((window[0] < 0) | (place >= -window[0])) & ((window[1] < 0) | (place <= window[1]))
    z = sdpa(*padded, tm.tensor(mask), enable_gqa=True)
    seed = normal(tuple(z.shape), seed=9)[0]
    z.backward(tm.tensor(seed))
    pick = lambda full, cu: np.concatenate([full[n, :, : cu[n + 1] - cu[n]].swapaxes(0, 1) for n in range(count)])  # noqa: E731
    y.backward(tm.tensor(pick(seed, rows)))
    np.testing.assert_allclose(values(y), pick(values(z), rows), rtol=1e-10, atol=1e-12)
    for found, other, cu in zip(packed, padded, (rows, columns, columns), strict=True):
        np.testing.assert_allclose(values(found.grad), pick(values(other.grad), cu), rtol=1e-10, atol=1e-12)


def test_varlen_dropout_is_the_same_in_backward():
    cu = tm.tensor([0, 3, 9])
    q, k = (tm.tensor(a, requires_grad=True) for a in normal((9, 1, 4), (9, 1, 4)))
    v = tm.tensor(np.eye(9)[:, None], requires_grad=True)
    y = varlen_attn(q, k, v, cu, cu, 6, 6, dropout_p=0.5)
    y.backward(tm.ones_like(y))
    np.testing.assert_allclose(values(v.grad)[:, 0, 0], values(y)[:, 0].sum(0), rtol=1e-12)
    shares = values(y)[:, 0]
    assert not shares[:3, 3:].any()
    assert not shares[3:, :3].any()


def test_varlen_keeps_tokens_not_rectangles():
    lengths = [5, 200, 17]
    cu = np.array([0, *itertools.accumulate(lengths)], np.int32)
    with memory.track("meta"), tm.device("meta"):
        q, k, v = (tm.ones(222, 4, 8, requires_grad=True) for _ in range(3))
        offsets = tm.tensor(cu)
        rows = memory.saved(lambda: varlen_attn(q, k, v, offsets, offsets, 200, 200))
    assert rows.total == 4 * (4 * 222 * 4 * 8) + 4 * 222 * 4 + cu.nbytes


# --- refused --------------------------------------------------------------------------------------------------------------

_Q, _CU = tm.ones(2, 3, 5, 4), [0, 2, 5]


def _packed(q: Any = None, cu: Any = _CU, most: int = 3, **options: Any) -> Any:
    q = tm.ones(5, 2, 4) if q is None else q
    return varlen_attn(q, q, q, tm.tensor(cu), tm.tensor(cu), most, most, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sdpa(_Q, _Q, _Q, tm.ones(5, 5), is_causal=True), RuntimeError, "Explicit attn_mask should not be set when"),
        (
            lambda: sdpa(_Q, _Q, _Q, tm.ones(5, 6)),
            RuntimeError,
            r"attn_mask \[5, 6\] does not broadcast to the scores \[2, 3, 5, 5\]",
        ),
        (lambda: sdpa(_Q, _Q, _Q, tm.ones(1, 2, 3, 5, 5)), RuntimeError, "does not broadcast to the scores"),
        (lambda: sdpa(_Q, _Q, _Q, tm.ones(5, 5).double()), RuntimeError, "Expected attn_mask dtype to be bool or to match"),
        (lambda: sdpa(_Q, _Q, _Q, tm.ones(5, 5, device="meta")), RuntimeError, "to be on the same device"),
        (lambda: sdpa(_Q, _Q.double(), _Q), RuntimeError, "Expected query, key, and value to have the same dtype"),
        (lambda: sdpa(_Q.long(), _Q.long(), _Q.long()), RuntimeError, "expected floating query, key and value"),
        (lambda: sdpa(_Q, tm.ones(2, 3, 5, 6), _Q), RuntimeError, "heads of query and key must have one size, found 4 and 6"),
        (lambda: sdpa(_Q, _Q, tm.ones(2, 3, 6, 4)), RuntimeError, "key and value must have the same number of tokens"),
        (lambda: sdpa(_Q, tm.ones(2, 2, 5, 4), _Q), RuntimeError, r"do not broadcast.*enable_gqa=True"),
        (lambda: sdpa(_Q, *[tm.ones(2, 2, 5, 4)] * 2, enable_gqa=True), RuntimeError, "a divisor of query's"),
        (lambda: sdpa(tm.ones(4), _Q, _Q), RuntimeError, "at least 2 dimensional"),
        (lambda: sdpa(_Q, _Q, _Q, dropout_p=1.5), ValueError, "dropout probability has to be between 0 and 1, but got 1.5"),
        (lambda: sdpa(*[tm.ones(1, 1, 2, 9000)] * 3), RuntimeError, "8192 numbers a head at most"),
        (lambda: _packed(tm.ones(5, 4)), RuntimeError, r"query must be \(tokens, heads, numbers\), found \[5, 4\]"),
        (lambda: _packed(cu=[0, 3, 2, 5]), ValueError, "cu_seq_q must not decrease"),
        (lambda: _packed(cu=[1, 5]), RuntimeError, "cu_seq_q must begin with 0 and end with the number of tokens, 5"),
        (lambda: _packed(cu=[0, 6]), RuntimeError, r"found \[0, 6\]"),
        (lambda: _packed(most=2), ValueError, "the longest sequence of cu_seq_q has 3 tokens, more than max_q=2"),
        (lambda: _packed(cu=[0.0, 5.0]), RuntimeError, "cu_seq_q must be a vector of int32 or int64"),
        (lambda: _packed(window_size=(-2, 0)), RuntimeError, "window_size must be"),
        (lambda: _packed(dropout_p=-1.0), ValueError, "between 0 and 1"),
        (lambda: _packed(softcap=0.0), ValueError, "softcap bounds the scores and must be positive, found 0.0"),
    ],
)
def test_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, tm.errors.TinygradMemError)


def test_a_network_around_it_learns():
    tm.manual_seed(0)
    layer, out = nn.Linear(4, 12), nn.Linear(4, 1)
    rule = tm.optim.Adam([*layer.parameters(), *out.parameters()], 0.02)
    x = tm.randn(64, 6, 4)
    wanted = x[:, :, :1].max(1)[0]
    for _ in range(150):
        q, k, v = layer(x).split(4, -1)
        loss = F.mse_loss(out(sdpa(q, k, v)).mean(1), wanted)
        rule.zero_grad()
        loss.backward()
        rule.step()
    assert loss.item() < 0.35 * float(values(wanted).var())
