"""Poolings against PyTorch: every option, ties, nan, positions, halves, messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, flat, values
from tests.profiles import some
from tinygrad_mem.kernels.numpy.fast import pairs, windows
from tinygrad_mem.nn import functional as F

T = torch.nn.functional
dtypes = st.sampled_from(["float64", "float32"])
numbers = st.integers(1, 3)


def pair(name, *arguments, **options):
    ours, theirs = getattr(F, name), getattr(T, name)
    return lambda x: ours(x, *arguments, **options), lambda x: theirs(x, *arguments, **options)


def values_of(shape, ties):
    rng = np.random.default_rng(2)
    return [rng.integers(-2, 3, shape).astype(float) if ties else rng.standard_normal(shape)]


def fits(sizes, kernel, padding, dilation):
    return all(
        s + 2 * p >= d * (k - 1) + 1 and p <= k // 2 for s, k, p, d in zip(sizes, kernel, padding, dilation, strict=True)
    )


@st.composite
def geometries(draw, dilate):
    n = draw(numbers)
    several = st.lists(numbers, min_size=n, max_size=n).map(tuple)
    sizes = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    kernel, stride = draw(several), draw(several)
    padding = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n).map(tuple))
    dilation = draw(several) if dilate else (1,) * n
    assume(fits(sizes, kernel, padding, dilation))
    lead = draw(st.sampled_from([(2,), (2, 3)]))
    return (*lead, *sizes), n, kernel, stride, padding, dilation, draw(st.booleans())


@given(geometries(True), st.booleans(), dtypes)
def test_max_pool(geometry, ties, dtype):
    shape, n, kernel, stride, padding, dilation, ceil_mode = geometry
    x = values_of(shape, ties)
    both = pair(f"max_pool{n}d", kernel, stride, padding, dilation, ceil_mode, return_indices=True)
    seen = getattr(T, f"max_pool{n}d")(torch.zeros(shape), kernel, stride, padding, dilation, ceil_mode)
    if seen.isinf().any():  # of these windows PyTorch's indices name no entry, and its gradient writes outside of its memory
        with pytest.raises(tm.errors.ShapeError, match="sees only padding"):
            both[0](tm.tensor(x[0]))
        against_torch(*pair(f"max_pool{n}d", kernel, stride, padding, dilation, ceil_mode), x, dtype, grad=False)
        return
    against_torch(*both, x, dtype)


def test_max_pool_of_windows_that_see_only_padding():
    options = {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": (1, 2)}
    x = np.ones((2, 1, 1))
    against_torch(*pair("max_pool2d", **options), [x], grad=False)
    for tensor, indices in ((tm.tensor(x), True), (tm.tensor(x, requires_grad=True), False)):
        with pytest.raises(tm.errors.ShapeError, match="sees only padding"):
            F.max_pool2d(tensor, **options, return_indices=indices)


@pytest.mark.parametrize("points", [5, 64, 1 << 15])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation"),
    [
        ((40, 3, 21, 18), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((2, 2, 17, 19), (3, 2), (1, 2), (1, 0), (2, 3)),
        ((2, 3, 300), (5,), (2,), (2,), (1,)),
        ((1, 2, 6, 7, 9), (2, 3, 3), (1, 2, 3), (1, 0, 1), (1, 1, 2)),
    ],
)
def test_max_pool_in_tiles(shape, kernel, stride, padding, dilation, points, monkeypatch: pytest.MonkeyPatch):
    """Tiles of some planes, of some rows of a plane, of part of a row: each knows where its windows are."""
    monkeypatch.setattr(windows, "POINTS", points)
    both = pair(f"max_pool{len(kernel)}d", kernel, stride, padding, dilation, return_indices=True)
    against_torch(*both, values_of(shape, False), "float32")


@pytest.mark.parametrize("points", [7, 1 << 16])
@pytest.mark.parametrize("shape", [(2, 3, 6, 10), (1, 2, 2), (40, 3, 14, 2), (1, 1, 4, 40), (0, 2, 4, 4)])
def test_windows_that_cover_an_image_once(shape, points, monkeypatch: pytest.MonkeyPatch):
    """Ties: the first of a window's largest; nan anywhere; tiles of some lines, or no tile that a line fits in."""
    monkeypatch.setattr(pairs, "_POINTS", points)
    x = np.random.default_rng(3).integers(-1, 2, shape).astype(float)
    both = pair("max_pool2d", 2, return_indices=True)
    against_torch(*both, [x], "float32")
    x[..., ::3, ::4] = np.nan
    x[..., 1::4, :] = -np.inf
    against_torch(*both, [x], "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_windows_that_cover_an_image_are_moved_and_no_more(dtype):
    """Of any gradient, infinite or nan, the bits arrive, and its neighbours get 0."""
    x = tm.randn(3, 2, 8, 12, dtype=dtype, requires_grad=True)
    y, places = F.max_pool2d(x, 2, return_indices=True)
    gy = tm.randn(*y.shape, dtype=dtype)
    gy[0, 0], gy[1, 1] = np.inf, np.nan
    y.backward(gy)
    assert x.grad is not None
    expected = np.zeros((3, 2, 96), values(gy).dtype)
    np.put_along_axis(expected, values(places).reshape(3, 2, -1), values(gy).reshape(3, 2, -1), -1)
    assert values(x.grad).tobytes() == expected.tobytes()


def larger(shape, kernel):
    """Whether an image is as large as the kernel without its padding: PyTorch's avg_pool3d takes no other."""
    return all(size >= k for size, k in zip(shape[-len(kernel) :], kernel, strict=True))


@given(geometries(False), st.booleans(), dtypes)
def test_avg_pool(geometry, include, dtype):
    shape, n, kernel, stride, padding, _, ceil_mode = geometry
    assume(n < 3 or larger(shape, kernel))
    both = pair(f"avg_pool{n}d", kernel, stride, padding, ceil_mode, include)
    against_torch(*both, values_of(shape, False), dtype)


@given(geometries(False), st.integers(1, 7))
def test_avg_pool_with_a_divisor(geometry, divisor):
    shape, n, kernel, stride, padding, _, ceil_mode = geometry
    assume(n == 2 or (n == 3 and larger(shape, kernel)))
    both = pair(f"avg_pool{n}d", kernel, stride, padding, ceil_mode, True, divisor)
    against_torch(*both, values_of(shape, False))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data(), st.sampled_from([(2,), (2, 3)]))
