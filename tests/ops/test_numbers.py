"""Numbers among the arguments of ``nn.functional``: what PyTorch refuses is refused in words, never taken as another number."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.errors import TinygradMemError
from tinygrad_mem.nn import functional as F

_random = np.random.default_rng(0)


def some(*shape: int) -> np.ndarray:
    return _random.standard_normal(shape).astype(np.float32)


LINES, PLANES, SPACE, ROWS = some(2, 4, 8), some(2, 4, 6, 6), some(1, 2, 4, 4, 4), some(3, 4)
INDEX, PAIRS, TABLE = np.array([1, 3, 0]), np.array([[0, 1, 3], [2, 2, 1]]), some(5, 3)
OUTSIDE, INSIDE = np.zeros(4, np.float32), np.ones(4, np.float32)
POOL: dict[str, Any] = {"kernel_size": 2, "stride": 2, "padding": 1}
CONV: dict[str, Any] = {"stride": 1, "padding": 1, "dilation": 1, "groups": 2}
TURNED: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 1}
CALLS: list[tuple[str, tuple, dict[str, Any]]] = [
    ("embedding", (PAIRS, TABLE), {"padding_idx": 1, "max_norm": 1.0, "norm_type": 2.0}),
    ("embedding_bag", (PAIRS, TABLE), {"padding_idx": 1, "max_norm": 1.0, "norm_type": 2.0}),
    ("one_hot", (INDEX,), {"num_classes": 5}),
    ("conv1d", (LINES, some(4, 2, 3)), CONV),
    ("conv2d", (PLANES, some(4, 2, 3, 3)), CONV),
    ("conv3d", (SPACE, some(2, 1, 2, 2, 2)), CONV),
    ("conv_transpose1d", (LINES, some(4, 2, 3)), TURNED),
    ("conv_transpose2d", (PLANES, some(4, 2, 3, 3)), TURNED),
    ("max_pool1d", (LINES,), POOL | {"dilation": 1}),
    ("max_pool2d", (PLANES,), POOL | {"dilation": 1}),
    ("max_pool3d", (SPACE,), POOL | {"dilation": 1}),
    ("avg_pool1d", (LINES,), POOL),
    ("avg_pool2d", (PLANES,), POOL | {"divisor_override": 3}),
    ("avg_pool3d", (SPACE,), POOL | {"divisor_override": 3}),
    ("adaptive_avg_pool1d", (LINES,), {"output_size": 2}),
    ("adaptive_avg_pool2d", (PLANES,), {"output_size": 2}),
    ("adaptive_avg_pool3d", (SPACE,), {"output_size": 2}),
    ("adaptive_max_pool1d", (LINES,), {"output_size": 2}),
    ("adaptive_max_pool2d", (PLANES,), {"output_size": 2}),
    ("unfold", (PLANES,), {"kernel_size": 2, "dilation": 1, "padding": 1, "stride": 2}),
    ("fold", (some(2, 16, 9),), {"output_size": 4, "kernel_size": 2, "dilation": 1, "padding": 0, "stride": 1}),
    ("pixel_shuffle", (PLANES,), {"upscale_factor": 2}),
    ("pixel_unshuffle", (PLANES,), {"downscale_factor": 2}),
    ("channel_shuffle", (PLANES,), {"groups": 2}),
    ("pad", (LINES,), {"pad": (1, 1), "value": 1.0}),
    ("interpolate", (PLANES,), {"size": 3}),
    ("interpolate", (PLANES,), {"scale_factor": 2.0}),
    ("glu", (ROWS,), {"dim": 1}),
    ("softmax", (ROWS,), {"dim": 1}),
    ("log_softmax", (ROWS,), {"dim": 1}),
    ("normalize", (ROWS,), {"p": 2.0, "dim": 1, "eps": 1e-12}),
    ("cosine_similarity", (ROWS, ROWS + 1), {"dim": 1, "eps": 1e-8}),
    ("pairwise_distance", (ROWS, ROWS + 1), {"p": 2.0, "eps": 1e-6}),
    ("group_norm", (PLANES,), {"num_groups": 2, "eps": 1e-5}),
    ("layer_norm", (ROWS, (4,)), {"eps": 1e-5}),
    ("rms_norm", (ROWS, (4,)), {"eps": 1e-5}),
    ("batch_norm", (PLANES, OUTSIDE, INSIDE), {"momentum": 0.1, "eps": 1e-5}),
    ("instance_norm", (PLANES,), {"momentum": 0.1, "eps": 1e-5}),
    ("local_response_norm", (PLANES,), {"size": 2, "alpha": 1e-4, "beta": 0.75, "k": 1.0}),
    ("leaky_relu", (ROWS,), {"negative_slope": 0.01}),
    ("elu", (ROWS,), {"alpha": 1.0}),
    ("celu", (ROWS,), {"alpha": 1.0}),
    ("hardtanh", (ROWS,), {"min_val": -1.0, "max_val": 1.0}),
    ("threshold", (ROWS,), {"threshold": 0.1, "value": 20.0}),
    ("softplus", (ROWS,), {"beta": 1.0, "threshold": 20.0}),
    ("gumbel_softmax", (ROWS,), {"tau": 1.0, "dim": -1}),
    ("dropout", (ROWS,), {"p": 0.5}),
    ("cross_entropy", (ROWS, INDEX), {"ignore_index": -100, "label_smoothing": 0.1}),
    ("nll_loss", (ROWS, INDEX), {"ignore_index": -100}),
    ("smooth_l1_loss", (ROWS, ROWS + 1), {"beta": 1.0}),
    ("huber_loss", (ROWS, ROWS + 1), {"delta": 1.0}),
    ("triplet_margin_loss", (ROWS, ROWS + 1, ROWS - 1), {"margin": 1.0, "p": 2.0, "eps": 1e-6}),
    ("scaled_dot_product_attention", (some(1, 2, 4, 4),) * 3, {"dropout_p": 0.0, "scale": 0.5}),
]
WRONG = {int: [1.5, 2.0, float("nan"), "2", 1j, [1.5], np.float64(2)], float: ["1", 1j, [1.0], (1.0, 2.0), float("nan")]}


def result(lib: Any, function: Any, given: tuple, numbers: dict) -> Any:
    """What a call gives, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*[lib.tensor(x) if isinstance(x, np.ndarray) else x for x in given], **numbers)
    except Exception as error:
        return error


