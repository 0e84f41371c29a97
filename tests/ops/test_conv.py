"""Convolutions against PyTorch: every option, each algorithm, the errors, and the CUDA sources on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tests.profiles import pairs, some
from tests.witness import numpy_allocations
from tinygrad_mem.kernels.numpy import conv as kernels
from tinygrad_mem.kernels.numpy.fast import (
    blas,
    conv_columns,
    conv_depthwise,
    conv_geometry,
    conv_rows,
    conv_taps,
    conv_winograd,
    threads,
)
from tinygrad_mem.nn import functional as F

sizes = st.integers(1, 3)


def normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(s) for s in shapes]


@given(st.data())
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_conv(axes: int, data: st.DataObject):
    each = st.tuples(*[sizes] * axes)
    kernel, stride, dilation = data.draw(each), data.draw(each), data.draw(each)
    padding = data.draw(st.tuples(*[st.integers(0, 2)] * axes))
    groups = data.draw(sizes)
    cin, cout, n = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2)), data.draw(st.integers(0, 3))
    spatial = tuple(
        max(d * (k - 1) + 1 - 2 * p, 1) + data.draw(st.integers(0, 4))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    shapes = [(n, cin, *spatial), (cout, cin // groups, *kernel), (cout,)][: 3 if data.draw(st.booleans()) else 2]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    name = f"conv{axes}d"
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    against_torch(lambda *t: ours(*t, **options), lambda *t: theirs(*t, **options), normal(*shapes))


@given(st.data())
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_conv_transpose(axes: int, data: st.DataObject):
    each = st.tuples(*[sizes] * axes)
    kernel, stride, dilation, spatial = (data.draw(each) for _ in range(4))
    extra = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    padding = tuple(data.draw(st.integers(0, d * (k - 1) // 2)) for k, d in zip(kernel, dilation, strict=True))
    groups = data.draw(sizes)
    cin, cout, n = groups * data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    shapes = [(n, cin, *spatial), (cin, cout, *kernel), (cout * groups,)][: 3 if data.draw(st.booleans()) else 2]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "output_padding": extra}
    name = f"conv_transpose{axes}d"
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    against_torch(lambda *t: ours(*t, **options), lambda *t: theirs(*t, **options), normal(*shapes))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_several_groups_are_summed_over_several_tiles(dtype: str):
    options, tolerance = {"padding": 1, "groups": 32}, (1e-3, 1e-3) if dtype == "float32" else (5e-2, 5e-2)
    run, reference = (lambda *t, f=f: f(*t, **options) for f in (F.conv2d, torch.nn.functional.conv2d))
    against_torch(run, reference, normal((16, 64, 20, 20), (64, 2, 3, 3)), dtype, tolerance=tolerance)


@pytest.mark.parametrize("kernel", [(2, 4), (3, 3), (1, 2)])
def test_same_padding_puts_the_odd_one_behind(kernel: tuple[int, int]):
    options = {"padding": "same", "dilation": (1, 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        against_torch(
            lambda *t: F.conv2d(*t, **options),
            lambda *t: torch.nn.functional.conv2d(*t, **options),
            normal((2, 3, 7, 12), (2, 3, *kernel)),
        )


@pytest.mark.parametrize("channels", [(0, 4), (4, 0), (0, 0)])
def test_without_channels_there_is_the_bias(channels: tuple[int, int], dev: str):
    """PyTorch refuses some of these, and gives others no channels."""
    cin, cout = channels
    x, w, bias = (tm.tensor(a, device=dev, requires_grad=True) for a in normal((3, cin, 5, 5), (cout, cin, 3, 3), (cout,)))
    y = F.conv2d(x, w, bias, padding=1)
    np.testing.assert_array_equal(values(y), np.broadcast_to(values(bias)[:, None, None], (3, cout, 5, 5)))
    y.sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    assert bias.grad is not None
    assert (x.grad.shape, w.grad.shape, bias.grad.tolist()) == (x.shape, w.shape, [75.0] * cout)
    assert not values(x.grad).any()
    assert F.conv_transpose2d(x, w.transpose(0, 1), padding=1).shape == (3, cout, 5, 5)


def test_unbatched_and_valid():
    arrays = normal((3, 7, 6), (4, 3, 3, 3), (4,))
    against_torch(lambda *t: F.conv2d(*t, padding="valid"), lambda *t: torch.nn.functional.conv2d(*t, padding="valid"), arrays)
    arrays = normal((3, 7), (3, 4, 3))
    against_torch(F.conv_transpose1d, torch.nn.functional.conv_transpose1d, arrays)


@given(
    st.tuples(sizes, sizes),
    st.tuples(sizes, sizes),
    st.tuples(sizes, sizes),
    st.tuples(*[st.integers(0, 2)] * 2),
    st.booleans(),
)
def test_unfold_and_fold(kernel, stride, dilation, padding, batched):
    options = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": padding}
    shape = (2, 3, 7, 8) if batched else (3, 7, 8)
    against_torch(lambda t: F.unfold(t, **options), lambda t: torch.nn.functional.unfold(t, **options), normal(shape))
    columns = torch.nn.functional.unfold(torch.zeros(shape), **options).shape
    against_torch(
        lambda t: F.fold(t, (7, 8), **options), lambda t: torch.nn.functional.fold(t, (7, 8), **options), normal(tuple(columns))
    )


def test_saves_only_what_the_other_gradient_needs():
    x, w = (tm.tensor(a) for a in normal((2, 3, 6, 6), (4, 3, 3, 3)))
    for y, name in ((F.conv2d(x, w.requires_grad_()), "x"), (F.conv2d(x.requires_grad_(), w.detach()), "weight")):
        assert y.grad_fn is not None
        assert y.grad_fn.saved.keys() == {name}
    y = F.conv2d(x.detach(), w)
    y.sum().backward()
    assert x.grad is None
    assert w.grad is not None


def test_a_gradient_that_is_a_broadcast_view():
    x, w = normal((2, 3, 6, 6), (4, 3, 3, 3))
    against_torch(lambda a, b: F.conv2d(a, b).sum(), lambda a, b: torch.nn.functional.conv2d(a, b).sum(), [x, w])


def test_half_is_accumulated_in_single():
    x, w, b = normal((2, 64, 9, 9), (8, 64, 3, 3), (8,))
    against_torch(
        lambda *t: F.conv2d(*t, padding=1), lambda *t: torch.nn.functional.conv2d(*t, padding=1), [x, w, b], "float16",
        tolerance=(2e-3, 2e-2),
    )  # fmt: skip


# --- algorithms

KINDS = ("forward", "input", "weight")
FLOATS = ["float16", "float32", "float64"]

WINOGRAD = [
    (2, 16, 16, 12, 12, 1), (1, 8, 24, 7, 5, 0), (3, 8, 8, 4, 4, 1), (2, 33, 17, 13, 30, 2), (40, 16, 8, 9, 9, 1),
    (1, 128, 96, 16, 16, 1), (64, 32, 32, 16, 16, 1), (9, 160, 130, 6, 7, 1), (1, 112, 112, 14, 11, 1), (4, 112, 112, 12, 9, 1),
    (1, 8, 24, 4, 512, 1), (1, 112, 112, 4, 512, 1),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "lanes"), pairs(WINOGRAD, [1, 2, 5]))
def test_winograd(sizes: tuple[int, ...], lanes: int, monkeypatch: pytest.MonkeyPatch):
    """Errors within 1e-5 of the largest value, whatever the number of lanes and what was in the workspace: nan, or 3e38."""
    n, c, o, h, w, p = sizes
    monkeypatch.setattr(threads._pool, "size", lanes)
    rng = np.random.default_rng(2)
    x, weight, bias = (rng.standard_normal(s, dtype=np.float32) for s in [(n, c, h, w), (o, c, 3, 3), (o,)])
    tensors = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, weight, bias)]
    expected = torch.nn.functional.conv2d(*tensors, padding=p)
    gy = rng.standard_normal(tuple(expected.shape), dtype=np.float32)
    expected.backward(torch.tensor(gy.astype(np.float64)))
    geo = conv_geometry.Geometry.of(x.shape, weight.shape, gy.shape, (1, 1), (p, p), (1, 1), 1, x.dtype)
    before = 255 if lanes == 1 else 127
    work = {kind: np.full(conv_winograd.workspace(geo, kind), before, np.uint8) for kind in KINDS}
    y, gx, gw, again = np.empty_like(gy), np.empty_like(x), np.empty_like(weight), np.empty_like(weight)
    conv_winograd.forward(geo, x, weight, bias, work["forward"], y)
    conv_winograd.backward_input(geo, gy, weight, None, work["input"], gx)
    conv_winograd.backward_weight(geo, gy, x, work["weight"], gw)
    for found, wanted in ((y, expected.detach()), (gx, tensors[0].grad), (gw, tensors[1].grad)):
        assert np.abs(found - wanted.numpy()).max() <= 1e-5 * np.abs(wanted.numpy()).max()
    conv_winograd.backward_weight(geo, gy, x, work["weight"], again)
    np.testing.assert_array_equal(gw, again)


@pytest.mark.parametrize(("images", "rows", "tiles"), [(1, 14, [(1, 8), (1, 6)]), (4, 12, [(4, 4)] * 3)])
def test_winograd_has_wide_tiles_of_many_channels(images: int, rows: int, tiles: list):
    """All images and several fours of rows, in the room of products that are not added at once."""
    shape = (images, 112, rows, 12)
    extent = conv_winograd._extent(shape, 112, 112)
    found = conv_winograd._tiles(shape, *extent)
    assert [(tile.n1 - tile.n0, tile.r1 - tile.r0) for tile in found] == tiles


@pytest.mark.parametrize("columns", [0, 1, 5, 64, 65])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float64", "float64"), ("float16", "float32")])
def test_copies_of_rows(columns: int, dtypes: tuple[str, str]):
    """Short rows of one dtype are copied as one element each, others number by number."""
    (values,) = normal((3, 4, 2, 70))
    values = values.astype(dtypes[0]).transpose(2, 1, 0, 3)[..., 3 : 3 + columns]
    whole = np.zeros((2, 4, 3, 71), dtypes[1])
    conv_geometry.copy_rows(values, whole[..., 1 : 1 + columns])
    np.testing.assert_array_equal(whole[..., 1 : 1 + columns], values)
    assert not whole[..., 0].any()
    assert not whole[..., 1 + columns :].any()
    turned = np.zeros((2, 4, columns, 3), dtypes[1]).swapaxes(2, 3)
    conv_geometry.copy_rows(values, turned)
    np.testing.assert_array_equal(turned, values)


@pytest.mark.parametrize("table", [blas._TURN, {}])
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("float64", "float64"), ("float16", "float32"), ("float32", "float16")]
)
def test_copies_that_turn_a_matrix(dtypes: tuple[str, str], table: dict, monkeypatch: pytest.MonkeyPatch):
    """By OpenBLAS where it has a function for the dtype, else by NumPy: the same numbers, also those that are none."""
    monkeypatch.setattr(blas, "_TURN", table)
    (values,) = normal((70, 9))
    values[:2] = [[np.nan], [np.inf]]
    values[2] = -0.0
    values = values.astype(dtypes[0])
    out = np.zeros((9, 70), dtypes[1])
    blas.copy_turned(values, out)
    np.testing.assert_array_equal(out, values.T.astype(dtypes[1]))
    assert np.signbit(out[:, 2]).all()


@pytest.mark.parametrize(("n", "channels", "chosen"), [(32, 32, True), (31, 32, False), (64, 31, False), (31, 48, True)])
def test_winograd_takes_fewer_channels_of_large_maps(n: int, channels: int, chosen: bool):
    """From 8,192 pixels in all images on."""
    x, w, ones = (n, channels, 16, 16), (channels, channels, 3, 3), (1, 1)
    ways = {kernels._way(kind, x, w, x, ones, ones, ones, 1, np.dtype(np.float32))[0] for kind in KINDS}
    assert (ways == {conv_winograd}) if chosen else (conv_winograd not in ways)


@pytest.mark.parametrize(("lanes", "dtype"), pairs([1, 3, 8], FLOATS))
def test_columns_in_small_tiles(lanes: int, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Several images, boxes and channel blocks a run, on any number of lanes."""
    monkeypatch.setattr(threads._pool, "size", lanes)
    monkeypatch.setattr(conv_columns, "WORKSPACE", 1 << 16)
    tolerance = {"float16": (5e-3, 0.1), "float32": (1e-4, 1e-4), "float64": (1e-10, 1e-10)}[dtype]
    for x, w, options in [
        ((5, 12, 9, 33), (7, 12, 5, 5), {"stride": 2, "padding": 2}),
        ((3, 70, 4, 4), (9, 70, 3, 2), {"padding": 1}),
        ((2, 6, 40, 40), (6, 3, 2, 2), {"groups": 2}),
    ]:
        against_torch(
            lambda a, b, c, options=options: F.conv2d(a, b, c, **options),
            lambda a, b, c, options=options: torch.nn.functional.conv2d(a, b, c, **options),
            normal(x, w, (w[0],)),
            dtype,
            tolerance=tolerance,
        )