def test_adaptive_pools(sizes, data, lead):
    n = len(sizes)
    wanted = tuple(data.draw(st.integers(1, 6)) for _ in sizes)
    against_torch(*pair(f"adaptive_avg_pool{n}d", wanted), values_of((*lead, *sizes), False))
    against_torch(*pair(f"adaptive_max_pool{n}d", wanted, return_indices=True), values_of((*lead, *sizes), False))
    against_torch(*pair(f"adaptive_max_pool{n}d", wanted), values_of((*lead, *sizes), False))


@given(st.data(), dtypes)
def test_max_unpool_of_what_was_pooled(data, dtype):
    """Windows may overlap: an entry that several chose is written once. The size that was pooled may be given."""
    several = st.lists(numbers, min_size=2, max_size=2).map(tuple)
    kernel, stride = data.draw(several), data.draw(several)
    sizes = data.draw(st.lists(st.integers(3, 7), min_size=2, max_size=2))
    lead = data.draw(st.sampled_from([(2,), (2, 3), (0, 3)]))
    padding = data.draw(st.integers(0, min(kernel) // 2))
    least = [(s + 2 * padding - k) // t * t + k - 2 * padding for s, k, t in zip(sizes, kernel, stride, strict=True)]
    size = data.draw(st.sampled_from([sizes, [2, 3, *sizes], *([None] if least == sizes else [])]))

    def both(f, x):
        y, places = f.max_pool2d(x, kernel, stride, padding, return_indices=True)
        return f.max_unpool2d(y * 2, places, kernel, stride, padding, size)

    against_torch(lambda x: both(F, x), lambda x: both(T, x), values_of((*lead, *sizes), False), dtype)


def test_adaptive_none_keeps_the_size():
    against_torch(*pair("adaptive_avg_pool2d", (None, 2)), values_of((2, 5, 7), False))


@pytest.mark.parametrize("shape", [(3, 5, 130, 131), (2, 300, 16, 16), (1, 1, 900, 901)])
def test_in_many_tiles(shape):
    for name, *arguments in (("max_pool2d", 2), ("max_pool2d", 3, 2, 1), ("avg_pool2d", 2), ("adaptive_max_pool2d", 1)):
        against_torch(*pair(name, *arguments), values_of(shape, False))


def test_windows_of_more_than_a_byte():
    x = values_of((2, 3, 40, 41), False)
    against_torch(*pair("max_pool2d", (20, 19), return_indices=True), x)
    against_torch(*pair("max_pool1d", 300), values_of((2, 3, 700), False))


def test_nan_is_the_largest():
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 6))
    x[0, 0, 1, 1] = x[0, 1, 4, 2] = np.nan
    for name, *arguments in (("max_pool2d", 2), ("max_pool2d", 3, 2, 1), ("adaptive_max_pool2d", (4, 5))):
        against_torch(*pair(name, *arguments), [x])


def test_minus_infinity_everywhere():
    against_torch(*pair("max_pool2d", 2, return_indices=True), [np.full((1, 1, 4, 4), -np.inf)])
    against_torch(*pair("max_pool2d", 3, 2, 1, return_indices=True), [np.full((1, 2, 5, 4), -np.inf)])
    against_torch(*pair("max_pool1d", 4, 1, 2, 2, return_indices=True), [np.full((1, 2, 9), -np.inf)])


def test_halves_are_summed_as_floats():
    x = np.full((1, 1, 64, 64), 1000.0, np.float16)
    for run in (lambda t: F.avg_pool2d(t, 32), lambda t: F.adaptive_avg_pool2d(t, 1)):
        np.testing.assert_array_equal(values(run(tm.tensor(x))), np.float16(1000))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("shape", [(2, 3, 20, 21), (1, 1, 300, 400), (70, 1, 5, 4)])
def test_gradients_of_halves_are_summed_as_floats(name, shape):
    """Windows that overlap: 63 of them leave no trace in a half that already holds 2048."""
    x = tm.tensor(np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape) % 2039, dtype=tm.float16)
    grads = []
    for dtype in (tm.float16, tm.float64):
        t = x.detach().to(dtype).requires_grad_()
        y = getattr(F, name)(t, 9, 1, 4)
        scale = 1 if name == "avg_pool2d" else 1 / 81
        g = (np.random.default_rng(2).integers(1, 2000, tuple(y.shape)) * scale).astype(np.float16)
        y.backward(tm.tensor(g, dtype=dtype))
        assert t.grad is not None
        grads.append(values(t.grad))
    np.testing.assert_allclose(grads[0], grads[1], rtol=1.5e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", some([np.float16, np.float32, np.float64], [np.float16]))
def test_more_planes_than_the_scratch_holds(dtype):
    x = tm.tensor(np.arange(2 * 600_000, dtype=np.int64).reshape(600_000, 1, 2) % 1000, dtype=np.dtype(dtype)).requires_grad_()
    for wanted in (1, 2):
        y, places = F.adaptive_max_pool1d(x, wanted, return_indices=True)
        np.testing.assert_array_equal(values(places)[:, 0, -1], 1)
        z = F.adaptive_avg_pool1d(x, wanted)
        (y.sum() + z.sum()).backward()
        np.testing.assert_array_equal(
            values(z)[::100_000], np.asarray(values(x)).reshape(-1, 1, wanted, 2 // wanted).mean(-1)[::100_000]
        )


def test_positions_cost_a_byte_each():
    """The caller's positions are not what is saved."""
    x = tm.randn(2, 3, 8, 8).requires_grad_()
    y, positions = F.max_pool2d(x, 2, return_indices=True)
    assert positions.dtype == tm.int64
    assert [a.nbytes for a in y.grad_fn.saved.values()] == [y.numel()]


def test_a_pooling_is_one_node():
    """Batch and channels are folded inside of the op: no views are recorded before and after it."""
    x = tm.randn(2, 3, 8, 8).requires_grad_()
    for y in (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3), F.adaptive_max_pool2d(x, 3)):
        assert y.grad_fn.next_functions[0][0].variable is x


def _unpool(shape=(1, 1, 2, 2), size=None, dtype="int64", place=0):
    return F.max_unpool2d(tm.zeros(1, 1, 2, 2), tm.full(shape, place, dtype=dtype), 2, output_size=size)


def test_unpool_refuses_other_indices():
    with pytest.raises(tm.errors.DTypeError, match="indices should be type int64 but got: int32"):
        _unpool(dtype="int32")
    with pytest.raises(tm.errors.DimensionError, match="index 16 is out of bounds"):
        _unpool(place=16)


@pytest.mark.parametrize("n", [4, 6, 8])
def test_windows_that_leave_gaps_or_hang_over_the_end_write_every_gradient(n):
    """As many windows as they are long, and dilated: what none of them names is 0, whatever the memory held before."""
    x = np.random.default_rng(n).permutation(n).astype(float).reshape(1, 1, n)
    junk = tm.empty(n, dtype=tm.float64).fill_(7.5)
    del junk
    against_torch(*pair("max_pool1d", 2, 2, 0, 2, ceil_mode=True), [x])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.max_pool2d(tm.zeros(2, 2), 2), "Expected 3D or 4D"),
        (lambda: F.max_pool2d(tm.zeros(1, 1, 2, 2), 3), "output size .* is too small"),
        (lambda: F.max_pool2d(tm.zeros(1, 1, 8, 8), 2, padding=2), "pad should be at most half"),
        (lambda: F.max_pool2d(tm.zeros(1, 1, 8, 8), 2, 0), "greater than zero"),
        (lambda: F.max_pool2d(tm.zeros(1, 1, 8, 8), (2, 2, 2)), "expected kernel_size to be one integer or 2"),
        (lambda: F.avg_pool1d(tm.zeros(1, 1, 2), 3), "output size .* is too small"),
        (lambda: F.avg_pool2d(tm.zeros(1, 1, 8, 8), 2, divisor_override=0), "divisor must be not zero"),
        (lambda: _unpool(size=(4, 9)), r"invalid output_size .* \(dim 1 must be between 2 and 6\)"),
        (lambda: _unpool(size=(1, 2, 3)), "sequence containing 2 or 4 elements, but it has a length of '3'"),
        (lambda: _unpool(shape=(1, 1, 2, 1)), "expected indices of the input's shape"),
        (lambda: F.adaptive_avg_pool2d(tm.zeros(2, 2), 1), "Expected 3D or 4D"),
        (lambda: F.adaptive_avg_pool2d(tm.zeros(1, 1, 4, 4), (1, 2, 3)), "output_size must be one number or 2"),
    ],
)
def test_refused(call, message):
    with pytest.raises(tm.errors.ShapeError, match=message):
        flat(call())


