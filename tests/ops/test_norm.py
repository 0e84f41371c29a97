"""Normalisations against PyTorch: shapes, options, running statistics, halves, messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tinygrad_mem.kernels.numpy.fast import threads
from tinygrad_mem.nn import functional as F

T = torch.nn.functional
dtypes = st.sampled_from(["float64", "float32"])
FLOAT32 = (1e-4, 1e-4)


def normal(*shapes, shift=0.0):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s) + shift for s in shapes]


def compare(run, reference, arrays, dtype):
    against_torch(run, reference, arrays, dtype, tolerance=FLOAT32 if dtype == "float32" else None)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.integers(1, 6), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    dtypes,
)
def test_batch_norm(n, channels, sizes, weight, bias, training, dtype):
    if training and n * int(np.prod(sizes)) <= 1:
        n = 3
    arrays = normal((n, channels, *sizes), (channels,), (channels,))
    mean, var = normal((channels,), (channels,))
    var = var**2 + 0.1

    def under(f, make):
        def run(x, w, b):
            running = [make(mean.astype(dtype)), make(var.astype(dtype))]
            y = f(x, *running, w if weight else None, b if bias else None, training, 0.3, 1e-3)
            return (y, *running)

        return run

    compare(under(F.batch_norm, tm.tensor), under(T.batch_norm, torch.tensor), arrays, dtype)


def test_batch_norm_far_from_zero():
    """The variance is of differences from the mean: nothing cancels."""
    against_torch(
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: T.batch_norm(x, None, None, training=True),
        normal((16, 3, 40, 40), shift=1000.0),
        "float32",
        tolerance=(1e-3, 1e-3),
    )


def test_layer_norm_far_from_zero():
    """The variance is of differences from the mean, also where only some lines are far away."""
    (x,) = normal((300, 64))
    x[200:] += 1000.0
    against_torch(lambda x: F.layer_norm(x, (64,)), lambda x: T.layer_norm(x, (64,)), [x], "float32", tolerance=(1e-3, 1e-3))
    found = values(F.layer_norm(tm.tensor(x.astype(np.float32)), (64,)))
    np.testing.assert_allclose(found.std(1), 1.0, rtol=1e-3)


@pytest.mark.parametrize("shape", [(40, 16, 50, 50), (3, 5, 300, 301), (3000, 70), (2, 40000, 3)])
def test_batch_norm_in_many_tiles(shape):
    arrays = normal(shape, shape[1:2], shape[1:2])
    against_torch(
        lambda *t: F.batch_norm(t[0], None, None, *t[1:], training=True),
        lambda *t: T.batch_norm(t[0], None, None, *t[1:], training=True),
        arrays,
    )


def test_running_statistics_count_as_written():
    x, mean, var = tm.randn(4, 3), tm.zeros(3), tm.ones(3)
    F.batch_norm(x, mean, var, training=True)
    assert (mean._version, var._version) == (1, 1)
    F.batch_norm(x, mean, var)
    assert (mean._version, var._version) == (1, 1)


def test_batch_norm_of_a_frozen_layer_needs_no_weight_gradient():
    x = tm.randn(4, 3, 5).requires_grad_()
    F.batch_norm(x, tm.zeros(3), tm.ones(3)).sum().backward()
    np.testing.assert_allclose(values(x.grad), 1 / np.sqrt(1 + 1e-5), rtol=1e-6)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data(), st.booleans(), st.booleans(), dtypes)
def test_layer_norm(shape, data, weight, bias, dtype):
    last = tuple(shape[-data.draw(st.integers(1, len(shape))) :])
    if np.prod(last) < 2:
        last, shape = (4,), [*shape[:-1], 4]
    arrays = normal(tuple(shape), last, last)

    def under(f):
        return lambda x, w, b: f(x, last, w if weight else None, b if bias else None, 1e-2)

    compare(under(F.layer_norm), under(T.layer_norm), arrays, dtype)


@given(st.lists(st.integers(1, 5), max_size=2), st.integers(1, 9), st.booleans(), st.sampled_from([None, 1e-3]), dtypes)
def test_rms_norm(lead, size, weight, eps, dtype):
    arrays = normal((*lead, size), (size,))

    def under(f):
        return lambda x, w: f(x, (size,), w if weight else None, eps)

    compare(under(F.rms_norm), under(T.rms_norm), arrays, dtype)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), max_size=3), st.booleans(), dtypes)
def test_group_norm(n, groups, k, sizes, affine, dtype):
    if k * int(np.prod(sizes)) < 2:
        k = 3
    arrays = normal((n, groups * k, *sizes), (groups * k,), (groups * k,))

    def under(f):
        return lambda x, w, b: f(x, groups, *((w, b) if affine else (None, None)), 1e-2)

    compare(under(F.group_norm), under(T.group_norm), arrays, dtype)


@pytest.mark.parametrize("shape", [(0, 2, 3), (0, 2, 3, 4)])
def test_an_instance_norm_of_nothing_leaves_the_statistics(shape):
    """PyTorch's become nan, though its batch norm leaves them; nobody wants to lose them to an empty batch."""
    ours, theirs = ((f(lib.zeros(shape)), lib) for f, lib in ((F.instance_norm, tm), (T.instance_norm, torch)))
    assert tuple(ours[0].shape) == tuple(theirs[0].shape)
    mean, var = tm.zeros(shape[1]), tm.ones(shape[1])
    F.instance_norm(tm.zeros(shape), mean, var)
    assert mean.tolist() == [0.0] * shape[1]
    assert var.tolist() == [1.0] * shape[1]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("eps", [1e-5, 0.0, -1e-5])
