"""Chunks: a last layer and its loss without all scores, and any function of a batch some rows at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.predicted import difference_on_gpu
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import round_up
from tinygrad_mem.errors import ArgumentError, DimensionError, DTypeError, NotOfferedError, ShapeError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import chunked, tiled

Options = nn.LinearCrossEntropyOptions
MIB = 1 << 20


def problem(n: int, d: int, v: int, *, bias: bool, ignored: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, v, n)
    target[:ignored] = -100
    arrays = [rng.standard_normal((n, d)), rng.standard_normal((v, d)), *([rng.standard_normal(v)] if bias else [])]
    return arrays, target


def results(
    arrays: list, target: np.ndarray, weight: np.ndarray | None, options: Options | None, **more: Any
) -> list[np.ndarray]:
    """The loss and all gradients, of our function."""
    x, w, *b = (tm.tensor(a, requires_grad=True) for a in arrays)
    given = {"linear_bias": b[0] if b else None, "weight": None if weight is None else tm.tensor(weight), **more}
    loss = F.linear_cross_entropy(x, w, tm.tensor(target), options=options, **given)
    (loss * tm.arange(1, loss.numel() + 1, dtype=loss.dtype).reshape(loss.shape)).sum().backward()
    return [loss.detach().numpy(), *[t.grad.numpy() for t in (x, w, *b)]]


@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(1, 15)),
    tile=st.tuples(st.integers(1, 14), st.integers(1, 17)),
    flags=st.tuples(st.booleans(), st.booleans()),
    ignored=st.integers(0, 3),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
@settings(max_examples=examples(80))
def test_equal_to_the_two_functions_and_to_pytorch(sizes, tile, flags, ignored, smoothing, reduction):
    """In float64 to 1e-10, whatever the tile, with ignored targets, smoothing, weights, biases and each reduction."""
    arrays, target = problem(*sizes, bias=flags[0], ignored=min(ignored, max(sizes[0] - 1, 0)))
    weight = np.linspace(0.2, 2, sizes[2]) if flags[1] else None
    more = {"reduction": reduction, "label_smoothing": smoothing}
    ours = results(arrays, target, weight, Options(batch_chunk_size=tile[0], class_chunk_size=tile[1]), **more)
    for a, b in zip(ours, results(arrays, target, weight, None, **more), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    x, w, *b = (torch.tensor(a, requires_grad=True) for a in arrays)
    scores = torch.nn.functional.linear(x, w, b[0] if b else None)
    given = {"weight": None if weight is None else torch.tensor(weight), **more}
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(target), **given)
    (loss * torch.arange(1, loss.numel() + 1).reshape(loss.shape)).sum().backward()
    for a, t in zip(ours, [loss.detach(), *[t.grad for t in (x, w, *b)]], strict=True):
        np.testing.assert_allclose(a, t.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(96, 24, 256), (33, 5, 1000), (3, 5, 40_000)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_tiles_that_fill_the_scratch(shape: tuple, smoothing: float):
    arrays, target = problem(*shape, bias=True, ignored=1)
    more = {"reduction": "mean", "label_smoothing": smoothing}
    for options in (Options(), Options(batch_chunk_size=1024, class_chunk_size=50_000)):
        found, expected = results(arrays, target, None, options, **more), results(arrays, target, None, None, **more)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_in_single_and_half_precision(dtype: str):
    """Half precision is summed in float32: nearer to the truth than scores that were rounded to half."""
    arrays, target = problem(50, 16, 300, bias=True, ignored=3)
    arrays = [a.astype(dtype) / 4 for a in arrays]
    truth = results([a.astype(np.float64) for a in arrays], target, None, None)
    tolerance = 1e-5 if dtype == "float32" else 1e-3
    for a, t in zip(results(arrays, target, None, Options(batch_chunk_size=16, class_chunk_size=64)), truth, strict=True):
        assert a.dtype == dtype
        assert np.abs(a - t).max() <= tolerance * max(1, np.abs(t).max())


def test_frozen_weights_and_losses_that_nobody_wants():
    arrays, target = problem(9, 4, 7, bias=True, ignored=1)
    x, w, b = (tm.tensor(a) for a in arrays)
    options = Options(batch_chunk_size=4, class_chunk_size=3)
    loss = F.linear_cross_entropy(x, w, tm.tensor(target), linear_bias=b, options=options)
    assert loss.grad_fn is None
    x.requires_grad_()
    F.linear_cross_entropy(x, w, tm.tensor(target), linear_bias=b, options=options).backward()
    expected = results(arrays, target, None, None)[1]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-10, atol=1e-10)
    one = F.linear_cross_entropy(x[3], w, tm.tensor(target[3]), linear_bias=b, options=options, reduction="none")
    assert one.shape == ()
    assert math.isnan(F.linear_cross_entropy(x, w, tm.full((9,), -100), options=options).item()), "the mean of nothing"
    layer = nn.LinearCrossEntropyLoss(4, 7, bias=True, options=options, dtype=tm.float64)
    layer(x, tm.tensor(target)).backward()
    assert layer.linear.weight.grad is not None


# --- bytes

N, D, V = 8192, 2304, 256000


def last_layer(options: Options | None, n: int = N, d: int = D, v: int = V, dtype: Any = tm.float16) -> None:
    """Forward and backward of a language model's last layer and loss; what is before it is one tensor."""
    x = tm.empty(n, d, dtype=dtype).requires_grad_()
    w = nn.Parameter(tm.empty(v, d, dtype=dtype))
    target = tm.zeros(n, dtype=tm.int64)
    memory.mark("begin")
    F.linear_cross_entropy(x, w, target, options=options).backward()


