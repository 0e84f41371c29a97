"""Losses against PyTorch over shapes, options, reductions; their bytes; their refusals."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tinygrad_mem import scope
from tinygrad_mem.devices import device
from tinygrad_mem.functional import distance
from tinygrad_mem.functional import loss as ours
from tinygrad_mem.functional.ctc import ctc_loss

reductions = st.sampled_from(["none", "mean", "sum"])
dtypes = st.sampled_from(["float64", "float32"])
score_shapes = st.one_of(
    st.tuples(st.integers(1, 6)),
    st.tuples(st.integers(0, 5), st.integers(1, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
)


def constant(x: Any, values: np.ndarray) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.tensor(values, dtype=x.dtype)
    return tm.tensor(values.astype(x.dtype), device=x.device)


def targets(rng: np.random.Generator, shape: tuple, ignore: int | None = None) -> np.ndarray:
    classes, rest = (shape[0], ()) if len(shape) == 1 else (shape[1], (shape[0], *shape[2:]))
    found = np.asarray(rng.integers(0, classes, rest))
    if ignore is not None and found.size > 1:
        found.reshape(-1)[found.size // 2] = ignore
    return found


@given(score_shapes, reductions, dtypes, st.sampled_from([0.0, 0.1, 1.0]), st.booleans(), st.sampled_from([-100, 0, None]))
def test_cross_entropy(shape: tuple, reduction: str, dtype: str, smoothing: float, weighted: bool, ignore: int | None):
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal(shape) * 3, targets(rng, shape, ignore)
    values = rng.random(shape[0] if len(shape) == 1 else shape[1]) + 0.1
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -100 if ignore is None else ignore}

    def run(module: Any) -> Any:
        return lambda x, t: module.cross_entropy(x, t, constant(x, values) if weighted else None, **options)

    against_torch(run(ours), run(T), [x, t], dtype, tolerance=(1e-10, 1e-10) if dtype == "float64" else (1e-5, 1e-5))


@given(score_shapes, reductions, dtypes, st.sampled_from([0.0, 0.3]), st.booleans())
def test_cross_entropy_of_probabilities(shape: tuple, reduction: str, dtype: str, smoothing: float, weighted: bool):
    rng = np.random.default_rng(0)
    values = rng.random(shape[0] if len(shape) == 1 else shape[1]) + 0.1
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def run(module: Any) -> Any:
        return lambda x, p: module.cross_entropy(x, p, constant(x, values) if weighted else None, **options)

    tolerance = (1e-10, 1e-10) if dtype == "float64" else (1e-5, 1e-5)
    against_torch(run(ours), run(T), [rng.standard_normal(shape), rng.random(shape)], dtype, tolerance=tolerance)


@given(score_shapes, reductions, dtypes, st.booleans())
def test_nll_loss(shape: tuple, reduction: str, dtype: str, weighted: bool):
    rng = np.random.default_rng(0)
    values = rng.random(shape[0] if len(shape) == 1 else shape[1]) + 0.1

    def run(module: Any) -> Any:
        return lambda x, t: module.nll_loss(x, t, constant(x, values) if weighted else None, reduction=reduction)

    against_torch(run(ours), run(T), [rng.standard_normal(shape), targets(rng, shape, -100)], dtype)


@pytest.mark.parametrize("shape", [(3, 70_000), (1, 40_000, 2), (9000, 10), (3, 5, 20_000), (20_000, 3, 2)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_classes_and_many_samples(shape: tuple, smoothing: float):
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal(shape), targets(rng, shape, -100)
    values = rng.random(shape[1]) + 0.1
    for weighted in (False, True):

        def run(module: Any, weighted: bool = weighted) -> Any:
            return lambda x, t: module.cross_entropy(x, t, constant(x, values) if weighted else None, label_smoothing=smoothing)

        against_torch(run(ours), run(T), [x, t])
    against_torch(lambda x, p: ours.cross_entropy(x, p), T.cross_entropy, [x, rng.random(shape)])
    against_torch(lambda x, t: ours.nll_loss(x, t), T.nll_loss, [x, t])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_half_precision(reduction: str):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 6, 9)), rng.random((6, 9))
    t = targets(rng, (6, 9))
    tolerance = (4e-3, 4e-3)
    against_torch(
        lambda x, t: ours.cross_entropy(x, t, reduction=reduction),
        lambda x, t: T.cross_entropy(x.float(), t, reduction=reduction).half(),
        [x[0], t],
        "float16",
        tolerance=tolerance,
    )
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"):
        against_torch(
            lambda x, y, name=name: getattr(ours, name)(x, y, reduction=reduction),
            lambda x, y, name=name: getattr(T, name)(x.float(), y.float(), reduction=reduction).half(),
            [x[0], y],
            "float16",
            tolerance=tolerance,
        )


def test_a_sum_in_half_precision_does_not_saturate():
    x = tm.full((5000,), 0.25, dtype=tm.float16)
    assert float(ours.mse_loss(x, tm.zeros_like(x), reduction="sum")) == pytest.approx(312.5)


@given(st.lists(st.integers(0, 5), max_size=3), reductions, dtypes, st.sampled_from([0.0, 0.4, 1.0, 2.5]), st.booleans())
def test_pairs(shape: list, reduction: str, dtype: str, number: float, weighted: bool):
    rng = np.random.default_rng(0)
    x, y, weight = (np.asarray(a) for a in (rng.standard_normal(shape), rng.standard_normal(shape), rng.random(shape)))
    rows: list[tuple[str, dict]] = [("mse_loss", {}), ("l1_loss", {}), ("smooth_l1_loss", {"beta": number})]
    rows.append(("huber_loss", {"delta": number or 0.5}))
    for name, options in rows:

        def of(module: Any, name: str = name, options: dict = options) -> Any:
            more = {"weight": weight} if weighted and name != "smooth_l1_loss" else {}
            return lambda x, y: getattr(module, name)(
                x, y, reduction=reduction, **options, **{k: constant(x, w) for k, w in more.items()}
            )

        against_torch(of(ours), of(T), [x, y], dtype)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), reductions, dtypes, st.booleans(), st.booleans())
def test_binary_cross_entropy(shape: list, reduction: str, dtype: str, weighted: bool, positive: bool):
    rng = np.random.default_rng(0)
    p, y = rng.uniform(0.01, 0.99, shape), rng.random(shape)
    weight, heavier = rng.random(shape[-1]), rng.random(shape[-1]) * 3

    def plain(module: Any) -> Any:
        return lambda x, y: module.binary_cross_entropy(x, y, constant(x, weight) if weighted else None, reduction=reduction)

    def logits(module: Any) -> Any:
        return lambda x, y: module.binary_cross_entropy_with_logits(
            x,
            y,
            constant(x, weight) if weighted else None,
            reduction=reduction,
            pos_weight=constant(x, heavier) if positive else None,
        )

    tolerance = (1e-10, 1e-10) if dtype == "float64" else (1e-5, 1e-5)
    against_torch(plain(ours), plain(T), [p, y], dtype, tolerance=tolerance)
    against_torch(logits(ours), logits(T), [p * 40 - 20, y], dtype, tolerance=tolerance)


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["none", "mean", "sum", "batchmean"]), st.booleans())
def test_kl_div(shape: list, reduction: str, log_target: bool):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape), rng.standard_normal(shape) if log_target else rng.random(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says what "mean" means
        against_torch(
            lambda x, y: ours.kl_div(x, y, reduction=reduction, log_target=log_target),
            lambda x, y: T.kl_div(x, y, reduction=reduction, log_target=log_target),
            [x, y],
        )


def test_a_single_sample_and_mixed_dtypes():
    x = np.random.default_rng(0).standard_normal(5)
    for name in ("cross_entropy", "nll_loss"):
        for target in (np.asarray(2), np.array([2])):
            for reduction in ("none", "mean"):
                against_torch(
                    lambda x, t, n=name, r=reduction: getattr(ours, n)(x, t, reduction=r),
                    lambda x, t, n=name, r=reduction: getattr(T, n)(x, t, reduction=r),
                    [x, target],
                    grad=target.ndim == 0,  # PyTorch's backward refuses the shape that its forward took
                )
    byte = ours.cross_entropy(tm.tensor([x]), tm.tensor(np.array([2], np.uint8)))
    assert byte.item() == ours.cross_entropy(tm.tensor([x]), tm.tensor([2])).item()
    scores, p = tm.tensor(x[None].astype(np.float32)), tm.tensor(np.abs(x[None]))
    found, expected = ours.cross_entropy(scores, p), T.cross_entropy(torch.tensor(scores.numpy()), torch.tensor(p.numpy()))
    assert found.dtype == tm.float64
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)  # PyTorch takes its softmax in float32
    assert ours.mse_loss(scores, p).dtype == tm.float64


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("size", "shift"), [(1.0, 0.0), (1.0, 30.0), (1.0, -30.0), (1.0, -1e4), (20.0, 0.0), (1e4, 0.0)])
def test_scores_of_any_size(size: float, shift: float, dtype: str):
    """Small ones are summed as they are, large ones less their largest, also where only some lines are large."""
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((300, 7)), targets(rng, (300, 7), -100)
    for some in (slice(0, None), slice(200, None)):
        scores = x.copy()
        scores[some] = scores[some] * size + shift
        tolerance = None if dtype == "float64" else (1e-5, 1e-5 + 1e-6 * max(size, abs(shift)))
        against_torch(ours.cross_entropy, T.cross_entropy, [scores, t], dtype, tolerance=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_on_a_gpu_what_is_no_probability_makes_the_loss_nan(dtype: str):
    """PyTorch's kernel asserts there. Masks of 255 gave a loss that somebody would believe."""
    good = [0.0, 0.25, 0.5, 1.0]
    for bad in (255.0, -0.01, 1.01, float("nan"), float("inf")):
        for x, y in (([*good, 0.5], [*good, bad]), ([*good, bad], [*good, 0.5])):
            for reduction in ("none", "mean"):
                x, y = (tm.tensor(z, dtype=getattr(tm, dtype), device="cuda") for z in (x, y))
                found = ours.binary_cross_entropy(x, y, reduction=reduction).isnan().tolist()
                assert found == ([False] * 4 + [True] if reduction == "none" else True), f"{bad}, {reduction}"


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "prelu"])
def test_a_number_on_the_cpu_may_stand_beside_what_is_on_a_gpu(name: str):
    """It became a Python number, which these ops do not take: refused as a shape that does not fit."""
    run = getattr(tm.nn.functional, name)
    for shape in ((), (1,)):
        x, number = tm.full(shape, -0.5), tm.tensor(2.0)
        on_gpu = run(x.cuda().requires_grad_(), number)
        assert (str(on_gpu.device), on_gpu.tolist()) == ("cuda:0", run(x, number).tolist())