@pytest.mark.parametrize("shape", [(2, 3, 33, 41), (300, 2, 9, 11)])
@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "fold"])
def test_sums_of_halves_are_rounded_once(name: str, shape: tuple[int, ...]):
    rng = np.random.default_rng(1)
    if name == "fold":
        x = rng.standard_normal((shape[0], shape[1] * 25, (shape[2] - 4) * (shape[3] - 4))).astype(np.float16)
        run = lambda m, t: m.nn.functional.fold(t, shape[2:], 5)  # noqa: E731
        found, exact = run(tm, tm.tensor(x)).numpy(), run(torch, torch.tensor(x.astype(np.float64))).numpy()
    else:
        gy = rng.standard_normal((*shape[:2], 40, 6)).astype(np.float16)
        t = tm.zeros(*shape, dtype=tm.float16, requires_grad=True)
        o = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        tm.nn.functional.adaptive_avg_pool2d(t, (40, 6)).backward(tm.tensor(gy))
        torch.nn.functional.adaptive_avg_pool2d(o, (40, 6)).backward(torch.tensor(gy.astype(np.float64)))
        assert t.grad is not None
        assert o.grad is not None
        found, exact = t.grad.numpy(), o.grad.numpy()
    np.testing.assert_allclose(found, exact, rtol=2**-11 * 1.01, atol=2e-6)
