"""``gradcheck`` accepts right gradients, and is seen to refuse wrong ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem.autograd import Function, gradcheck
from tinygrad_mem.errors import DTypeError, GradcheckError

MODES = pytest.mark.parametrize("fast_mode", [False, True])


def leaf(*shape: int) -> tm.Tensor:
    return tm.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


class WrongAtOne(Function):
    """x * y, whose gradient of y is off at one element."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        wrong = g * x
        wrong.array[1, 2] *= 1.1
        return g * y, wrong


class Forgets(WrongAtOne):
    @staticmethod
    def backward(ctx, g):
        _, y = ctx.saved_tensors
        return g * y, None


@MODES
def test_right_gradients_pass(fast_mode):
    assert gradcheck(lambda x, y: x * y, (leaf(2, 3), leaf(3)), fast_mode=fast_mode)
    assert gradcheck(lambda x: x.exp(), leaf(3), fast_mode=fast_mode)
    assert gradcheck(lambda x, k, c: (x * k, x.sum(), (x > 0), c), (leaf(2, 2), 3.0, tm.ones(2)), fast_mode=fast_mode)
    assert gradcheck(lambda x: x.exp(), leaf(0, 3), fast_mode=fast_mode)
    assert gradcheck(lambda x: x * 1, leaf(), fast_mode=fast_mode)
    assert gradcheck(lambda x: x.transpose(0, 1), leaf(2, 3).detach().transpose(0, 1).requires_grad_(), fast_mode=fast_mode)


@MODES
def test_a_wrong_gradient_is_found_and_named(fast_mode):
    x, y = leaf(2, 3), leaf(2, 3)
    with pytest.raises(GradcheckError) as caught:
        gradcheck(lambda x, y: (x.exp(), WrongAtOne.apply(x, y)), (x, y), fast_mode=fast_mode)
    text = str(caught.value)
    assert "Jacobian mismatch for output 1 with respect to input 1: 1 of 36 entries" in text
    assert "output element (1, 2), input element (1, 2)" in text
    assert f"numerical: {x.tolist()[1][2]:.5g}"[:-1] in text
    assert not gradcheck(WrongAtOne.apply, (x, y), raise_exception=False, fast_mode=fast_mode)


@MODES
def test_a_missing_gradient_is_found(fast_mode):
    with pytest.raises(GradcheckError, match=r"input 1: .*analytical: 0"):
        gradcheck(Forgets.apply, (leaf(2, 3), leaf(2, 3)), fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match=r"output 0 with respect to input 0.*analytical: 0"):
        gradcheck(lambda x: x.detach() * 2, leaf(2), fast_mode=fast_mode)


@MODES
def test_nan_gradients_are_found(fast_mode):
    class NaN(WrongAtOne):
        @staticmethod
        def backward(ctx, g):
            return g * float("nan"), g

    with pytest.raises(GradcheckError, match="analytical: nan"):
        gradcheck(NaN.apply, (leaf(2), leaf(2)), fast_mode=fast_mode)


@MODES
def test_what_is_not_deterministic_is_found(fast_mode):
    count = itertools.count()
    with pytest.raises(GradcheckError, match="not deterministic: output 0 differs between two runs"):
        gradcheck(lambda x: x * float(next(count)), leaf(2), fast_mode=fast_mode)

    class Drifting(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * (2 + 1e-9 * next(count))

    with pytest.raises(GradcheckError, match="the gradient of output 0 for input 0 differs"):
        gradcheck(Drifting.apply, leaf(2), fast_mode=fast_mode)
    assert gradcheck(Drifting.apply, leaf(2), fast_mode=fast_mode, nondet_tol=1e-6)


def test_inputs_are_put_back():
    x = leaf(3)
    before = x.tolist()
    gradcheck(lambda x: x.exp(), x)
    assert x.tolist() == before
    assert x.grad is None

    def explodes(x):
        if x.tolist() != before:
            raise ValueError("far away")
        return x * 2

    with pytest.raises(ValueError, match="far away"):
        gradcheck(explodes, x)
    assert x.tolist() == before


def test_float64_is_needed():
    with pytest.raises(DTypeError, match=r"input 1 is float32; .* need float64: call \.double\(\)"):
        gradcheck(lambda x, y: x * y, (leaf(2), tm.ones(2, requires_grad=True)))
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(lambda x: x, tm.ones(2, dtype=tm.float64))


def test_a_large_fast_failure_says_so():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    with pytest.raises(GradcheckError, match=r"along a random direction.*Use fast_mode=False"):
        gradcheck(Twice.apply, leaf(300), fast_mode=True)


class OffBy(Function):
    """``slope * sum(x)``, once for each element of x. Each entry of the Jacobian is off by ``error``."""

    @staticmethod
    def forward(ctx, x, slope, error):
        ctx.wrong = slope + error
        return (x.sum() * slope).expand(x.shape).clone()

    @staticmethod
    def backward(ctx, g):
        return (g.sum() * ctx.wrong).expand(g.shape).clone(), None, None


@MODES
@pytest.mark.parametrize("count", [1, 4, 40])
@pytest.mark.parametrize("tolerance", [1e-5, 1e-3])
def test_both_modes_have_one_tolerance(fast_mode, count, tolerance):
    """A projection adds up the errors of all entries, so it is compared with as many times the tolerance of one."""

    def passes(slope: float, error: float, **options: float) -> bool:
        return gradcheck(OffBy.apply, (leaf(count), slope, error), raise_exception=False, fast_mode=fast_mode, **options)

    assert passes(0.0, 0.9 * tolerance, atol=tolerance)
    assert not passes(0.0, 1.2 * tolerance, atol=tolerance)
    assert passes(10.0, 9 * tolerance, atol=0.0, rtol=tolerance)
    assert not passes(10.0, 12 * tolerance, atol=0.0, rtol=tolerance)