MOSTLY_WEIGHT = [
    ((1, 128, 2, 2), (160, 128, 3, 3), 1, 1), ((2, 160, 4, 4), (128, 160, 3, 3), 1, 1),
    ((1, 128, 6, 6), (160, 128, 3, 3), 2, 1), ((1, 200, 6, 6), (300, 200, 1, 1), 2, 0),
    ((1, 90, 33), (700, 90, 31), 2, 0), ((2, 64, 2, 2, 2), (64, 64, 3, 3, 3), 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "lanes", "dtype"), pairs(MOSTLY_WEIGHT, [1, 2, 3, 8], FLOATS))
def test_small_maps_under_a_large_weight(sizes: tuple, lanes: int, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """The weight is read as it lies: no workspace as large as it is, whatever was in it (here: nan), on any number of lanes."""
    x, w, stride, low = sizes
    monkeypatch.setattr(threads._pool, "size", lanes)
    monkeypatch.setattr(conv_columns, "GRAIN", 1e3)  # so that output channels are shared
    monkeypatch.setattr(conv_geometry, "LARGE", 1)
    for cached in (kernels._way, kernels.conv_workspace):
        cached.cache_clear()
    name, rng = f"conv{len(x) - 2}d", np.random.default_rng(0)
    data, weight, bias = (rng.standard_normal(size).astype(dtype) for size in (x, w, (w[0],)))
    tensors = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (data, weight, bias)]
    expected = getattr(torch.nn.functional, name)(*tensors, stride=stride, padding=low)
    gy = rng.standard_normal(tuple(expected.shape)).astype(dtype)
    expected.backward(torch.tensor(gy.astype(np.float64)))
    settings = ((stride,) * (len(x) - 2), (low,) * (len(x) - 2), (1,) * (len(x) - 2), 1)
    shapes = (x, w, gy.shape)
    y, gx, gw = np.empty_like(gy), np.empty_like(data), np.empty_like(weight)
    work = {}
    for kind in KINDS:
        size = kernels.conv_workspace(kind, *shapes, *settings, data.dtype)
        if kind != "weight":
            assert kernels._way(kind, *shapes, *settings, data.dtype)[0] is conv_columns
            assert size <= conv_geometry.WORKSPACE or dtype == "float16"  # whose weights are cast, a channel at least
        work[kind] = np.full(size, 255, np.uint8)
    kernels.conv_forward(data, weight, bias, *settings, work["forward"], y)
    kernels.conv_backward_input(gy, weight, None, *settings, work["input"], gx)
    kernels.conv_backward_weight(gy, data, *settings, work["weight"], gw)
    tolerance = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}[dtype]
    for found, wanted in ((y, expected.detach()), (gx, tensors[0].grad), (gw, tensors[1].grad)):
        assert np.abs(found - wanted.numpy()).max() <= tolerance * np.abs(wanted.numpy()).max()


