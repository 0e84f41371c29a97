"""The casts of weights: made once a region, of the values that are there, counted, and gone at its end."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import values
from tests.memory.test_predict import assert_predicted
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import device
from tinygrad_mem.memory import Category
from tinygrad_mem.nn import functional as F

N = 64  # a float16 matrix of N x N is 8 KiB: no rounding in the pool
HALF = N * N * 2


@pytest.fixture
def used():
    """How many bytes the cpu's pool has more than before; nothing waits for the collector."""
    gc.collect()
    gc.disable()
    pool = device("cpu").pool
    before = pool.used_bytes()
    yield lambda: pool.used_bytes() - before
    gc.enable()


def weight() -> tm.Tensor:
    return tm.ones(N, N).requires_grad_()


def test_a_weight_is_cast_once_a_region_and_the_cast_goes_at_its_end(used):
    w = weight()
    entry = used()
    with tm.autocast("cpu", dtype=tm.float16), tm.no_grad():
        for _ in range(3):
            w @ w
        assert used() == entry + HALF
        with tm.autocast("cpu", dtype=tm.float16):
            w @ w
            assert used() == entry + HALF
        assert used() == entry + HALF, "the regions within share the casts, until the outermost ends"
    assert used() == entry
    assert gc.collect() == 0


def test_without_the_cache_nothing_is_kept(used):
    w = weight()
    entry = used()
    with tm.autocast("cpu", dtype=tm.float16, cache_enabled=False), tm.no_grad():
        assert not tm.is_autocast_cache_enabled()
        w @ w
        assert used() == entry


def test_clearing_the_cache(used):
    w = weight()
    entry = used()
    with tm.autocast("cpu", dtype=tm.float16), tm.no_grad():
        w @ w
        tm.clear_autocast_cache()
        assert used() == entry
    tm.clear_autocast_cache()


def test_an_exception_drops_the_casts_and_its_traceback_pins_none(used):
    w = weight()
    entry = used()
    kept = None
    try:
        with tm.autocast("cpu", dtype=tm.float16), tm.no_grad():
            w @ w
            w @ tm.ones(3, 3)
    except RuntimeError as error:
        kept = error
    assert kept is not None
    assert used() == entry


def test_what_is_no_weight_is_not_kept(used):
    entry = used()
    x, leaf = tm.ones(N, N), weight()
    with tm.autocast("cpu", dtype=tm.float16):
        view, made, double = leaf[:], leaf * 1, tm.ones(N, N).double().requires_grad_()
        with tm.no_grad():
            before = used()
            for tensor in (x, view, made):
                tensor @ tensor
            assert (double @ double).dtype == tm.float64
        assert used() == before
    del x, leaf, view, made, double, tensor
    assert used() == entry


def test_a_weight_that_went_away_does_not_lend_its_cast_to_the_next():
    with tm.autocast("cpu", dtype=tm.float16), tm.no_grad():
        for value in range(20):
            w = tm.full((2, 2), float(value)).requires_grad_()
            assert (w @ tm.eye(2))[0, 0].item() == value
            del w


# --- values ---------------------------------------------------------------------------------------------------------------


def in_place(w):
    w.mul_(3)


def through_a_view(w):
    w[:1].mul_(3)
    w[1:].mul_(3)


def new_memory(w):
    w.data = w.data * 3


def a_step(w):
    w.grad = tm.full((2, 2), -2.0)
    tm.optim.SGD([w], lr=1.0).step()


@pytest.mark.parametrize("change", [in_place, through_a_view, new_memory, a_step])
def test_a_weight_that_was_written_is_cast_again(change):
    """pytorch#48049."""
    w, x = tm.ones(2, 2).requires_grad_(), tm.ones(1, 2)
    with tm.autocast("cpu", dtype=tm.float16):
        assert (x @ w).tolist() == [[2, 2]]
        with tm.no_grad():
            change(w)
        assert (x @ w).tolist() == [[6, 6]]


def test_a_cast_made_under_no_grad_is_not_used_where_gradients_are_wanted():
    """pytorch#48049, #86136: it would get no gradient."""
    w, x = tm.ones(2, 2).requires_grad_(), tm.ones(1, 2)
    with tm.autocast("cpu", dtype=tm.float16):
        with tm.no_grad():
            x @ w
        y = x @ w
        assert y.requires_grad
    y.float().sum().backward()
    assert w.grad.tolist() == [[1, 1], [1, 1]]


def test_a_recorded_cast_serves_where_nothing_is_recorded(used):
    w = weight()
    with tm.autocast("cpu", dtype=tm.float16):
        y = w @ w
        before = used()
        with tm.no_grad():
            w @ w
        assert used() == before, "no second cast"
        assert len(scope.local.autocast.cache) == 1
    del y


@pytest.mark.parametrize("then", [tm.enable_grad, tm.no_grad, tm.inference_mode])
@pytest.mark.parametrize("first", [tm.enable_grad, tm.no_grad, tm.inference_mode])
def test_which_casts_serve_where(first, then):
    w, made = weight(), []
    with tm.autocast("cpu", dtype=tm.float16):
        for mode in (first, then):
            with mode():
                y = w @ w
            made.append(scope.local.autocast.cache[id(w)].tensor)
    shared = first is then or (first, then) == (tm.enable_grad, tm.no_grad)
    assert (made[0] is made[1]) == shared
    assert y.requires_grad == (then is tm.enable_grad)


def test_a_cast_made_in_inference_mode_stays_there():
    """pytorch#165068 and its like: an inference tensor cannot be saved."""
    w = tm.ones(2, 2).requires_grad_()
    with tm.autocast("cpu", dtype=tm.float16):
        with tm.inference_mode():
            w @ w
        y = (w @ w).float().sum()
    y.backward()
    assert w.grad.tolist() == [[4, 4], [4, 4]]