def test_extremes_equal_pytorch():
    for p, y in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)):
        x, t = np.array([p]), np.array([y])
        run = "binary_cross_entropy"
        assert float(getattr(ours, run)(tm.tensor(x), tm.tensor(t))) == float(getattr(T, run)(torch.tensor(x), torch.tensor(t)))
    x = np.array([1e4, -1e4, 0.0])
    found = ours.binary_cross_entropy_with_logits(tm.tensor(x), tm.tensor([0.0, 1.0, 0.5], dtype=tm.float64), reduction="none")
    np.testing.assert_allclose(found.numpy(), [1e4, 1e4, np.log(2)])
    assert float(ours.kl_div(tm.tensor([-1.0]), tm.tensor([0.0]), reduction="sum")) == 0.0
    assert float(ours.cross_entropy(tm.tensor([[1e4, -1e4]]), tm.tensor([1]))) == 2e4
    scores = [[np.inf, 0.0], [np.nan, 0.0]]
    mine, other = (
        ours.cross_entropy(tm.tensor(scores), tm.tensor([0, 0])),
        T.cross_entropy(torch.tensor(scores), torch.zeros(2).long()),
    )
    assert np.isnan(float(mine))
    assert np.isnan(float(other))


COMPOSED: list[tuple[str, list[str], dict]] = [
    ("cosine_similarity", ["x", "x"], {}),
    ("cosine_similarity", ["x", "x"], {"dim": 0, "eps": 1e-3}),
    ("pairwise_distance", ["x", "x"], {}),
    ("pairwise_distance", ["x", "x"], {"p": 1.0, "keepdim": True}),
    ("cosine_embedding_loss", ["x", "x", "sign"], {"margin": 0.2}),
    ("cosine_embedding_loss", ["x", "x", "sign"], {"reduction": "none"}),
    ("margin_ranking_loss", ["v", "v", "sign"], {"margin": 0.3}),
    ("margin_ranking_loss", ["v", "v", "sign"], {"reduction": "sum"}),
    ("triplet_margin_loss", ["x", "x", "x"], {}),
    ("triplet_margin_loss", ["x", "x", "x"], {"margin": 0.5, "p": 3, "swap": True, "reduction": "none"}),
    ("gaussian_nll_loss", ["x", "x", "variance"], {}),
    ("gaussian_nll_loss", ["x", "x", "column"], {"full": True, "reduction": "sum"}),
]