def test_small_maps_take_small_workspaces():
    """Enough for each of eight lanes: columns of all pixels, the input that they reach and the output, to a third and 2 KiB."""
    for pixels in (4, 16, 64):
        side = int(pixels**0.5)
        x, w = (1, 512, side, side), (512, 512, 3, 3)
        size = kernels.conv_workspace("forward", x, w, x, (1, 1), (1, 1), (1, 1), 1, np.dtype(np.float32))
        channel, group = 9 * pixels + (side + 2) ** 2, 512 * pixels
        lane = 4 * max(35 * channel + group, (channel + group) * 4 // 3)
        assert min(8 * lane, conv_geometry.WORKSPACE) <= size <= min(8 * (lane + 2100), conv_geometry.WORKSPACE)


ROWS = [
    ((9, 1, 28, 28), (6, 1, 5, 5), (1, 1), (2, 2)), ((30, 6, 14, 14), (16, 6, 5, 5), (1, 1), (0, 0)),
    ((5, 3, 17, 17), (8, 3, 3, 3), (2, 2), (1, 1)), ((5, 3, 16, 19), (8, 3, 3, 4), (1, 2), (0, 1)),
    ((2, 2, 5, 14), (3, 2, 2, 11), (3, 2), (4, 1)), ((4, 1, 33), (2, 1, 6), (1,), (0,)), ((3, 2, 20), (4, 2, 3), (2,), (1,)),
    ((33, 64, 4, 4), (70, 64, 3, 3), (2, 2), (1, 1)), ((2, 5, 6, 6), (4, 5, 1, 1), (2, 2), (0, 0)),
    ((3, 12, 9, 9), (6, 12, 3, 3), (1, 1), (1, 1)), ((2, 18, 9, 10), (4, 18, 2, 3), (1, 1), (0, 4)),
    ((3, 16, 5, 4), (7, 16, 3, 3), (1, 1), (3, 2)), ((2, 36, 12, 20), (5, 36, 1, 4), (1, 1), (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "lanes", "dtype"), pairs(ROWS, [1, 2, 7], FLOATS))
def test_rows(sizes: tuple, lanes: int, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Strides that leave phases without a tap, paddings beyond the kernel, one axis, narrow images, on any number of lanes.

    The last four have kernel columns that are shifted, for the output or for the gradient of x.
    """
    x, w, stride, low = sizes
    monkeypatch.setattr(threads._pool, "size", lanes)
    monkeypatch.setattr(conv_rows, "WORKSPACE", 1 << 17)  # so that there are several tiles
    arrays = normal(x, w, (w[0],))
    name = f"conv{len(x) - 2}d"
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    y = tuple(theirs(*map(torch.tensor, arrays), stride=stride, padding=low).shape)
    geo = conv_geometry.Geometry.of(x, w, y, stride, low, (1,) * len(stride), 1, np.dtype(dtype))
    assert all(conv_rows.fits(geo, kind) for kind in KINDS[:2])
    against_torch(
        lambda *t: ours(*t, stride=stride, padding=low),
        lambda *t: theirs(*t, stride=stride, padding=low),
        arrays,
        dtype,
        tolerance={"float16": (5e-3, 0.1), "float32": (1e-4, 1e-4), "float64": None}[dtype],
    )


TAPS = [
    ((9, 96, 2, 2), (100, 96, 3, 3), (1, 1)), ((8, 97, 4, 4), (96, 97, 3, 3), (1, 1)), ((8, 96, 1, 4), (96, 96, 1, 3), (0, 1)),
    ((11, 96, 3, 3), (99, 96, 5, 5), (2, 2)), ((8, 96, 4, 3), (96, 96, 2, 3), (0, 2)), ((8, 96, 2, 3), (96, 96, 3, 3), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("x", "w", "low"), TAPS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_taps(x: tuple, w: tuple, low: tuple, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Tiny maps, as PyTorch; the same bits on any number of cores, in parts, whatever was in the workspace (here: nan)."""
    monkeypatch.setattr(conv_taps, "_LANE", 1 << 15)
    monkeypatch.setattr(conv_taps, "_SUMS", 1 << 15)
    data, weight, bias = (a.astype(dtype) for a in normal(x, w, (w[0],)))
    tensors = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (data, weight, bias)]
    expected = torch.nn.functional.conv2d(*tensors, padding=low)
    gy = np.random.default_rng(3).standard_normal(tuple(expected.shape)).astype(dtype)
    expected.backward(torch.tensor(gy.astype(np.float64)))
    wanted = expected.detach(), tensors[0].grad, tensors[1].grad
    ones = (1, 1)
    geo = conv_geometry.Geometry.of(x, w, gy.shape, ones, low, ones, 1, np.dtype(dtype))
    assert all(kernels._way(kind, x, w, gy.shape, ones, low, ones, 1, data.dtype)[0] is conv_taps for kind in KINDS)
    found = []
    for lanes in (1, 2, 5):
        monkeypatch.setattr(threads._pool, "size", lanes)
        results = np.empty_like(gy), np.empty_like(data), np.empty_like(weight)
        work = {kind: np.full(conv_taps.workspace(geo, kind), 255, np.uint8) for kind in KINDS}
        kernels.conv_forward(data, weight, bias, ones, low, ones, 1, work["forward"], out=results[0])
        kernels.conv_backward_input(gy, weight, None, ones, low, ones, 1, work["input"], out=results[1])
        kernels.conv_backward_weight(gy, data, ones, low, ones, 1, work["weight"], out=results[2])
        found.append(results)
    for index, target in enumerate(wanted):
        error = np.abs(found[0][index].astype(np.float64) - target.numpy()).max() / np.abs(target.numpy()).max()
        assert error <= {"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}[dtype]
        for other in found[1:]:
            np.testing.assert_array_equal(other[index], found[0][index])


def test_taps_allocate_nothing():
    """Contracts are held to small convolutions, which other algorithms compute."""
    x, w, b = (tm.tensor(a, dtype=tm.float32, requires_grad=True) for a in normal((8, 96, 4, 4), (96, 96, 3, 3), (96,)))
    F.conv2d(x, w, b, padding=1).sum().backward()  # once, for the scratch of each thread
    with numpy_allocations() as seen:
        F.conv2d(x, w, b, padding=1).sum().backward()
    assert max(seen) <= 16


@pytest.mark.parametrize(("inside", "kernel", "low", "products"), [((2, 2), (3, 3), (1, 1), 16), ((4, 4), (3, 3), (1, 1), 100)])
def test_taps_that_exist(inside: tuple, kernel: tuple, low: tuple, products: int):
    """Every pair of pixels that a tap connects is in one run, and nothing else is."""
    pairs = [(r.tap, r.to + i, r.of + i) for r in conv_taps.runs(inside, inside, kernel, low) for i in range(r.length)]
    expected = [
        (i * kernel[1] + j, y * inside[1] + x, (y + i - low[0]) * inside[1] + x + j - low[1])
        for i, j, y, x in np.ndindex(*kernel, *inside)
        if 0 <= y + i - low[0] < inside[0] and 0 <= x + j - low[1] < inside[1]
    ]
    assert sorted(pairs) == sorted(expected)
    assert len(pairs) == products


DEPTHWISE = [
    ((3, 5, 9, 30), (3, 3), (1, 1), (1, 1)), ((1, 70, 40, 40), (3, 3), (2, 1), (1, 1)), ((2, 4, 6, 5), (2, 5), (1, 1), (0, 4)),
    ((2, 3, 25), (4,), (3,), (2,)), ((1, 2, 300, 400), (3, 3), (1, 1), (1, 1)), ((2, 6, 12, 12), (5, 5), (1, 2), (7, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "lanes", "dtype"), pairs(DEPTHWISE, [1, 2, 7], FLOATS))
def test_depthwise(sizes: tuple, lanes: int, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """One or two axes, maps larger than a tile, paddings beyond the kernel, on any number of cores, without a workspace."""
    x, kernel, dilation, low = sizes
    monkeypatch.setattr(threads._pool, "size", lanes)
    monkeypatch.setattr(threads, "GRAIN", 1 << 8)
    w, name = (x[1], 1, *kernel), f"conv{len(x) - 2}d"
    arrays = normal(x, w, (x[1],))
    options = {"padding": low, "dilation": dilation, "groups": x[1]}
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    y = tuple(theirs(*map(torch.tensor, arrays), **options).shape)
    geo = conv_geometry.Geometry.of(x, w, y, (1,) * len(kernel), low, dilation, x[1], np.dtype(dtype))
    assert all(conv_depthwise.fits(geo, kind) for kind in KINDS)
    assert conv_depthwise.workspace(geo, "forward") == 0
    against_torch(
        lambda *t: ours(*t, **options),
        lambda *t: theirs(*t, **options),
        arrays,
        dtype,
        tolerance={"float16": (5e-3, 0.2), "float32": (1e-4, 1e-3), "float64": None}[dtype],
    )


def test_workspace_is_bounded_and_a_function_of_shapes(monkeypatch: pytest.MonkeyPatch):
    for n in (1, 64, 4096):
        for kind in ("forward", "input", "weight"):
            settings = ((1, 1), (1, 1), (1, 1), 1, np.dtype(np.float32))
            shapes = (n, 16, 32, 32), (16, 16, 3, 3), (n, 16, 32, 32)
            found = set()
            for lanes in (1, 2, 64):
                monkeypatch.setattr(threads._pool, "size", lanes)
                kernels.conv_workspace.cache_clear()
                found.add(kernels.conv_workspace(kind, *shapes, *settings))
            assert len(found) == 1
            assert found.pop() <= 5 << 20


LARGE = [
    ((2, 1024, 14, 14), (1024, 1024, 3, 3), 1),
    ((2, 1024, 14, 14), (2048, 1024, 3, 3), 2),
    ((8, 512, 2, 2), (512, 512, 3, 3), 1),
]


@pytest.mark.parametrize(("x", "w", "stride"), LARGE)
@pytest.mark.parametrize("kind", KINDS)
def test_workspace_of_large_weights(x: tuple, w: tuple, stride: int, kind: str):
    """A transformed or reordered weight is held in parts, or not at all."""
    y = (x[0], w[0], *((n + 2 - 3) // stride + 1 for n in x[2:]))
    size = kernels.conv_workspace(kind, x, w, y, (stride, stride), (1, 1), (1, 1), 1, np.dtype(np.float32))
    assert 1 << 20 <= size <= 24 << 20


def test_products_that_add_need_no_openblas(monkeypatch: pytest.MonkeyPatch):
    a, b, out = normal((40, 30), (30, 70), (40, 70))
    expected = out + a @ b
    for table in (blas._GEMM, {}):
        monkeypatch.setattr(blas, "_GEMM", table)
        found = out.copy()
        blas.product(a, b, found, add=True)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        found = out.copy()
        blas.product(np.asfortranarray(a), b[::1], found, add=True)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        found = np.stack([out, 2 * out], axis=1).swapaxes(0, 1)
        blas.add_products(np.stack([a, 3 * a]), np.broadcast_to(b.T, (2, *b.T.shape)).swapaxes(1, 2), found)
        np.testing.assert_allclose(found, [expected, 2 * out + 3 * (a @ b)], rtol=1e-12)


def test_products_of_runs_need_no_openblas(monkeypatch: pytest.MonkeyPatch):
    """Each run of rows is multiplied and added where it belongs, also where runs overlap."""
    runs = [(1, 0, 3, 4), (0, 2, 1, 5), (2, 6, 0, 1)]  # (matrix, first row of one, of the other, rows)
    a, b, out, other, sums = normal((8, 30), (3, 30, 20), (7, 20), (8, 9), (3, 9, 30))
    expected, turned = out.copy(), sums.copy()
    for j, k, i, n in runs:
        expected[k : k + n] += a[i : i + n] @ b[j]
        turned[j] += other[k : k + n].T @ a[i : i + n]
    for table in (blas._GEMM, {}):
        monkeypatch.setattr(blas, "_GEMM", table)
        found = out.copy()
        blas.add_runs(a, np.concatenate([b, b], axis=2)[..., 20:], found, runs)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        found = sums.copy()
        blas.add_turned_runs(np.concatenate([other, other], axis=1)[:, 9:], a, found, runs)
        np.testing.assert_allclose(found, turned, rtol=1e-12)


def test_blas_gets_its_threads_back():
    if blas._get_threads is None:
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    before = blas._get_threads()
    with blas.single():
        with blas.single():
            assert blas._get_threads() == 1
        assert blas._get_threads() == 1
    assert blas._get_threads() == before


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x, w: F.conv2d(x[:, :2], w), tm.errors.ShapeError, "expected input to have 3 channels, but got 2"),
        (lambda x, w: F.conv2d(x, w, tm.zeros(5, dtype=x.dtype)), tm.errors.ShapeError, r"expected bias of shape \[4\]"),
        (lambda x, w: F.conv2d(x, w.float()), tm.errors.DTypeError, "weight type .float32. should be the same"),
        (lambda x, w: F.conv2d(x.long(), w), tm.errors.DTypeError, "expected a floating input"),
        (lambda x, w: F.conv2d(x[0, 0], w), tm.errors.ShapeError, r"Expected 3D \(unbatched\) or 4D"),
        (lambda x, w: F.conv2d(x, w[0]), tm.errors.ShapeError, "expected a 4D weight"),
        (lambda x, w: F.conv2d(x, w, stride=0), tm.errors.ShapeError, "zero or negative values"),
        (lambda x, w: F.conv2d(x, w, padding=-1), tm.errors.ShapeError, "negative values are not supported"),
        (lambda x, w: F.conv2d(x, w, dilation=(1, 1, 1)), tm.errors.ShapeError, "one integer or 2"),
        (lambda x, w: F.conv2d(x, w, dilation=9), tm.errors.ShapeError, "too small"),
        (lambda x, w: F.conv2d(x, w, groups=0), tm.errors.ShapeError, "non-positive groups"),
        (lambda x, w: F.conv2d(tm.cat([x, x, x], 1), w, groups=3), tm.errors.ShapeError, "divisible by groups"),
        (lambda x, w: F.conv2d(x, w, padding="full"), ValueError, "Invalid padding string"),
        (lambda x, w: F.conv2d(x, w, padding="same", stride=2), ValueError, "not supported for strided"),
        (lambda x, w: F.conv_transpose2d(x, w[:3], output_padding=1), tm.errors.ShapeError, "output padding must be smaller"),
        (lambda x, w: F.unfold(x[0, 0], 2), tm.errors.ShapeError, "Expected 3D or 4D"),
        (lambda x, w: F.unfold(x, 20), tm.errors.ShapeError, "no window fits"),
        (lambda x, w: F.fold(x, 4, 2), tm.errors.ShapeError, "Expected 2D or 3D"),
        (lambda x, w: F.fold(x[:, :, 0], 4, 2), tm.errors.ShapeError, "to be divisible by"),
        (lambda x, w: F.fold(x[:, :, 0], 4, 1), tm.errors.ShapeError, r"4 \* 4"),
        (lambda x, w: F.fold(x[:, :, 0].long(), 4, 1), tm.errors.DTypeError, "expected a floating input"),
    ],
)
def test_errors(call, error, match):
    x, w = (tm.tensor(a) for a in normal((2, 3, 6, 6), (4, 3, 3, 3)))
    with pytest.raises(error, match=match):
        call(x, w)


# --- the CUDA sources, without a GPU


@pytest.mark.parametrize("kind", some(["e", "f", "d"], ["e"]))  # one source: halves have the most of it
def test_cuda_source_compiles(kind: str, tmp_path: Path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    from tinygrad_mem.kernels.cupy import conv_source, raw

    (tmp_path / "conv.cu").write_text(raw.text(conv_source.SOURCE, **raw.types(kind)))
    subprocess.run([nvcc, "-arch=sm_90", "-cubin", "-o", tmp_path / "conv.cubin", tmp_path / "conv.cu"], check=True)


_SHIM = """
#include <cstring>
#define __global__
#define __device__
#define __shared__ static
#define __syncthreads()
struct Index { long long x; };
static Index blockIdx{0}, threadIdx{0}, blockDim{1}, gridDim{1};
template <typename V> V __shfl_xor_sync(unsigned, V, int) { return 0; }  // no other thread has a sum
"""


@pytest.fixture(scope="module")
def cuda_on_cpu(tmp_path_factory: pytest.TempPathFactory):
    """The CUDA kernels compiled as C++, run as one thread; sums by blocks become plain loops."""
    compiler = shutil.which("g++")
    pytest.importorskip("cupy")
    if compiler is None:
        pytest.skip("g++ is not installed")
    from tinygrad_mem.kernels.cupy import conv_source, raw

    folder = tmp_path_factory.mktemp("cuda")
    code = raw.text(conv_source.SOURCE, **raw.types("d")).replace("#include <cuda_fp16.h>", _SHIM).replace("+= 256", "+= 1")
    calls = 'extern "C" void set_blocks(long long b) { blockIdx.x = b; }\n'
    (folder / "conv.cpp").write_text(code + calls)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "conv.so", folder / "conv.cpp"], check=True)
    return ctypes.CDLL(str(folder / "conv.so"))


def as_argument(a):
    """A kernel's argument as C sees it: 32 bits, a pointer, or 64 bits."""
    if a is None:
        return ctypes.c_void_p()
    if hasattr(a, "__array_interface__") and np.ndim(a):
        return ctypes.c_void_p(a.__array_interface__["data"][0])
    return ctypes.c_int(int(a)) if type(a) is np.int32 else ctypes.c_longlong(a)


def test_gemm_reads_views_as_cublas_does(monkeypatch: pytest.MonkeyPatch):
    """A stand-in for cuBLAS, which counts columns first, finds the product in the memory that it is pointed to."""
    pytest.importorskip("cupy")
    from tinygrad_mem.kernels.cupy import blas as cuda_blas

    def matrix(pointer, rows, columns, lead, step, batch):
        memory = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_double)), (1,))
        return np.lib.stride_tricks.as_strided(memory, (batch, rows, columns), (8 * step, 8, 8 * lead))

    def stand_in(handle, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batch, compute, algo):
        left = matrix(a, k, m, lda, sa, batch).transpose(0, 2, 1) if ta else matrix(a, m, k, lda, sa, batch)
        right = matrix(b, n, k, ldb, sb, batch).transpose(0, 2, 1) if tb else matrix(b, k, n, ldb, sb, batch)
        out = matrix(c, m, n, ldc, sc, batch)
        assert lda >= (k if ta else m)
        assert ldb >= (n if tb else k)
        assert ldc >= m
        scale, kept = (ctypes.c_double.from_address(number).value for number in (alpha, beta))
        out[:] = scale * (left @ right) + kept * out

    def seen(x):
        pointer = types.SimpleNamespace(ptr=x.__array_interface__["data"][0])
        return types.SimpleNamespace(shape=x.shape, strides=x.strides, itemsize=8, size=x.size, dtype=x.dtype, data=pointer)

    modes = {"getPointerMode": lambda handle: 1, "setPointerMode": lambda handle, mode: None}
    cublas = types.SimpleNamespace(gemmStridedBatchedEx=stand_in, **modes)
    monkeypatch.setattr("cupy.cuda.device.get_cublas_handle", lambda: 0)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", types.SimpleNamespace(cublas=cublas))
    for batch, m, k, n in [(1, 3, 4, 5), (3, 2, 4, 6), (2, 1, 4, 1), (2, 3, 1, 4)]:
        a, b, out = normal((1, m, k), (batch, k, n), (batch, m, n + 2))
        for left in (a, np.ascontiguousarray(a.transpose(0, 2, 1)).transpose(0, 2, 1)):
            for right in (b, np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)):
                for alpha, beta in ((1, 0), (1, 1), (0.5, -2)):
                    found = out.copy()
                    expected = alpha * (left @ right) + beta * out[:, :, :n]
                    cuda_blas.gemm(seen(left), seen(right), seen(found[:, :, :n]), alpha, beta)
                    np.testing.assert_allclose(found[:, :, :n], expected, rtol=1e-12)
                    np.testing.assert_array_equal(found[:, :, n:], out[:, :, n:])