@pytest.mark.parametrize(("name", "given", "numbers"), CALLS, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(CALLS)])
def test_what_pytorch_refuses_is_refused(name: str, given: tuple, numbers: dict):
    assert isinstance(result(tm, getattr(F, name), given, numbers), tm.Tensor)
    for which, right in numbers.items():
        for wrong in WRONG.get(type(right), ()):
            theirs = result(torch, getattr(torch.nn.functional, name), given, {**numbers, which: wrong})
            ours = result(tm, getattr(F, name), given, {**numbers, which: wrong})
            if isinstance(theirs, Exception):
                assert isinstance(ours, TinygradMemError), f"{which}={wrong!r} is refused by PyTorch: {theirs}; here {ours}"
                assert "not possible with these" not in str(ours), f"{which}={wrong!r}: {ours}"
                assert isinstance(ours, TypeError) or not isinstance(theirs, TypeError), f"{which}={wrong!r}: {ours!r}"


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: F.celu(x, 0), ValueError, "celu: alpha cannot be 0, the input is divided by it"),
        (lambda x: F.celu(x, 1e-40), ValueError, "celu: alpha cannot be 1e-40"),
        (lambda x: F.leaky_relu(x, float("inf")), ValueError, "leaky_relu: negative_slope must be finite, found inf"),
        (lambda x: F.elu(x, float("nan")), ValueError, "elu: alpha must be finite, found nan"),
        (lambda x: F.elu(x, cast(Any, "1")), TypeError, r"elu\(\): argument 'alpha' \(position 2\) must be float, not str"),
        (lambda x: F.interpolate(x[None], scale_factor=float("inf")), ValueError, "interpolate: scale_factor must be finite"),
        (lambda x: F.interpolate(x[None], size=1.5), TypeError, r"argument 'size' must be int or tuple of ints, found 1\.5"),
        (lambda x: F.adaptive_avg_pool1d(x[None], 1.5), TypeError, r"argument 'output_size' must be int or tuple of ints, fou"),
        (lambda x: F.cosine_similarity(x, x, eps=-1.0), ValueError, r"eps must be non-negative, found -1\.0"),
        (
            lambda x: tm.addcmul(x.byte(), x.byte(), x.byte(), value=-1),
            ValueError,
            r"addcmul\(\): .* -1 out of bounds for uint8",
        ),
        (lambda x: F.pixel_shuffle(x[None], 0), ValueError, "pixel_shuffle expects a positive upscale_factor, but got 0"),
        (lambda x: F.pixel_unshuffle(x[None], 0), ValueError, "pixel_unshuffle expects a positive downscale_factor, but got 0"),
        (
            lambda x: F.embedding_bag(tm.tensor([[0]]), x, max_norm=1.0, norm_type=-float("inf")),
            NotImplementedError,
            "embedding_bag: norm_type=-inf, the smallest entry, is not offered",
        ),
        (
            lambda x: F.embedding_bag(tm.tensor([[0]]), x, padding_idx=cast(Any, 1.5)),
            TypeError,
            r"embedding_bag\(\): argument 'padding_idx' must be int or None, not float",
        ),
    ],
)
def test_words(call: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        call(tm.tensor(ROWS))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_beta_too_small_to_be_divided_by(dtype: str):
    """Beyond such a beta the loss is that of L1: 1 / beta was infinite in float32, and so was the loss."""
    x, y = ROWS.astype(dtype), ROWS.astype(dtype) + 1
    for beta in (1e-40, 1e-30):
        ours = F.smooth_l1_loss(tm.tensor(x), tm.tensor(y), beta=beta)
        theirs = torch.nn.functional.smooth_l1_loss(torch.tensor(x), torch.tensor(y), beta=beta)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-6)