@pytest.mark.parametrize(("name", "kinds", "options"), COMPOSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(COMPOSED)])
def test_distances_and_margins(name: str, kinds: list, options: dict):
    rng = np.random.default_rng(1)
    make = {
        "x": lambda: rng.standard_normal((6, 5)),
        "v": lambda: rng.standard_normal(6),
        "sign": lambda: rng.choice([-1, 1], 6),
        "count": lambda: rng.integers(0, 5, 6),
        "positive": lambda: rng.random(6) + 0.1,
        "variance": lambda: rng.random((6, 5)) + 0.1,
        "column": lambda: rng.random((6, 1)) + 0.1,
    }
    arrays = [make[kind]() for kind in kinds]
    run, reference = getattr(distance, name), getattr(T, name)
    against_torch(lambda *a: run(*a, **options), lambda *a: reference(*a, **options), arrays)


# --- bytes


class Ear(scope.Listener):
    """The bytes taken and given back while it listens, and the most at once."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def malloc(self, where: Any, address: int, requested: int, rounded: int) -> None:
        self.now += rounded
        self.peak = max(self.peak, self.now)

    def free(self, where: Any, address: int, rounded: int) -> None:
        self.now -= rounded


def test_cross_entropy_takes_one_array_of_the_scores_size_in_backward():
    x, t = tm.zeros(512, 1000, requires_grad=True), tm.zeros(512, dtype=tm.int64)
    ear = Ear()
    scope.listen(ear)
    try:
        loss = ours.cross_entropy(x, t)
        small = ear.peak
        loss.backward()
    finally:
        scope.unlisten(ear)
    assert small <= 2 * 512 * 4 + 2 * 512, "forward takes two numbers a sample and two for the mean"
    assert ear.peak <= x.nbytes + 512 * 4 + 4 * 512, "backward takes the gradient, and nothing of its size besides"
    device("cpu").synchronize()


def test_scores_of_any_stride_take_no_copy():
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((40, 30, 50)), rng.integers(0, 50, (40, 30))
    turned = tm.tensor(x).transpose(1, 2)
    ear = Ear()
    scope.listen(ear)
    try:
        found = float(ours.cross_entropy(turned, tm.tensor(t)))
    finally:
        scope.unlisten(ear)
    assert ear.peak < x.nbytes / 2
    assert found == pytest.approx(float(T.cross_entropy(torch.tensor(x).transpose(1, 2), torch.tensor(t))), rel=1e-12)


def test_mse_saves_no_difference():
    x, y = tm.zeros(1 << 16, requires_grad=True), tm.zeros(1 << 16)
    ear = Ear()
    scope.listen(ear)
    try:
        loss = ours.mse_loss(x, y)
    finally:
        scope.unlisten(ear)
    assert ear.peak == 512
    loss.backward()


# --- refusals


def test_broadcasting_warns():
    with pytest.warns(UserWarning, match="likely lead to incorrect results due to broadcasting"):
        assert ours.mse_loss(tm.zeros(3, 2), tm.zeros(3, 1)).item() == 0.0


def test_old_arguments():
    x, y = tm.tensor([1.0, 3.0]), tm.tensor([0.0, 0.0])
    assert ours.mse_loss(x, y, size_average=False).item() == 10.0
    assert ours.mse_loss(x, y, reduce=False).tolist() == [1.0, 9.0]
    assert ours.mse_loss(x, y, True, True).item() == 5.0


def z(*shape: int) -> tm.Tensor:
    return tm.zeros(*shape)


def whole() -> tm.Tensor:
    return tm.tensor([1, 2])


def i(*shape: int) -> tm.Tensor:
    return tm.zeros(*shape, dtype=tm.int64)


@pytest.mark.parametrize(
    ("run", "error", "match"),
    [
        (
            lambda: ours.cross_entropy(z(4, 10), tm.tensor([0, 1, 2, 10])),
            IndexError,
            r"Target 10 is out of bounds\. There are 10 classes: expected 0 to 9",
        ),
        (lambda: ours.nll_loss(z(4, 10), tm.tensor([0, 1, 2, -1])), IndexError, r"Target -1 is out of bounds\."),
        (lambda: ctc_loss(z(4), whole(), 4, 2), IndexError, "Dimension out of range"),
        (
            lambda: ctc_loss(z(4, 3, 2, 1), whole(), 4, 2),
            RuntimeError,
            r"ctc_loss: expected log_probs of shape \(T, N, C\) or \(T, C\)",
        ),
        (lambda: ctc_loss(z(4, 3), z(2), 4, 2), RuntimeError, "ctc_loss: expected targets of int64 or int32, found float32"),
        (lambda: ctc_loss(z(4, 3), whole(), 4, 2, 3), ValueError, "ctc_loss: blank must be in label range, 0 to 2, found 3"),
        (
            lambda: ctc_loss(z(4, 3), whole(), 5, 2),
            RuntimeError,
            "expected input_lengths of at most 4, the rows of log_probs, found 5",
        ),
        (lambda: ctc_loss(z(4, 3), whole(), 4, 3), RuntimeError, "ctc_loss: expected target_lengths of at most 2, found 3"),
        (lambda: ctc_loss(z(4, 2, 3), whole(), (4, 4), (2, 1)), RuntimeError, r"of shape \(2, S\), or 3 in a line"),
        (lambda: ctc_loss(z(4, 3), whole(), (4, 4), 2), RuntimeError, r"input_lengths of 1 numbers, one a sample, .*\[4, 4\]"),
        (lambda: ctc_loss(z(4, 3), whole(), z(1), 2), RuntimeError, "input_lengths to be whole numbers, found float32"),
        (lambda: ctc_loss(z(4, 3), whole(), 4, 2, 1.5), TypeError, "blank"),
        (lambda: ctc_loss(z(4, 3), whole(), 4.5, 2), TypeError, r"input_lengths"),
        (lambda: ctc_loss(z(4, 3), whole() * 3, 4, 2), IndexError, "target 6 is out of bounds: labels are 0 to 2"),
        (lambda: ctc_loss(z(4, 3).half(), whole(), 4, 2), RuntimeError, "expected float32 or float64, found float16"),
        (
            lambda: ours.cross_entropy(z(4, 10), i(3)),
            ValueError,
            r"Expected input batch_size \(4\) to match target batch_size \(3\)",
        ),
        (
            lambda: ours.cross_entropy(z(4, 10), i(4, 1)),
            RuntimeError,
            "0D or 1D target tensor expected, multi-target not supported",
        ),
        (lambda: ours.cross_entropy(z(2, 3, 4), i(2, 3)), RuntimeError, r"Expected target size \[2, 4\], got \[2, 3\]"),
        (lambda: ours.cross_entropy(z(4, 10), z(4)), RuntimeError, "expected target dtype to be Long or Byte, but got float32"),
        (lambda: ours.cross_entropy(z(4, 10), i(4, 10)), RuntimeError, "Expected floating point type for target with class"),
        (lambda: ours.cross_entropy(z(4, 10), i(4), z(9)), RuntimeError, r"all 10 classes or no classes .* of shape: \[9\]"),
        (lambda: ours.cross_entropy(z(4, 10), i(4), z(10).double()), RuntimeError, "a weight of the input's dtype float32"),
        (lambda: ours.cross_entropy(z(4, 10), i(4), reduction="avg"), ValueError, "avg is not a valid value for reduction"),
        (lambda: ours.cross_entropy(z(4, 10), i(4), label_smoothing=2.0), ValueError, r"between 0.0 and 1.0. Got: 2.0"),
        (lambda: ours.cross_entropy(z(4, 10), z(4, 10), ignore_index=1), ValueError, "ignore_index is not supported"),
        (lambda: ours.cross_entropy(i(4, 10), i(4)), RuntimeError, "expected floating scores, found int64"),
        (lambda: ours.cross_entropy(tm.tensor(1.0), i(1)), RuntimeError, r"Expected 1 or more dimensions \(got 0\)"),
        (lambda: ours.cross_entropy(z(5), i(2)), ValueError, "For 1D input, 1D target must have size 1, but got target size"),
        (
            lambda: ours.cross_entropy(z(4, 2), i(4), z(2).requires_grad_()),
            NotImplementedError,
            "derivative for 'weight' is not implemented",
        ),
        (lambda: ours.mse_loss(i(2), i(2)), RuntimeError, "expected a floating input or target"),
        (lambda: ours.mse_loss(z(2), z(2), reduction="x"), ValueError, "x is not a valid value for reduction"),
        (lambda: ours.mse_loss(z(2), z(2), weight=z(3)), RuntimeError, "Inputs and weight must have the same size"),
        (lambda: ours.smooth_l1_loss(z(2), z(2), beta=-1), ValueError, "does not support negative values for beta"),
        (lambda: ours.huber_loss(z(2), z(2), delta=0), ValueError, "does not support non-positive values for delta"),
        (lambda: ours.binary_cross_entropy(z(2), z(3)), ValueError, r"different to the input size \(\[2\]\)"),
        (lambda: ours.binary_cross_entropy(z(2) - 1, z(2)), RuntimeError, "all elements of input should be between 0 and 1"),
        (lambda: ours.binary_cross_entropy(z(2), z(2) + 2), RuntimeError, "all elements of target should be between 0 and 1"),
        (lambda: ours.binary_cross_entropy(z(2), z(2) * float("nan")), RuntimeError, "all elements of target should be"),
        (lambda: ours.binary_cross_entropy_with_logits(z(2), z(3)), ValueError, "must be the same as input size"),
        (lambda: distance.cosine_embedding_loss(z(2, 3), z(2, 3), z(2, 2)), RuntimeError, "0D or 1D target tensor expected"),
        (
            lambda: distance.margin_ranking_loss(z(2, 3), z(2, 3), z(2)),
            RuntimeError,
            "should have same dimension but got sizes",
        ),
        (
            lambda: distance.triplet_margin_loss(z(2, 3), z(2, 3), z(2, 3), margin=-1),
            ValueError,
            "must be greater than 0, got -1",
        ),
        (lambda: distance.gaussian_nll_loss(z(2, 3), z(2, 3), -1.0), ValueError, "var has negative entry"),
        (
            lambda: distance.gaussian_nll_loss(z(2, 3), z(2, 3), z(2, 3) - 1),
            ValueError,
            "var has negative entry/entries: .*exp",
        ),
        (lambda: distance.gaussian_nll_loss(z(2, 3), z(2, 3), z(2, 2)), ValueError, "var is of incorrect size"),
    ],
)
def test_refusals(run: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        run()


def test_meta_reads_no_targets():
    x = tm.zeros(4, 10, device="meta", requires_grad=True)
    loss = ours.cross_entropy(x, tm.zeros(4, dtype=tm.int64, device="meta"), label_smoothing=0.1)
    loss.backward()
    assert list(x.grad.shape) == [4, 10]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "smoothing"),
    [*[((*s,), 0.0) for s in ((4, 0), (0,), (0, 0), (0, 3), (4, 0, 0), (0, 3, 2))], ((4, 0), 0.1), ((0,), 0.1), ((0, 3), 0.1)],
)
def test_without_classes_or_lines(shape: tuple, smoothing: float, reduction: str):
    """What was in the pool's memory before must not be the loss."""
    lines = tuple(n for i, n in enumerate(shape) if i != min(1, len(shape) - 1))
    calls = {
        "classes": lambda lib, x: lib.nn.functional.cross_entropy(
            x, lib.full(lines, -100, dtype=lib.int64), reduction=reduction, label_smoothing=smoothing
        ),
        "probabilities": lambda lib, x: lib.nn.functional.cross_entropy(
            x, lib.zeros(*shape), reduction=reduction, label_smoothing=smoothing
        ),
        "nll": lambda lib, x: lib.nn.functional.nll_loss(x, lib.full(lines, -100, dtype=lib.int64), reduction=reduction),
    }
    for name, call in calls.items():
        junk = tm.full((1000,), 7.25)
        del junk
        found = []
        for lib in (tm, torch):
            x = lib.zeros(*shape, requires_grad=True)
            y = call(lib, x)
            y.sum().backward()
            found.append(y.detach().numpy())
            assert tuple(x.grad.shape) == shape
        np.testing.assert_array_equal(*found, err_msg=name)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_cdist(p: float):
    """Also of points that are near each other, and the same: no distance is rounded away, and their gradient is 0."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1, 30, 3)) + 1000, rng.standard_normal((4, 28, 3)) + 1000
    b[0, 5] = a[1, 0, 3]
    against_torch(
        lambda x, y: tm.cdist(x, y, p),
        lambda x, y: torch.cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist"),
        [a, b],
    )
    for run, match in (
        (lambda: tm.cdist(tm.ones(3), tm.ones(2, 3)), r"rows of the same size, found \[3\] and \[2, 3\]"),
        (lambda: tm.cdist(tm.ones(2, 3), tm.ones(2, 2)), "rows of the same size"),
        (lambda: tm.cdist(tm.ones(2, 3), tm.ones(2, 3), -1), "non-negative p values, found -1"),
        (lambda: tm.cdist(tm.ones(2, 3), tm.ones(2, 3), 0), "p=0 has no gradient"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=match):
            run()


@pytest.mark.parametrize("points", [[[0.0, 0], [1, 1]], [[2, -2, 2.0], [0, 0, 1]]])
def test_cdist_of_equal_largest_differences(points: list, dev: str):
    """With p = inf each of them has all of the gradient in PyTorch: ours was shared among them."""
    x, y = np.array(points), np.array(points)[::-1] * np.array([[1.0], [-1.0]])
    against_torch(lambda x, y: tm.cdist(x, y, float("inf")), lambda x, y: torch.cdist(x, y, float("inf")), [x, y], device=dev)


def test_a_distance_of_nan_is_nan():
    """PyTorch's largest difference leaves nan out, by a comparison that is false."""
    rows = np.array([[0, np.nan], [1, 1]])
    x = tm.tensor(rows, requires_grad=True)
    for p in (0.5, 1, 2, 3, float("inf")):
        assert tm.cdist(x, x.detach(), p).isnan().tolist() == [[True, True], [True, False]], p
    tm.cdist(x, tm.ones(1, 2, dtype=tm.float64), float("inf")).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[0, np.nan], [0, 0]])
