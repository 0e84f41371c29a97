"""Elementwise ops against PyTorch: shapes, promotion, in-place forms, refusals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import broadcastable_shapes, mutually_broadcastable_shapes

import tinygrad_mem as tm
from tests.case import TOLERANCE, against_torch, assert_same, ours, theirs
from tests.profiles import share
from tinygrad_mem.errors import DTypeError
from tinygrad_mem.nn import functional as F

BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "atan2"]
UNARY = [
    "neg",
    "abs",
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "atan",
    "sigmoid",
    "erf",
    "square",
    "floor",
]
ACTIVATIONS = ["relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "hardswish"]
DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]

shapes = mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4).map(lambda s: s.input_shapes)
shape = broadcastable_shapes((2, 3, 4), max_dims=4, min_side=0, max_side=4)
seed = st.integers(0, 2**16)


@pytest.mark.parametrize("name", BINARY)
@given(shapes=shapes, seed=seed)
def test_binary_broadcasts(name, shapes, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(s) + 3 * (name == "div") for s in shapes]
    against_torch(getattr(tm, name), getattr(torch, name), arrays)


@pytest.mark.parametrize("name", UNARY)
@given(shape=shape, seed=seed)
def test_unary_takes_any_shape(name, shape, seed):
    x = np.random.default_rng(seed).standard_normal(shape)
    against_torch(getattr(tm, name), getattr(torch, name), [x])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ACTIVATIONS)
@given(shape=shape, seed=seed)
def test_activation_takes_any_shape(name, dtype, shape, seed):
    x = 3 * np.random.default_rng(seed).standard_normal(shape)
    against_torch(getattr(F, name), getattr(torch.nn.functional, name), [x], dtype)


@pytest.mark.parametrize("size", [1, 8191, 8193, 200_003])
@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "sigmoid"])
def test_large_arrays_are_cut_into_tiles(name, size):
    x = np.random.default_rng(1).standard_normal(size)
    against_torch(getattr(tm, name), getattr(torch, name), [x])
    against_torch(F.relu, torch.nn.functional.relu, [x], "float32")


@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("op", ["add", "div", "mul"])
def test_promotion_is_pytorchs(op, first, second):
    a, b = np.ones((2, 3)).astype(first), np.ones((2, 3)).astype(second)
    for x, y in ((a, b), (a, b[0, 0]), (a[0, 0], b), (a[0, 0], b[0, 0])):
        mine = getattr(tm, op)(tm.tensor(np.asarray(x)), tm.tensor(np.asarray(y)))
        other = getattr(torch, op)(torch.tensor(np.asarray(x)), torch.tensor(np.asarray(y)))
        assert_same(mine, other, TOLERANCE["float32"], f"{op} {first} {np.shape(x)} {second} {np.shape(y)}")


MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda lib, x, y: lib.add(x, y, alpha=2),
    "add of less": lambda lib, x, y: lib.add(x, y, alpha=-1),
    "add of a part": lambda lib, x, y: lib.add(x, y, alpha=0.1),
    "add_": lambda lib, x, y: (x + 0).add_(y, alpha=3),
    "sub": lambda lib, x, y: lib.sub(x, y, alpha=3),
    "rsub": lambda lib, x, y: lib.rsub(x, y, alpha=2),
    "addcmul": lambda lib, x, y: lib.addcmul(x, y, y),
    "addcmul of both": lambda lib, x, y: lib.addcmul(x, x, y, value=2),
    "addcmul_": lambda lib, x, y: (x + 0).addcmul_(y, y, value=3),
    "addcdiv": lambda lib, x, y: lib.addcdiv(x, y, x, value=0.1),
    "xlogy": lambda lib, x, y: lib.xlogy(x, y),
    "remainder": lambda lib, x, y: lib.remainder(x, y),
    "fmod": lambda lib, x, y: lib.fmod(y, x),
    "floor_divide": lambda lib, x, y: lib.floor_divide(x, y),
    "pow of 1": lambda lib, x, y: lib.pow(x, y - y + lib.ones_like(y)),
    "maximum": lambda lib, x, y: lib.maximum(x, y),
    "minimum of the other": lambda lib, x, y: lib.minimum(y, x),
    "div trunc": lambda lib, x, y: lib.div(x, y, rounding_mode="trunc"),
    "pow": lambda lib, x, y: x**y,
    "pow_": lambda lib, x, y: (x + 0).pow_(y),
    "shift": lambda lib, x, y: lib.bitwise_right_shift(y, x - x + lib.ones_like(x)),
    "less": lambda lib, x, y: (x - 101 < y) + lib.zeros(2, 3),
    "equal": lambda lib, x, y: (x == y) + lib.zeros(2, 3),
    "fill": lambda lib, x, y: lib.masked_fill(x, x > 0, y.reshape(-1)[0]),
    "index fill": lambda lib, x, y: lib.index_fill(x.reshape(-1), 0, lib.tensor([0]), y.reshape(-1)[0]),
    "atan2": lambda lib, x, y: lib.atan2(x, y),
    "where": lambda lib, x, y: lib.where(x > 0, y, x),
    "cat": lambda lib, x, y: lib.cat([x.reshape(-1), y.reshape(-1)]),
    "rest of a number": lambda lib, x, y: lib.remainder(x, 0.1),
    "number and its rest": lambda lib, x, y: lib.fmod(y, 0.3),
    "whole quotient": lambda lib, x, y: x // 0.1,
    "small whole quotient": lambda lib, x, y: lib.div(x, 1e-5, rounding_mode="floor"),
    "truncated quotient": lambda lib, x, y: lib.div(x / 1000, 0.1, rounding_mode="trunc"),
    "number's whole quotient": lambda lib, x, y: 70000 // (x / 7),
}
REFUSALS = "out of bounds|Subtraction|integral input|Boolean alpha|result type .* can.t be cast|with integers|Integer division"


@pytest.mark.parametrize("name", MIXED)
def test_mixed_dtypes_are_computed_in_that_of_the_result(name, reliability: Callable[[str, int], None]):
    """100 + 2 * 100 overflows 8 bits, 1000 * 1000 float16: what is computed in the narrower dtype is seen."""
    tried = 0
    for first, second in itertools.product([*DTYPES, "bfloat16"], repeat=2):
        sizes = itertools.product([(2, 3), ()], [(2, 3), ()], [(1000, 100), (100, 1000)])
        for one, two, (many, lone) in share([*sizes], 8, (name, first, second)):
            answers: list[Any] = []
            for lib in (tm, torch):
                x, y = (
                    lib.full(size, (many if size else lone) if "8" not in dtype else 100).to(getattr(lib, dtype))
                    for size, dtype in ((one, first), (two, second))
                )
                try:
                    answers.append(MIXED[name](lib, x, y))
                except (RuntimeError, TypeError, ValueError) as error:
                    answers.append(error)
            mine, expected = answers
            where = f"{name} {first} {one} {second} {two}, of {many} and {lone}"
            if isinstance(mine, Exception):
                assert isinstance(expected, Exception) or re.search(REFUSALS, str(mine)), f"{where}: {mine}"
            elif not isinstance(expected, Exception):
                tried += 1
                assert str(expected.dtype) == f"torch.{mine.dtype}", where
                near = TOLERANCE[str(mine.dtype)] if mine.dtype in (tm.float16, tm.bfloat16) else TOLERANCE["float32"]
                assert_same(mine.double(), expected.double(), near, where)
    reliability("ops of mixed dtypes", tried)


@pytest.mark.parametrize("number", [0.1, 0.3, 1e-7, 3e-8, 1e6, -1e6, 1e-45, 1e39])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_rest_of_a_number_is_that_of_the_number_in_the_dtype(dtype, number):
    """In float16 1e-7 is a subnormal number, 1.19e-7, of which 1 is a multiple; 1e6 is infinite."""
    for name in ("remainder", "fmod"):
        mine, expected = (
            getattr(lib, name)(lib.tensor([1.0, -1.0, 2.5, -0.75]).to(getattr(lib, dtype)), number).tolist()
            for lib in (tm, torch)
        )
        np.testing.assert_array_equal(mine, expected, name)


@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_do_not_widen_their_category(dtype, number):
    a = np.ones((2, 3)).astype(dtype)
    for run in (lambda x: x + number, lambda x: x * number, lambda x: number / (x + 1), lambda x: x == number):
        assert_same(run(tm.tensor(a)), run(torch.tensor(a)), TOLERANCE["float16"])


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_in_place_arithmetic(name):
    def run(x, y):
        z = x * 2
        getattr(z, name)(y + 3)
        return z, z * z

    rng = np.random.default_rng(0)
    against_torch(run, run, [rng.standard_normal((3, 4)), rng.standard_normal(4)])


@pytest.mark.parametrize("name", ["exp_", "tanh_", "sigmoid_", "relu_", "abs_", "neg_", "sqrt_", "square_", "floor_", "zero_"])
def test_in_place_functions(name):
    def run(x):
        z = x * x + 1
        getattr(z, name)()
        return z * 2

    against_torch(run, run, [np.random.default_rng(0).standard_normal((3, 4))])


def test_operators_with_assignment_write_the_same_memory():
    x = tm.ones(3)
    where = x.data_ptr()
    x += 2
    x *= 3
    x -= 1
    x /= 4
    assert x.data_ptr() == where
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_an_in_place_op_cannot_grow_its_tensor():
    with pytest.raises(tm.errors.ShapeError, match="doesn't match the broadcast shape"):
        tm.ones(3).add_(tm.ones(2, 3))


def test_an_in_place_op_keeps_its_dtype():
    with pytest.raises(tm.errors.DTypeError, match="can't be cast to the desired output type"):
        tm.ones(3, dtype=tm.int64).add_(0.5)
    with pytest.raises(tm.errors.DTypeError, match="can't be cast to the desired output type"):
        tm.ones(3, dtype=tm.bool).add_(tm.ones(3, dtype=tm.int64))


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (lambda: tm.ones(2, 3) + tm.ones(2), tm.errors.ShapeError, "must match the size of tensor b"),
        (lambda: -tm.ones(2, dtype=tm.bool), tm.errors.DTypeError, "Negation"),
        (lambda: tm.ones(2, dtype=tm.bool) - tm.ones(2, dtype=tm.bool), tm.errors.DTypeError, "Subtraction"),
        (lambda: tm.ones(2, dtype=tm.int64) ** -1, tm.errors.DTypeError, "negative integer powers"),
        (lambda: tm.ones(2) & tm.ones(2), tm.errors.DTypeError, "expected integers or bools"),
        (lambda: ~tm.ones(2), tm.errors.DTypeError, "expected integers or bools"),
        (lambda: tm.ones(2).clamp(), ValueError, "At least one of 'min' or 'max'"),
        (lambda: tm.div(tm.ones(2), 2, rounding_mode="up"), ValueError, "rounding_mode"),
        (lambda: tm.where(tm.ones(2), 1.0, 2.0), tm.errors.DTypeError, "boolean"),
        (lambda: tm.ones(2).masked_fill(tm.ones(2), 1.0), tm.errors.DTypeError, "boolean masks"),
        (lambda: F.gelu(tm.ones(2), "fast"), ValueError, "none or tanh"),
        (lambda: F.hardtanh(tm.ones(2), 1.0, -1.0), ValueError, "cannot be greater"),
        (lambda: F.glu(tm.ones(3)), tm.errors.ShapeError, "must be even"),
        (lambda: F.prelu(tm.ones(2, 3), tm.ones(2)), tm.errors.ShapeError, "expected 1 weight"),
    ],
)
def test_refusals_say_what_is_wrong(run, error, words):
    with pytest.raises(error, match=words):
        run()


def test_nan_and_inf_pass_as_values():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    for name in ("relu", "leaky_relu", "silu", "hardtanh", "relu6"):
        assert_same(
            getattr(F, name)(tm.tensor(x)), getattr(torch.nn.functional, name)(torch.tensor(x)), TOLERANCE["float64"], name
        )
    for name in ("isnan", "isinf", "isfinite", "sign", "nan_to_num"):
        assert_same(getattr(tm, name)(tm.tensor(x)), getattr(torch, name)(torch.tensor(x)), TOLERANCE["float64"], name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gradient_of_a_remainder_is_the_quotient_that_it_was_made_with(dtype: str, dev: str):
    """1 / 0.1 is rounded to 10, but 0.1 is taken away 9 times. -1 % inf is inf, and 1 % -inf is -inf: each was added once."""
    x, y = np.meshgrid(*[np.array([1.0, -1, 2.5, 3, 0.1, -0.3, 0, np.inf, -np.inf, np.nan], dtype)] * 2)
    against_torch(tm.remainder, torch.remainder, [x, y], dtype, dev)


def test_relu_lets_no_bad_gradient_through_a_closed_gate():
    x = tm.tensor([-1.0, 1.0], requires_grad=True)
    F.relu(x).backward(tm.tensor([float("nan"), 2.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("name", ["isclose", "allclose", "equal"])
def test_comparisons_of_whole_tensors(name):
    a = np.array([1.0, np.nan, np.inf, 2.0])
    for b in (a, a + 1e-9, a + 1):
        for more in ({}, {"equal_nan": True}) if name != "equal" else ({},):
            mine, other = (
                getattr(tm, name)(tm.tensor(a), tm.tensor(b), **more),
                getattr(torch, name)(torch.tensor(a), torch.tensor(b), **more),
            )
            assert (mine.tolist() if isinstance(mine, tm.Tensor) else mine) == (
                other.tolist() if isinstance(other, torch.Tensor) else other
            )


def test_composites():
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, 4)), rng.standard_normal((3, 4)), 1 + rng.random((3, 4))
    against_torch(lambda a, b: tm.lerp(a, b, 0.3), lambda a, b: torch.lerp(a, b, 0.3), [x, y])
    against_torch(lambda a, b, c: tm.addcmul(a, b, c, value=0.5), lambda a, b, c: torch.addcmul(a, b, c, value=0.5), [x, y, z])
    against_torch(lambda a, b, c: tm.addcdiv(a, b, c, value=0.5), lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), [x, y, z])
    against_torch(tm.frac, torch.frac, [x])
    against_torch(lambda a: tm.round(a, decimals=1), lambda a: torch.round(a, decimals=1), [x])
    against_torch(
        lambda a: a.clamp(tm.zeros(4, dtype=a.dtype), 1 * a.detach().abs()),
        lambda a: a.clamp(torch.zeros(4, dtype=a.dtype), 1 * a.detach().abs()),
        [x],
    )
    against_torch(tm.xlogy, torch.xlogy, [np.abs(x), z])
    zeros = [np.zeros(4), np.array([2.0, 0.5, 1e-300, 1e300])]  # the gradient of 0 * log(y) is log(y)
    against_torch(tm.xlogy, torch.xlogy, zeros)
    zero, ends = tm.zeros(3, requires_grad=True), tm.tensor([0.0, -1.0, float("inf")])
    tm.xlogy(zero, ends).sum().backward()
    assert zero.grad is not None
    assert zero.grad.tolist() == [0, 0, 0]


def test_the_helpers_of_the_tests_see_a_wrong_op():
    with pytest.raises(AssertionError):
        against_torch(lambda x: x * 1.001, lambda x: x, [np.ones((2, 3))])
    mine, other = ours([np.ones(2)], "float64")[0], theirs([np.ones(2)], "float32")[0]
    with pytest.raises(AssertionError, match="dtype"):
        assert_same(mine, other, (1, 1))


def test_where_as_a_method_chooses_the_tensor_itself():
    """``x.where(condition, other)`` is x where the condition holds: the tensor is not the condition."""
    data = np.array([1.0, -2.0, 3.0])
    for other in (0.5, tm.tensor([7.0, 8.0, 9.0], dtype=tm.float64)):
        x = tm.tensor(data, requires_grad=True)
        twin = torch.tensor(data, requires_grad=True)
        theirs = other if isinstance(other, float) else torch.from_numpy(other.numpy())
        y, expected = x.where(x > 0, other), twin.where(twin > 0, theirs)
        assert y.tolist() == expected.tolist()
        y.sum().backward()
        expected.sum().backward()
        assert x.grad is not None
        assert twin.grad is not None
        assert x.grad.tolist() == twin.grad.tolist()
        assert x.where(condition=x > 0, other=other).tolist() == expected.tolist()


def test_dtype_is_the_class_of_dtypes():
    assert isinstance(tm.float16, tm.dtype)
    assert isinstance(tm.zeros(1).dtype, tm.dtype)
    assert not isinstance("float16", tm.dtype)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_three_operands_are_rounded_once(name: str, half: str):
    """What cancels is not lost: 1 + a * b where a * b is near -1; PyTorch, float64 and ours agree to the last digit."""
    rng = np.random.default_rng(0)
    a = torch.tensor(1 + rng.random(500)).to(getattr(torch, half))
    b = (-1 / a.double() if name == "addcmul" else -a.double() * 1.01).to(getattr(torch, half))
    x = torch.ones(500).to(getattr(torch, half))
    exact = getattr(torch, name)(x.double(), a.double(), b.double()).to(getattr(torch, half))
    found = getattr(tm, name)(*[tm.tensor(v.float().numpy()).to(getattr(tm, half)) for v in (x, a, b)])
    np.testing.assert_allclose(found.float().numpy(), exact.float().numpy(), rtol=float(tm.finfo(half).eps), atol=1e-7)


def test_lerp_ends_where_it_should():
    rng = np.random.default_rng(0)
    x, end = (tm.tensor(rng.standard_normal(100).astype(np.float32)) for _ in range(2))
    assert tm.equal(tm.lerp(x, end, 1.0), end)
    assert tm.equal(tm.lerp(x, end, 0.0), x)
    assert tm.equal(tm.lerp(x, end, tm.ones(100)), end)
    weight = rng.random(100).astype(np.float32)
    mine = x.clone().lerp_(end, tm.tensor(weight))
    theirs = torch.lerp(*[torch.tensor(a) for a in (x.numpy(), end.numpy(), weight)])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="expected a floating tensor"):
        tm.lerp(tm.tensor([1]), tm.tensor([3]), 1)


def test_three_operands_of_several_dtypes_in_place_and_refused():
    rng = np.random.default_rng(1)
    x, a = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal((3, 4)).astype(np.float16)
    b = rng.integers(1, 9, (4,))
    for name in ("addcmul", "addcdiv"):
        theirs = getattr(torch.tensor(x), f"{name}_")(torch.tensor(a), torch.tensor(b), value=3)
        ours = getattr(tm.tensor(x), f"{name}_")(tm.tensor(a), tm.tensor(b), value=3)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
    whole = tm.tensor([[7, 8], [9, 10]])
    assert (
        tm.addcmul(whole, whole, whole, value=2).tolist() == torch.addcmul(*[torch.tensor(whole.numpy())] * 3, value=2).tolist()
    )
    with pytest.raises(RuntimeError, match="Integer division with addcdiv"):
        tm.addcdiv(whole, whole, whole)
    with pytest.raises(RuntimeError, match="must not be a floating point number"):
        tm.addcmul(whole, whole, whole, value=0.5)


BOUND = np.array([[0.2], [-0.3]])


@pytest.mark.parametrize(
    "run",
    [
        lambda x, b: (x * 2).clamp_(b),
        lambda x, b: (x * 2).clamp_(b, b + 0.5),
        lambda x, b: (x * 2).clamp_(max=b),
        lambda x, b: (x * 2).clamp_min_(b),
        lambda x, b: (x * 2).masked_fill_(x > 0, b.sum()),
        lambda x, b: (x * 2).fill_(b.sum()) * x,
        lambda x, b: (x * 2).round_(decimals=1) + x * b,
    ],
)
def test_in_place_with_a_tensor_for_a_number(run: Callable):
    against_torch(run, run, [np.random.default_rng(0).standard_normal((2, 3)), BOUND])


def test_in_place_with_a_tensor_runs_on_meta():
    x = tm.zeros(2, 3, device="meta")
    value = tm.tensor(1.0, device="meta")
    assert x.fill_(value).masked_fill_(x > 0, value).clamp_(value).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64"])
def test_angles_of_integers_are_whole_float32(dtype: str):
    y, x = np.array([1, 0, 1], dtype), np.array([1, 1, 0], dtype)
    against_torch(tm.atan2, torch.atan2, [y, x], grad=False, dtype="float32")


def test_running_sums_in_place_keep_their_dtype():
    x = tm.arange(3.0)
    assert x.cumsum_(0, dtype=tm.float32).tolist() == [0, 1, 3]
    with pytest.raises(DTypeError, match="Bad in-place call"):
        x.cumsum_(0, dtype=tm.float64)


def test_erfinv_at_the_ends_and_near_0():
    x = np.array([1, -1, 1.5, np.nan, 0.0, 1e-300, 0.85, 1 - 2.0**-53, -(1 - 2.0**-30), 1e-8])
    np.testing.assert_allclose(tm.tensor(x).erfinv().numpy(), torch.tensor(x).erfinv().numpy(), rtol=1e-13)
    y = tm.linspace(-0.999, 0.999, 20_001, dtype=tm.float64)  # several tiles
    np.testing.assert_allclose(y.erfinv().erf().numpy(), y.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("other", [3, tm.tensor([3])])
def test_a_part_of_integers_is_refused(other):
    with pytest.raises(DTypeError, match="argument alpha must not be a floating point number"):
        tm.tensor([1]).add(other, alpha=0.5)
    with pytest.raises(TypeError, match="argument 'alpha' must be Number, not Tensor"):
        tm.tensor([1]).add(other, alpha=tm.tensor(0.5))  # type: ignore[arg-type]