@pytest.mark.parametrize("beta", [0, 0.0, 1e-50])
def test_softplus_divided_by_0_is_infinite(beta: float):
    mine, other = (lib.tensor(ROWS, requires_grad=True) for lib in (tm, torch))
    for lib, x in ((tm, mine), (torch, other)):
        y = lib.nn.functional.softplus(x, beta)
        y.sum().backward()
        assert y.detach().isinf().all()
    assert mine.grad is not None
    np.testing.assert_array_equal(mine.grad.numpy(), other.grad.numpy())


@pytest.mark.parametrize("name", ["embedding", "embedding_bag"])
@pytest.mark.parametrize("norm", [0, 0.5, 1, 2.0, -1.0, float("inf")])
def test_every_norm_of_rows(name: str, norm: float, dev: str):
    weight = np.array([[1, 0, 3], [2, 2, 2], [0, 0, 0], [0.5, 0, 0]], np.float32)
    results = []
    for lib, where in ((tm, dev), (torch, "cpu")):
        table, index = lib.tensor(weight, device=where), lib.tensor([[0, 1], [2, 3]], device=where)
        getattr(lib.nn.functional, name)(index, table, max_norm=1.5, norm_type=norm)
        results.append(table.cpu().numpy())
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "bool"])
def test_xlogy_beside_numbers(dtype: str):
    for number in (0, 2, 0.1, True):
        mine, other = (lib.tensor([0, 1, 1], dtype=getattr(lib, dtype)) for lib in (tm, torch))
        for call in (lambda lib, x, number=number: lib.xlogy(x, number), lambda lib, x, number=number: lib.xlogy(number, x)):
            found, expected = call(tm, mine), call(torch, other).numpy()
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found.numpy(), expected, 1e-3 if dtype == "float16" else 1e-6)
    with pytest.raises(TypeError, match="one of input and other must be a Tensor"):
        tm.xlogy(cast(Any, 2), 3)


def test_numpys_numbers_are_taken():
    x, two = tm.tensor(LINES), cast(Any, np.int64(2))
    np.testing.assert_array_equal(F.adaptive_avg_pool1d(x, two).numpy(), F.adaptive_avg_pool1d(x, 2).numpy())
    np.testing.assert_array_equal(
        F.embedding_bag(tm.tensor(PAIRS), tm.tensor(TABLE), padding_idx=two).numpy(),
        torch.nn.functional.embedding_bag(torch.tensor(PAIRS), torch.tensor(TABLE), padding_idx=2).numpy(),
    )


def test_shifts_of_a_number_by_a_tensor():
    for run in (lambda x: 1 << x, lambda x: 64 >> x, lambda x: -9 >> x):
        mine, theirs = (run(lib.arange(4)) for lib in (tm, torch))
        assert mine.tolist() == theirs.tolist()
        assert str(mine.dtype) == str(theirs.dtype).removeprefix("torch.")


INFINITE = [(0, 3.0, 1), (0, float("inf"), 1), (0, float("inf"), 3), (float("-inf"), 1, 4), (0, float("nan"), 3)]


@pytest.mark.parametrize(("start", "end", "steps"), [*INFINITE, (0.1, 0.7, 3), (-1, 1 / 3, 5), (0, 7, 0)])
@pytest.mark.filterwarnings("error")
def test_linspace_is_pytorchs_to_the_last_digit(start: float, end: float, steps: int):
    mine, theirs = (lib.linspace(start, end, steps, dtype=lib.float64) for lib in (tm, torch))
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


WHOLE: dict[str, Any] = {
    "topk": lambda x, n: x.topk(n).values,
    "group_norm": lambda x, n: F.group_norm(x, n),
    "narrow": lambda x, n: x.narrow(0, n - 1, n),
    "select": lambda x, n: x.select(0, n),
    "triu": lambda x, n: x.triu(n),
    "diagonal": lambda x, n: x.diagonal(n),
    "repeat": lambda x, n: x.repeat(n, n),
    "expand": lambda x, n: x.expand(n, 4, 4),
    "pad": lambda x, n: F.pad(x, (n, n)),
    "unfold": lambda x, n: x.unfold(0, n, n),
    "eye": lambda x, n: tm.eye(n, 4),
    "one_hot": lambda x, n: F.one_hot(tm.arange(2), n),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_tensor_of_one_whole_number_is_that_number(name: str):
    """``topk`` and ``group_norm`` made a shape of it, and looked for memory without an end."""
    x = tm.arange(16.0).reshape(4, 4)
    found, expected = WHOLE[name](x, tm.tensor(2)), WHOLE[name](x, 2)
    assert all(type(size) is int for size in found.shape)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