def test_an_eps_of_zero_is_for_evaluation(eps, training):
    refused = []
    for f, lib in ((F, tm), (T, torch)):
        x = lib.arange(12.0).reshape(3, 2, 2)
        try:
            refused.append(f.batch_norm(x, lib.zeros(2), lib.full((2,), 4.0), training=training, eps=eps).tolist())
        except (ValueError, RuntimeError) as error:
            refused.append("eps" in str(error))
    np.testing.assert_allclose(*refused, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 5), st.booleans(), st.booleans())
def test_instance_norm(n, channels, size, affine, batch):
    arrays = normal((n, channels, size, 3), (channels,), (channels,))
    mean, var = normal((channels,), (channels,))

    def under(f, make):
        def run(x, w, b):
            running = [make(mean), make(var**2 + 0.1)]
            return (f(x, *running, *((w, b) if affine else (None, None)), batch, 0.2), *running)

        return run

    against_torch(under(F.instance_norm, tm.tensor), under(T.instance_norm, torch.tensor), arrays)


@pytest.mark.parametrize(("p", "dim"), [(2.0, 1), (1.0, -1), (3.0, 0)])
def test_normalize(p, dim):
    against_torch(lambda x: F.normalize(x, p, dim), lambda x: T.normalize(x, p, dim), normal((4, 5, 3)))


@pytest.mark.parametrize("shape", [(2100, 4), (3000, 70), (300, 257), (40, 5000)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_layer_norm_of_many_lines(shape, dtype, shift, monkeypatch):
    """Lines are cut into segments, whose shares of the parameters' gradients are the same on any number of threads.

    Lines whose means are beyond two deviations are centred first.
    """
    arrays = normal(shape, shape[-1:], shape[-1:], shift=shift)
    compare(
        lambda x, w, b: F.layer_norm(x, shape[-1:], w, b, 0.1),
        lambda x, w, b: T.layer_norm(x, shape[-1:], w, b, 0.1),
        arrays,
        dtype,
    )
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "_pool", threads._Pool())
        monkeypatch.setattr(threads._pool, "size", count)
        x, w, b = (tm.tensor(a.astype(dtype), requires_grad=True) for a in arrays)
        F.layer_norm(x, shape[-1:], w, b).square().sum().backward()
        found.append([t.grad.numpy().tobytes() for t in (x, w, b)])
    assert found[0] == found[1] == found[2]


def test_normalize_of_zeros():
    against_torch(F.normalize, T.normalize, [np.zeros((2, 3))])


def test_halves_get_statistics_of_floats():
    x = (np.random.default_rng(0).standard_normal((8, 4, 30, 30)) * 3 + 100).astype(np.float16)
    for run, reference in (
        (lambda t: F.batch_norm(t, None, None, training=True), lambda t: T.batch_norm(t, None, None, training=True)),
        (lambda t: F.layer_norm(t, (30,)), lambda t: T.layer_norm(t, (30,))),
        (lambda t: F.group_norm(t, 2), lambda t: T.group_norm(t, 2)),
    ):
        found = run(tm.tensor(x))
        assert found.dtype == tm.float16
        np.testing.assert_allclose(values(found), reference(torch.tensor(x).float()).numpy(), rtol=5e-3, atol=5e-3)


def test_no_images():
    x = tm.zeros(0, 3, 4).requires_grad_()
    F.layer_norm(x, (4,)).sum().backward()
    assert x.grad is not None
    assert tuple(x.grad.shape) == (0, 3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.batch_norm(tm.zeros(4), None, None, training=True), tm.errors.ShapeError, "at least 2 dimensions"),
        (lambda: F.batch_norm(tm.zeros(1, 3), None, None, training=True), ValueError, "more than 1 value per channel"),
        (lambda: F.batch_norm(tm.zeros(2, 3), None, None), ValueError, "running_mean and running_var"),
        (
            lambda: F.batch_norm(tm.zeros(2, 3), None, None, tm.ones(4), None, True),
            RuntimeError,
            "weight should contain 3 elements not 4",
        ),
        (
            lambda: F.batch_norm(tm.zeros(2, 3), tm.zeros(2), tm.ones(3)),
            RuntimeError,
            "running_mean should contain 3 elements not 2",
        ),
        (lambda: F.layer_norm(tm.zeros(2, 3), (4,)), RuntimeError, r"Given normalized_shape=\[4\]"),
        (lambda: F.layer_norm(tm.zeros(2, 3), (3,), tm.ones(2)), RuntimeError, "expected parameters of shape"),
        (lambda: F.group_norm(tm.zeros(2, 3), 2), RuntimeError, "divisible by num_groups"),
        (lambda: F.group_norm(tm.zeros(1, 3), 3), ValueError, "more than 1 value per channel"),
        (lambda: F.group_norm(tm.zeros(2, 4, 2), 2, tm.ones(3)), RuntimeError, "weight .* 4"),
        (lambda: F.instance_norm(tm.zeros(2, 3, 1)), ValueError, "more than 1 spatial element"),
        (
            lambda: F.instance_norm(tm.zeros(2, 3, 4), eps=0),
            ValueError,
            "eps is 0: a line of equal numbers would be divided by 0",
        ),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("size", [1, 3, 4])
def test_local_response_norm(size):
    run, reference = [lambda x, f=f: f(x, size, 0.3, 0.6, 2.0) for f in (F.local_response_norm, T.local_response_norm)]
    against_torch(run, reference, normal((2, 5, 3, 4)))