@pytest.mark.parametrize("room", [64 << 20, 3000])
@pytest.mark.parametrize(
    ("x", "w", "stride", "low", "dilation", "groups"),
    [
        ((3, 4, 9, 7), (5, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((2, 3, 9, 8), (5, 3, 3, 2), (2, 3), (1, 0), (2, 1), 1),
        ((3, 4, 9, 7), (6, 2, 3, 3), (2, 1), (1, 1), (1, 2), 2),
        ((2, 4, 8), (4, 1, 3), (1,), (1,), (1,), 4),
        ((2, 2, 4, 5, 3), (3, 2, 2, 2, 2), (1, 2, 1), (0, 1, 1), (1, 1, 1), 1),
    ],
)
def test_cuda_kernels_on_the_cpu(x, w, stride, low, dilation, groups, room, cuda_on_cpu, monkeypatch: pytest.MonkeyPatch):
    """The GPU's host code and kernels, with NumPy for CuPy and for cuBLAS, equal the CPU's."""
    from tinygrad_mem.kernels.cupy import conv as cuda

    def launch(name, like, count, arguments):
        blocks = like.shape[1] if name == "conv_channel_sum" else 1
        for number in range(blocks):
            cuda_on_cpu.set_blocks(ctypes.c_longlong(number))
            getattr(cuda_on_cpu, name)(*map(as_argument, arguments))
        cuda_on_cpu.set_blocks(ctypes.c_longlong(0))

    def gemm(a, b, out, beta=0):
        np.copyto(out, out + a @ b if beta else a @ b)

    monkeypatch.setattr(cuda, "_launch", launch)
    monkeypatch.setattr(cuda, "cupy", np)
    monkeypatch.setattr(cuda, "_WORKSPACE", room)
    monkeypatch.setattr(cuda._blas, "gemm", gemm)
    settings = (stride, low, dilation, groups)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(x[2:], w[2:], stride, low, dilation, strict=True)]
    data, weight, bias, shift, gy = normal(x, w, (w[0],), (x[1],), (x[0], w[0], *out))
    for kind, inputs, shape in [
        ("forward", (data, weight, bias), gy.shape),
        ("backward_input", (gy, weight, shift), x),
        ("backward_weight", (gy, data), w),
    ]:
        results = []
        for module in (kernels, cuda):
            size = module.conv_workspace(kind.split("_")[-1], x, w, gy.shape, *settings, data.dtype)
            result = np.full(shape, np.nan)
            getattr(module, f"conv_{kind}")(*inputs, *settings, np.empty(size, np.uint8), out=result)
            results.append(result)
        np.testing.assert_allclose(results[1], results[0], rtol=1e-10, atol=1e-10)
    sums = np.empty(w[0]), np.empty(w[0])
    kernels.conv_backward_bias(gy, out=sums[0])
    cuda.conv_backward_bias(gy, out=sums[1])
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-10)
    if len(x) == 4:
        kernel = w[2:]
        columns = normal((x[0], x[1], *kernel, *out))[0]
        for module, folded, unfolded in (
            (kernels, np.empty(x), np.empty_like(columns)),
            (cuda, np.empty(x), np.empty_like(columns)),
        ):
            module.fold_windows(columns, kernel, stride, low, dilation, out=folded)
            module.unfold_windows(data, kernel, stride, low, dilation, out=unfolded)
            if module is kernels:
                expected = folded, unfolded
        np.testing.assert_allclose(folded, expected[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(unfolded, expected[1])