def test_bytes_of_a_vocabulary_of_256000_by_formula():
    """The published case of Cut Cross-Entropy: 4,000 MiB of scores in 2 bytes; here a tile, and the gradients."""
    states = 2 * (N * D + V * D) + 8 * N
    plain = memory.predict(last_layer, None).peak - states
    assert plain >= 2 * 2 * N * V == 2 * 4000 * MIB, "the scores and their gradient"
    rows, classes = 1024, 1024
    ours = memory.predict(last_layer, Options()).peak - states
    gradients = 2 * V * D + 4 * N * D  # the weight's; the input's in float32 until it is complete
    line = round_up(4 * N)
    tile = 4 * rows * classes + 4 * classes * D + 4 * rows * D  # of scores, and of weights and inputs in float32
    sums = 4 * classes * D  # of the weight's gradient
    rounded = 2 * N * D  # afterwards, the input's gradient in float16, beside its float32
    assert ours == gradients + max(tile + sums + line + 3 * 512, rounded + 2 * 512)
    assert ours < 1250 * MIB


@pytest.mark.parametrize("tile", [(64, 128), (1000, 1000), (7, 33)])
def test_bytes_in_float32_by_formula_on_meta_and_cpu(tile: tuple[int, int]):
    n, d, v = 300, 64, 1000
    rows, classes = min(tile[0], n), min(tile[1], v)

    def run() -> None:
        last_layer(Options(batch_chunk_size=tile[0], class_chunk_size=tile[1]), n, d, v, tm.float32)

    peak = training.assert_predicted(run).peak
    states = round_up(4 * n * d) + round_up(4 * v * d) + round_up(8 * n)
    assert peak == 2 * (states - round_up(8 * n)) + round_up(8 * n) + round_up(4 * rows * classes) + round_up(4 * n) + 3 * 512


@pytest.mark.parametrize("name", ["gpt2"])
def test_bytes_of_the_big_networks(name: str):
    """A GPT's peak is its scores and their gradient; with tiles it is elsewhere."""
    from tinygrad_mem.models import gpt

    def run(options: Options | None) -> None:
        model = gpt.gpt(name)
        head, model.lm_head = model.lm_head, nn.Identity()
        tokens = tm.randint(0, 50257, (2, 1024))
        F.linear_cross_entropy(model(tokens).reshape(2048, -1), head.weight, tokens.reshape(-1), options=options).backward()

    plain, ours = memory.predict(run, None).peak, memory.predict(run, Options()).peak
    scores = 4 * 2048 * 50257
    assert scores < plain - ours < 2 * scores


def test_never_above_pytorch_with_the_same_technique():
    n, d, v = 512, 64, 4000

    def theirs() -> Any:
        x, w = torch.ones(n, d, requires_grad=True), torch.ones(v, d, requires_grad=True)
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128)
        loss = torch.nn.functional.linear_cross_entropy(x, w, torch.zeros(n, dtype=torch.int64), options=options)
        loss.backward()
        return x.grad, w.grad

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that it fell back to the whole
        bound = pytorch_peak(theirs)
    ours = training.requested(memory.predict(last_layer, Options(batch_chunk_size=128), n, d, v, tm.float32))
    assert 0.4 * bound <= ours <= bound, (ours, bound)


# --- any function


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 1))
def test_chunked_is_equal_to_the_whole_and_its_gradients_are(rows: int, chunks: int, dim: int):
    rng = np.random.default_rng(0)
    x = tm.tensor(rng.standard_normal((rows, rows)), requires_grad=True)
    whole = x.exp().tanh() * 2
    whole.sum().backward()
    expected, x.grad = x.grad.numpy().copy(), None
    found = chunked(lambda part: part.exp().tanh() * 2, x, chunks, dim)
    found.sum().backward()
    np.testing.assert_array_equal(found.detach().numpy(), whole.detach().numpy())
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    with tm.no_grad():
        np.testing.assert_array_equal(chunked(lambda p: p.exp().tanh() * 2, x, chunks, dim).numpy(), whole.detach().numpy())


