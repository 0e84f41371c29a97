"""What is refused where it would silently be something else, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_mem as tm

HALF: Any = 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tm.zeros(3, dtype=tm.int64).exponential_(), "exponential_: .* the dtype must be floating, found int64"),
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
        (tm.rand, r"rand\(\) missing 1 required positional arguments: \"size\"; \(\) is the shape of one number"),
        (tm.randn, r"randn\(\) missing 1 required"),
        (
            lambda: tm.sub(tm.ones(3), tm.tensor([True, False, True]), alpha=2),
            "Subtraction, the `-` operator, with a bool tensor",
        ),
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