def test_two_backwards_of_one_region_share_a_cast():
    w = tm.ones(2, 2).requires_grad_()
    with tm.autocast("cpu", dtype=tm.float16):
        first = (tm.ones(1, 2) @ w).float().sum()
        second = (tm.full((1, 2), 2.0) @ w).float().sum()
    first.backward()
    second.backward()
    assert w.grad.tolist() == [[3, 3], [3, 3]]


def test_a_frozen_weight_gets_no_cast_of_its_own_in_the_cache():
    w = tm.ones(2, 2).requires_grad_()
    with tm.autocast("cpu", dtype=tm.float16):
        w @ w
        w.requires_grad_(False)
        assert not (w @ w).requires_grad


# --- bytes of a step ------------------------------------------------------------------------------------------------------

BATCH, CHANNELS, SIDE, CLASSES = 16, 8, 8, 16


def network(where: str = "cpu") -> nn.Module:
    with device(where):
        return nn.Sequential(
            nn.Conv2d(4, CHANNELS, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(CHANNELS * SIDE * SIDE, CLASSES, bias=False),
        )


def step(where: str, enabled: bool = True, cache: bool = True) -> memory.Track:
    with memory.track(where) as track:
        net = network(where)
        x = tm.randn(BATCH, 4, SIDE, SIDE, device=where)
        target = tm.zeros(BATCH, dtype=tm.int64, device=where)
        with tm.autocast("cpu", dtype=tm.float16, enabled=enabled, cache_enabled=cache):
            loss = F.cross_entropy(net(x), target)
            track.mark("region's end")
        track.mark("forward done")
        loss.backward()
        track.mark("backward done")
    return track


IMAGES, MAPS, SCORES = BATCH * 4 * SIDE * SIDE, BATCH * CHANNELS * SIDE * SIDE, BATCH * CLASSES
CONV, LINEAR = CHANNELS * 4 * 9, CHANNELS * SIDE * SIDE * CLASSES


def rounded(size: int) -> int:
    return -(-size // 512) * 512


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_bytes_of_a_step(where: str):
    track = step(where)
    end, after, done = (track.by_category(name) for name in ("region's end", "forward done", "backward done"))
    # the convolution keeps its input in half, ReLU its output (the linear layer's input), the loss its scores in float32
    kept = rounded(IMAGES * 2) + rounded(MAPS * 2) + rounded(SCORES * 4)
    for found in (end, after):
        assert kept <= found[Category.ACTIVATION] <= kept + 2 * 512 * 2  # and the loss's numbers, one a sample
    assert end[Category.ACTIVATION] == after[Category.ACTIVATION]
    assert end[Category.WEIGHT_CAST] == rounded(CONV * 2) + rounded(LINEAR * 2)
    assert after[Category.WEIGHT_CAST] == rounded(LINEAR * 2), "the first layer's input wants no gradient"
    assert done.get(Category.WEIGHT_CAST, 0) == 0
    assert done.get(Category.ACTIVATION, 0) == 0
    assert done[Category.GRADIENT] == done[Category.PARAMETER] == rounded(CONV * 4) + rounded(LINEAR * 4)


def test_bytes_against_float32_and_without_the_cache():
    half, single, uncached = step("cpu"), step("cpu", enabled=False), step("cpu", cache=False)
    at = "forward done"
    # in float32 the input is kept as it is (an input), and no scores: the loss keeps the linear layer's output
    assert single.by_category(at)[Category.ACTIVATION] - rounded(MAPS * 4) == (
        half.by_category(at)[Category.ACTIVATION] - rounded(IMAGES * 2) - rounded(MAPS * 2)
    )
    assert Category.WEIGHT_CAST not in single.by_category("region's end")
    assert uncached.by_category("region's end")[Category.WEIGHT_CAST] == rounded(LINEAR * 2)
    assert uncached.by_category(at) == half.by_category(at)


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_a_prediction_is_what_a_run_measures(kind: str):
    def run() -> None:
        net = network()
        optimizer = tm.optim.Adam(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            x = tm.randn(BATCH, 4, SIDE, SIDE)
            with tm.autocast(kind, dtype=tm.float16):
                loss = F.cross_entropy(net(x), tm.zeros(BATCH, dtype=tm.int64))
            loss.backward()
            optimizer.step()

    if kind == "cpu":
        track = assert_predicted(run)
    else:  # x.device.type of a tensor in a prediction
        track = memory.predict(run)
    assert rounded(LINEAR * 2) in {b.rounded for b in track.blocks() if b.category is Category.WEIGHT_CAST}


def test_the_tracker_says_whose_copy_it_is():
    with memory.track("cpu") as track:
        net = network()
        x = tm.randn(BATCH, 4, SIDE, SIDE)
        with tm.autocast("cpu", dtype=tm.float16):
            y = net(x)
            track.mark("here")
            cast = scope.local.autocast.cache[id(net[3].weight)].tensor
            assert "16,384 bytes of casts of weights" in track.explain(cast)
            assert "because it is autocast's copy of Sequential.3.weight" in track.explain(cast)
            del cast
    casts = [b for b in track.live("here") if b.category is Category.WEIGHT_CAST]
    assert sorted((b.requested, b.op, b.module) for b in casts) == [
        (CONV * 2, "Cast", "Sequential.0"),
        (LINEAR * 2, "Cast", "Sequential.3"),
    ]
    assert "casts of weights" in track.table()
    del y


def test_casts_are_of_the_right_values_in_a_network_used_twice():
    net, x = network(), tm.randn(BATCH, 4, SIDE, SIDE)
    with tm.autocast("cpu", dtype=tm.float16):
        first, second = values(net(x)), values(net(x))
    np.testing.assert_array_equal(first, second)