ROWS, WIDE = 64, 4096


def wide_function(x: Any) -> Any:
    """A hidden layer 64 times as wide as what it is between."""
    return (x.repeat(1, 64).exp()).reshape(len(x), 64, -1).sum(1)


def test_chunked_bytes_what_it_saves_and_what_not():
    """Without recording, temporaries fall to one part's; recorded, what is saved is saved for all parts."""
    x_bytes = ROWS * 64 * 4

    def run(chunks: int, grad: bool) -> None:
        x = tm.empty(ROWS, 64).requires_grad_(grad)
        with tm.set_grad_enabled(grad):
            y = chunked(wide_function, x, chunks)
        if grad:
            y.sum().backward()

    hidden = ROWS * WIDE * 4
    peaks = {(k, g): training.assert_predicted(lambda k=k, g=g: run(k, g)).peak for k in (1, 8) for g in (False, True)}
    assert peaks[1, False] == x_bytes + 2 * hidden
    assert peaks[8, False] == x_bytes + x_bytes + 2 * hidden // 8, "input, output, and one part's temporaries"
    assert peaks[8, True] >= x_bytes + hidden, "exp keeps its result of each part"
    assert peaks[8, True] < peaks[1, True]


# --- an MLP in tiles of tokens


def an_mlp(width: int, inner: int, **options: Any) -> tuple[nn.Module, Any]:
    """A network, and a function of each token alone; drawn again from the same seed each time."""
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, inner), nn.Tanh(), nn.Dropout(0.3), nn.Linear(inner, width)).to(**options)
    return model, model.__call__


