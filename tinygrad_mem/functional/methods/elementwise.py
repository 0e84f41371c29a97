"""Methods that work element by element."""

from __future__ import annotations

from typing import Any

from ...autograd.tensor import Tensor
from .. import activation, choose, compare, elementwise, unary


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """``self`` where ``condition``, else ``other``: of :func:`where` the tensor is the second argument."""
    return choose.where(condition, self, other)


class Elementwise:
    """Name -> function."""

    add = elementwise.add
    atan2 = elementwise.atan2
    sub = elementwise.sub
    rsub = elementwise.rsub
    mul = elementwise.mul
    div = elementwise.div
    floor_divide = elementwise.floor_divide
    pow = elementwise.pow
    remainder = elementwise.remainder
    fmod = elementwise.fmod
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    clamp = choose.clamp
    clamp_min = choose.clamp_min
    clamp_max = choose.clamp_max
    where = _where
    masked_fill = choose.masked_fill
    nan_to_num = choose.nan_to_num
    lerp = elementwise.lerp
    addcmul = elementwise.addcmul
    addcdiv = elementwise.addcdiv
    neg = unary.neg
    positive = unary.positive
    abs = unary.abs
    sign = unary.sign
    square = unary.square
    floor = unary.floor
    ceil = unary.ceil
    round = unary.round
    trunc = unary.trunc
    frac = unary.frac
    xlogy = choose.xlogy
    exp = unary.exp
    exp2 = unary.exp2
    expm1 = unary.expm1
    log = unary.log
    log1p = unary.log1p
    log2 = unary.log2
    log10 = unary.log10
    sqrt = unary.sqrt
    rsqrt = unary.rsqrt
    reciprocal = unary.reciprocal
    sin = unary.sin
    cos = unary.cos
    tan = unary.tan
    asin = unary.asin
    acos = unary.acos
    atan = unary.atan
    sinh = unary.sinh
    cosh = unary.cosh
    tanh = unary.tanh
    asinh = unary.asinh
    acosh = unary.acosh
    atanh = unary.atanh
    sigmoid = unary.sigmoid
    erf = unary.erf
    erfc = unary.erfc
    erfinv = unary.erfinv
    eq = compare.eq
    ne = compare.ne
    lt = compare.lt
    le = compare.le
    gt = compare.gt
    ge = compare.ge
    logical_and = compare.logical_and
    logical_or = compare.logical_or
    logical_xor = compare.logical_xor
    bitwise_and = compare.bitwise_and
    bitwise_or = compare.bitwise_or
    bitwise_xor = compare.bitwise_xor
    bitwise_left_shift = compare.bitwise_left_shift
    bitwise_right_shift = compare.bitwise_right_shift
    bitwise_not = compare.bitwise_not
    logical_not = compare.logical_not
    isnan = compare.isnan
    isinf = compare.isinf
    isfinite = compare.isfinite
    isclose = compare.isclose
    allclose = compare.allclose
    equal = compare.equal
    true_divide = elementwise.div
    multiply = elementwise.mul
    subtract = elementwise.sub
    divide = elementwise.div
    negative = unary.neg
    absolute = unary.abs
    clip = choose.clamp
    fix = unary.trunc
    greater = compare.gt
    less = compare.lt
    relu = activation.relu
    prelu = activation.prelu
    hardshrink = activation.hardshrink
    arccos = unary.acos
    arccosh = unary.acosh
    arcsin = unary.asin
    arcsinh = unary.asinh
    arctan = unary.atan
    arctanh = unary.atanh
    sgn = unary.sign
    arctan2 = elementwise.atan2
    greater_equal = compare.ge
    less_equal = compare.le
    not_equal = compare.ne
