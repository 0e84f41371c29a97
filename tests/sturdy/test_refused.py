"""What is refused where it would silently be something else, and in which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.nn import functional as F

HALF: Any = 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tm.zeros(3, dtype=tm.int64).exponential_(), "exponential_: .* the dtype must be floating, found int64"),
        (lambda: tm.zeros(3, dtype=tm.int32).uniform_(0, 9), "uniform_: .* the dtype must be floating, found int32"),
        (lambda: tm.zeros(3, dtype=tm.bool).normal_(), "normal_: .* the dtype must be floating, found bool"),
        (lambda: tm.rand(3, dtype=tm.uint8), "uniform_: .* the dtype must be floating, found uint8"),
        (lambda: tm.randn_like(tm.arange(3)), "normal_: .* the dtype must be floating, found int64"),
        (lambda: tm.normal(tm.arange(3), 1.0), "normal_: .* the dtype must be floating, found int64"),
        (lambda: tm.bernoulli(tm.arange(2)), "bernoulli: expected probabilities in a floating dtype, found int64"),
        (
            lambda: tm.nanmean(tm.ones(3, dtype=tm.int64)),
            r"nanmean\(\): expected input to have floating point dtype but got int64",
        ),
        (lambda: tm.take(tm.ones(3), tm.tensor([True])), r"take\(\): Expected a long tensor for index, but got bool"),
        (
            lambda: tm.masked_select(tm.ones(3), tm.tensor([1, 0, 1])),
            "masked_select: expected BoolTensor for mask, found int64",
        ),
        (lambda: tm.randint_like(tm.ones(3), HALF, 2), r"randint_like\(\): argument 'low' .* must be int, not float"),
        (
            lambda: tm.scatter(tm.ones(3, 4), 1, tm.zeros(3, 3, dtype=tm.int64), tm.ones(3, 2)),
            r"Expected index \[3, 3\] to be no larger than self .* no larger size than src \[3, 2\]",
        ),
        (lambda: tm.zeros(3).scatter_add_(0, tm.zeros(4, dtype=tm.int64), tm.ones(3)), "no larger size than src"),
        (
            lambda: tm.zeros(3).scatter_add_(0, tm.zeros(1, dtype=tm.int64), None),  # type: ignore[arg-type]
            "argument 'src'.* must be Tensor, not NoneType",
        ),
        (lambda: tm.randint(0, 2.5, (3,)), r"randint\(\): bounds must be integers, found 2.5 \(float\)"),
        (lambda: tm.randint(0, 5, (3,), dtype=tm.bool), r"from=0 or to - 1=4 is out of bounds for bool: 0 to 1"),
        (lambda: tm.zeros(3, dtype=tm.uint8).random_(-1, 5), r"from=-1 or to - 1=4 is out of bounds for uint8: 0 to 255"),
        (lambda: tm.zeros(3).random_(-5), "expects 'from' to be less than 'to', both in int64, but got from=0 >= to=-5"),
        (lambda: tm.zeros(3).random_(HALF), r"random_\(\): argument 'bounds' .* must be int or None, not float"),
        (lambda: tm.zeros(3).random_(True), r"random_\(\): bounds must be integers, found True \(bool\)"),
        (lambda: tm.zeros(3).random_(1, 2, to=3), r"random_\(\) takes at most 2 bounds, found \(1, 2, 3\)"),
        (lambda: tm.zeros(3).half().random_(0, 2**40), "or to - 1=1099511627775 is out of bounds for float16"),
        (lambda: tm.randperm(3, dtype=tm.bool), r"randperm\(\): not implemented for bool, which holds no numbers"),
        (lambda: tm.randperm(True), r"randperm\(\): argument 'n' \(position 1\) must be int, not bool"),
        (lambda: tm.randperm(300, dtype=tm.uint8), r"randperm\(\): n=300 numbers do not fit uint8, .* up to 255"),
        (lambda: tm.randperm(5000, dtype=tm.float16), r"n=5000 numbers do not fit float16, which holds integers up to 2048"),
        (lambda: tm.arange(3, dtype=tm.bool), r"arange\(\): not implemented for bool; compare the numbers"),
        (lambda: tm.linspace(0, 1, 3, dtype=tm.bool), r"linspace\(\): not implemented for bool"),
        (tm.rand, r"rand\(\) missing 1 required positional arguments: \"size\"; \(\) is the shape of one number"),
        (tm.randn, r"randn\(\) missing 1 required"),
        (
            lambda: tm.sub(tm.ones(3), tm.tensor([True, False, True]), alpha=2),
            "Subtraction, the `-` operator, with a bool tensor",
        ),
        (lambda: tm.tensordot(tm.ones(3, 4), tm.ones(4, 3), -1), r"tensordot expects dims >= 0, but got dims=-1"),
        (lambda: tm.tensordot(tm.ones(3, 4), tm.ones(4, 3), ([5], [0])), "Dimension out of range .* but got 5"),
        (lambda: tm.unflatten(tm.ones(3, 4), 1, (-1, -1)), "only one dimension can be inferred"),
        (lambda: tm.ones(3, 4).unfold(0, 2, -1), "step is -1 but must be > 0"),
        (lambda: tm.ones(3, 4).unfold(0, 2, 0), "step is 0 but must be > 0"),
        (lambda: tm.flip(tm.ones(3, 4), (0, 0)), "dim 0 appears multiple times"),
        (lambda: tm.repeat_interleave(tm.ones(3), -1), "repeats must be non-negative, found -1"),
        (lambda: tm.repeat_interleave(tm.ones(3), tm.tensor([1, -1, 2])), "repeats must be non-negative, found -1"),
        (
            lambda: tm.repeat_interleave(tm.ones(3, 2), tm.tensor([1, 2]), 0),
            r"expected repeats as one number for each of 3 entries, found \[2\]",
        ),
        (lambda: tm.bincount(tm.tensor([1, 2]), minlength=-3), "minlength should be >= 0, found -3"),
        (lambda: tm.tril_indices(-1, 3), "row must be non-negative, got -1"),
        (lambda: tm.triu_indices(2, -3), "col must be non-negative, got -3"),
        (lambda: tm.meshgrid(tm.ones(2, 3), indexing="ij"), r"Expected 0D or 1D tensor .* found \[2, 3\]"),
        (lambda: F.bilinear(tm.ones(3), tm.ones(2, 4), tm.ones(5, 3, 4)), "input dimensions do not match: got 1 and 2"),
        (
            lambda: F.bilinear(tm.ones(2, 3), tm.ones(2, 4), tm.ones(5, 3, 4), tm.ones(2, 5)),
            r"bias size does not match weight size: got \[2, 5\] but expected \[5\]",
        ),
        (
            lambda: F.bilinear(tm.ones(2, 3), tm.ones(2, 4), tm.ones(5, 3, 4), tm.tensor(1.0)),
            "the bias has no dimensions",
        ),
        (
            lambda: F.cosine_embedding_loss(tm.ones(3, 4), tm.ones(4), tm.ones(3)),
            r"1D target tensor expects 2D input tensors, but found inputs with sizes \[3, 4\] and \[4\]",
        ),
        (
            lambda: F.triplet_margin_loss(tm.ones(3, 4), tm.ones(4), tm.ones(3, 4)),
            "expected to have the same number of dimensions, but got: anchor 2D, positive 1D, and negative 2D",
        ),
        (
            lambda: F.conv2d(tm.ones(1, 1, 4, 4), tm.ones(1, 1, 2, 2), stride=(HALF, 1)),
            "argument 'stride'.* must be int or tuple",
        ),
        (lambda: tm.tril_indices(HALF, 2), "argument 'row'.* must be int, not float"),
        (lambda: F.embedding(tm.tensor([1]), tm.ones(3, 2), HALF), "argument 'padding_idx'.* must be int or None, not float"),
        (
            lambda: F.cross_entropy(tm.ones(2, 3), tm.tensor([0, 1]), ignore_index=HALF),
            "argument 'ignore_index' must be int, not float",
        ),
        (lambda: tm.bernoulli(tm.tensor([0.5, 2.0])), r"expected probabilities in \[0, 1\], found 0.5 to 2.0"),
        (lambda: tm.bernoulli(tm.tensor([math.nan])), "found nan to nan"),
        (lambda: tm.ones(2).bernoulli_(tm.tensor([-0.5, 1.0])), r"expected probabilities in \[0, 1\], found -0.5 to 1.0"),
        (lambda: tm.normal(0.0, tm.tensor([-1.0, 1.0])), "normal expects all elements of std >= 0.0, found -1.0 to 1.0"),
        (lambda: tm.normal(tm.zeros(2), -1.0), "normal expects std >= 0.0, but found std -1.0"),
        (lambda: tm.round(tm.tensor([12]), decimals=-1), "round to decimals: expected a floating tensor, found int64"),
        (lambda: tm.tensor([12]).round_(decimals=1), "round to decimals: expected a floating tensor, found int64"),
        (lambda: tm.ones(3).exponential_(-1.0), "exponential_ expects lambda > 0.0, but found lambda=-1.0"),
        (
            lambda: tm.ones(3).uniform_(-3e38, 3e38),
            r"uniform_ expects to - from <= 3.4.*e\+38, the largest float32, but found from=-3e\+38",
        ),
        (lambda: tm.ones(3).uniform_(math.nan, 1.0), "uniform_ expects .* found from=nan"),
        (lambda: tm.ones(3).normal_(0.0, math.nan), "normal_ expects std >= 0.0, but found std nan"),
    ],
)
def test_what_would_be_something_else(call: Callable[[], Any], words: str):
    with pytest.raises((RuntimeError, TypeError), match=words):
        call()


@pytest.mark.parametrize("value", [tm.tensor([1]), tm.tensor(1), tm.tensor([1.0], dtype=tm.float64)])
def test_a_value_of_another_dtype_is_not_written_where_a_tensor_indexes(value: tm.Tensor):
    x = tm.zeros(3)
    with pytest.raises(RuntimeError, match="self and source expected to have the same dtype, but got float32 and"):
        x[tm.tensor([0])] = value
    assert x.tolist() == [0, 0, 0]
    x[1:2] = value
    x[tm.tensor([True, False, False])] = tm.tensor(2)
    assert x.tolist() == [2, 1, 0]


NAN, INF = float("nan"), float("inf")
WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "full": lambda library, x, value: library.full((3,), value, dtype=x.dtype),
    "full_like": lambda library, x, value: library.full_like(x, value),
    "new_full": lambda library, x, value: x.new_full((3,), value),
    "fill_": lambda library, x, value: x.fill_(value),
    "masked_fill": lambda library, x, value: x.masked_fill(library.tensor([True, False, True]), value),
    "pad": lambda library, x, value: library.nn.functional.pad(x, (1, 1), value=value),
    "tensor": lambda library, x, value: library.tensor([value], dtype=x.dtype),
    "x[1]": lambda library, x, value: _written(x, 1, value),
    "x[...]": lambda library, x, value: _written(x, ..., value),
    "x[mask]": lambda library, x, value: _written(x, library.tensor([True, False, True]), value),
    "x[index]": lambda library, x, value: _written(x, library.tensor([0, 2]), value),
    "index_fill": lambda library, x, value: x.index_fill(0, library.tensor([1]), value),
    "scatter": lambda library, x, value: x.scatter(0, library.tensor([1]), value),
    "scatter_": lambda library, x, value: x.scatter_(0, library.tensor([1]), value),
    "threshold": lambda library, x, value: library.nn.functional.threshold(x, 1.0, value),
    "linspace": lambda library, x, value: library.linspace(0, value, 3, dtype=x.dtype),
    "fill_diagonal_": lambda library, x, value: x.expand(3, 3).clone().fill_diagonal_(value),
}
VALUES = [
    7e4,
    -7e4,
    65504,
    65510,
    1e39,
    NAN,
    INF,
    -INF,
    2**40,
    300,
    127,
    128,
    -128,
    -129,
    -1,
    -256,
    2.7,
    -2.7,
    -0.5,
    127.5,
    True,
]


def _written(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("write", WRITES)
def test_a_number_that_a_dtype_does_not_hold(write: str, value: Any):
    """Refused where PyTorch refuses it, and the same numbers where it does not; what is refused changes nothing."""
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"):
        if write == "pad" and dtype == "uint8" and value < 0:
            continue  # PyTorch pads with a double, which does not wrap round
        if (write == "threshold" and dtype == "bool") or (write == "linspace" and (dtype == "bool" or abs(value) == INF)):
            continue  # PyTorch has none for bools; a line to inf is all nan there
        ours, theirs = (library.zeros(3, dtype=getattr(library, dtype)) for library in (tm, torch))
        try:
            expected = WRITES[write](torch, theirs, value).tolist()
        except RuntimeError:
            with pytest.raises(RuntimeError, match=r"value cannot be converted to type .* without overflow"):
                WRITES[write](tm, ours, value)
            assert ours.tolist() == [0, 0, 0], dtype
        else:
            assert str(WRITES[write](tm, ours, value).tolist()) == str(expected), dtype


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "bool"])
def test_full_of_a_tensor_has_the_dtype_of_such_a_number(dtype: str):
    ours, theirs = (library.full((2,), library.tensor(1, dtype=getattr(library, dtype))) for library in (tm, torch))
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "call", [lambda: tm.arange(2**40), lambda: tm.empty(2**40, 0, 2**40), lambda: tm.arange(2**40, device="meta")]
)
def test_sizes_that_no_memory_holds_are_refused_as_sizes(call):
    """They once were "not possible with these dtypes"."""
    with pytest.raises(ValueError, match=r"NumPy has no memory for an array of this size: found .*1099511627776"):
        call()


def test_one_number_of_repeats_counts_for_all_entries():
    x = tm.tensor([[1.0, 2.0], [3.0, 4.0]])
    for one in (tm.tensor(2), tm.tensor([2])):
        assert tm.repeat_interleave(x, one, 0).tolist() == torch.repeat_interleave(torch.tensor(x.tolist()), 2, 0).tolist()


def test_nan_may_be_none():
    assert tm.nan_to_num(tm.tensor([math.nan, 1.0]), nan=None).tolist() == [0, 1]