@pytest.mark.parametrize("shape", [(1, 24, 6), (2, 23, 6), (7, 6)], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 8, 24, 100])
def test_tiled_is_equal_tile_by_tile(shape: tuple[int, ...], tokens: int):
    """The results of tiles; input gradients to the bit; sums over tiles to rounding; masks of dropout drawn again."""
    rng = np.random.default_rng(0)
    inputs, seeds = (tm.tensor(rng.standard_normal(shape)) for _ in range(2))
    step = -(-shape[-2] // -(-shape[-2] // tokens))  # tiles are even
    found: list[list[np.ndarray]] = []
    for way in ("tiled", "one after the other"):
        model, function = an_mlp(6, 9, dtype=tm.float64)
        x = inputs.clone().requires_grad_()
        if way == "tiled":
            y = tiled(function, x, tokens)
        else:
            y = tm.cat([function(x.narrow(-2, i, min(step, shape[-2] - i))) for i in range(0, shape[-2], step)], -2)
        grads = tm.autograd.grad(y, [x, *model.parameters()], seeds)
        found.append([t.detach().numpy() for t in (y, *grads)])
    for number, (a, b) in enumerate(zip(*found, strict=True)):
        np.testing.assert_allclose(a, b, rtol=0 if number < 2 else 1e-12, atol=0 if number < 2 else 1e-13)


def test_tiled_without_tiles_or_gradients_is_the_function():
    model, function = an_mlp(4, 8)
    model.eval()
    x = tm.randn(1, 10, 4)
    whole = function(x)
    assert tiled(function, x, None).grad_fn is not None
    np.testing.assert_array_equal(tiled(function, x, None).detach().numpy(), whole.detach().numpy())
    with tm.no_grad():
        np.testing.assert_allclose(tiled(function, x, 3).numpy(), whole.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("tokens", [256, 128, 64])
def test_tiled_bytes_by_formula(tokens: int):
    """In backward: the result's gradient and the input's, whole; one tile of the inside, and its gradient."""
    length, width, inner = 1024, 128, 512

    def run() -> None:
        up, down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        x, seed = tm.ones(1, length, width).requires_grad_(), tm.ones(1, length, width)
        y = tiled(lambda part: down(up(part).tanh()), x, tokens)
        loss = (y * seed).sum()
        del y
        loss.backward()

    x, weight, tile = 4 * length * width, 4 * width * inner, 4 * tokens * inner
    weights = 2 * weight + 2 * weight + weight  # two, their gradients, and a tile's part of one
    assert training.assert_predicted(run).peak == 4 * x + weights + 2 * tile + 2 * 512  # x, seed, two gradients; loss and 1


@pytest.mark.cuda
def test_tiled_on_a_gpu_is_predicted():
    def run() -> None:
        with tm.device("cuda"):
            model, function = an_mlp(16, 32)
            tiled(function, tm.ones(2, 12, 16).requires_grad_(), 5).sum().backward()
            del model

    assert difference_on_gpu(run) == ""


# --- bounded scores


@pytest.mark.parametrize("tile", [None, (3, 4), (50, 50)], ids=str)
def test_bounded_scores_are_the_formula(tile: tuple[int, int] | None):
    arrays, target = problem(9, 5, 11, bias=True, ignored=2)
    options = None if tile is None else Options(batch_chunk_size=tile[0], class_chunk_size=tile[1])
    ours = results(arrays, target, None, options, softcap=0.8, label_smoothing=0.1)
    x, w, b = (torch.tensor(a, requires_grad=True) for a in arrays)
    scores = torch.tanh((x @ w.T + b) / 0.8) * 0.8
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(target), label_smoothing=0.1)
    loss.backward()
    for a, t in zip(ours, (loss.detach(), x.grad, w.grad, b.grad), strict=True):
        np.testing.assert_allclose(a, t.numpy(), rtol=1e-10, atol=1e-12)


def test_bounded_scores_take_a_tile_more_in_backward():
    def run(cap: float | None) -> None:
        x, w = tm.ones(256, 64).requires_grad_(), nn.Parameter(tm.ones(1024, 64))
        tile = Options(batch_chunk_size=64, class_chunk_size=128)
        F.linear_cross_entropy(x, w, tm.zeros(256, dtype=tm.int64), options=tile, softcap=cap).backward()

    plain, bounded = (training.assert_predicted(lambda cap=cap: run(cap)).peak for cap in (None, 30.0))
    assert bounded - plain == 4 * 64 * 128


# --- bad input


def test_bad_input():
    x, w, t = tm.ones(3, 2), tm.ones(4, 2), tm.tensor([0, 1, 2])
    tile = Options()
    run = F.linear_cross_entropy
    with pytest.raises(DimensionError, match="Target 4 is out of bounds"):
        run(x, w, tm.tensor([0, 4, 2]), options=tile)
    with pytest.raises(ShapeError, match=r"expected an input of shape \(N, 2\) to a linear_weight of \[4, 2\], found \[3, 5\]"):
        run(tm.ones(3, 5), w, t, options=tile)
    with pytest.raises(ShapeError, match=r"expected a linear_bias of shape \[4\], found \[3\]"):
        run(x, w, t, linear_bias=tm.ones(3), options=tile)
    with pytest.raises(ShapeError, match=r"expected a target of shape \[3\], found \[2\]"):
        run(x, w, t[:2], options=tile)
    with pytest.raises(ShapeError, match=r"weight tensor should be defined either for all 4 classes"):
        run(x, w, t, weight=tm.ones(3), options=tile)
    with pytest.raises(DTypeError, match="linear_weight is float64, the input float32; cast one of them"):
        run(x, w.double(), t, options=tile)
    with pytest.raises(DTypeError, match="expected target dtype to be Long or Byte, but got int32"):
        run(x, w, t.int(), options=tile)
    with pytest.raises(NotOfferedError, match="class probabilities need all scores at once; leave options out"):
        run(x, w, tm.ones(3, 4), options=tile)
    with pytest.raises(NotOfferedError, match=r"\(C, d1, ..., D\) is not offered"):
        run(x, tm.ones(4, 3, 2), t)
    with pytest.raises(ArgumentError, match="label_smoothing must be between"):
        run(x, w, t, label_smoothing=2.0)
    with pytest.raises(NotOfferedError, match="chunking_method, acc_policy and acc_dtype are not offered"):
        Options(acc_policy="compact")
    with pytest.raises(ArgumentError, match="batch_chunk_size must be a positive whole number, found 0"):
        Options(batch_chunk_size=0)
    with pytest.raises(NotOfferedError, match="out_features is not offered"):
        nn.LinearCrossEntropyLoss(2, 4, out_features=(2,))
    with pytest.raises(ArgumentError, match="the number of parts of the input, expected 1 or more, found 0"):
        chunked(tm.exp, x, 0)
    with pytest.raises(ShapeError, match=r"of a part of shape \[2, 2\] the function made shape \[2\]; .* along dimension 1"):
        chunked(lambda part: part.sum(1), tm.ones(2, 4), 2, 1)
    with pytest.raises(ArgumentError, match="softcap bounds the scores and must be positive, found 0"):
        run(x, w, t, softcap=0)
    with pytest.raises(ArgumentError, match="tokens is the number that is computed at a time, expected 1 or more, found 0"):
        tiled(tm.exp, x, 0)
    with pytest.raises(DimensionError, match=r"expected to be in range of \[-1, 0\], but got -2"):
        tiled(tm.exp, tm.ones(3), 2)
    with pytest.raises(ShapeError, match="the function made int"):
        chunked(len, x, 2)  # type: ignore[arg-type]
