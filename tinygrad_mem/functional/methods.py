"""The table of ``Tensor``'s methods: each is a public function with the tensor as its first argument.

``Tensor`` inherits this class for type checkers only; at run time the functions are put on ``Tensor`` below. So the tape
knows no op, and an editor knows every method.
"""

from __future__ import annotations

import functools
from typing import Any

from ..autograd.tensor import Tensor
from . import activation, convert, creation, elementwise, index, join, linalg, random, reduce, rewrite, scan, shape, write
from . import softmax as softmax_functions
from . import sort as sort_functions


def _unless_none(compare: Any) -> Any:
    """The operator: ``t == None`` is False and ``t != None`` is True, as of any object."""

    @functools.wraps(compare)
    def operator(self: Tensor, other: Any) -> Any:
        return NotImplemented if other is None else compare(self, other)

    return operator


class Methods:
    """Name -> function."""

    # --- elementwise arithmetic, comparison, bits, and their operators and in-place forms

    add = elementwise.add
    atan2 = elementwise.atan2
    add_ = elementwise.add_
    sub = elementwise.sub
    sub_ = elementwise.sub_
    rsub = elementwise.rsub
    mul = elementwise.mul
    mul_ = elementwise.mul_
    div = elementwise.div
    div_ = elementwise.div_
    floor_divide = elementwise.floor_divide
    pow = elementwise.pow
    pow_ = elementwise.pow_
    remainder = elementwise.remainder
    remainder_ = elementwise.remainder_
    fmod = elementwise.fmod
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    clamp = elementwise.clamp
    clamp_ = elementwise.clamp_
    clamp_min = elementwise.clamp_min
    clamp_max = elementwise.clamp_max
    where = elementwise.where
    masked_fill = elementwise.masked_fill
    masked_fill_ = elementwise.masked_fill_
    nan_to_num = elementwise.nan_to_num
    lerp = elementwise.lerp
    lerp_ = elementwise.lerp_
    addcmul = elementwise.addcmul
    addcmul_ = elementwise.addcmul_
    addcdiv = elementwise.addcdiv
    addcdiv_ = elementwise.addcdiv_
    neg = elementwise.neg
    neg_ = elementwise.neg_
    positive = elementwise.positive
    abs = elementwise.abs
    sign = elementwise.sign
    square = elementwise.square
    floor = elementwise.floor
    ceil = elementwise.ceil
    round = elementwise.round
    trunc = elementwise.trunc
    frac = elementwise.frac
    xlogy = elementwise.xlogy
    exp = elementwise.exp
    exp_ = elementwise.exp_
    exp2 = elementwise.exp2
    exp2_ = elementwise.exp2_
    expm1 = elementwise.expm1
    expm1_ = elementwise.expm1_
    log = elementwise.log
    log_ = elementwise.log_
    log1p = elementwise.log1p
    log1p_ = elementwise.log1p_
    log2 = elementwise.log2
    log2_ = elementwise.log2_
    log10 = elementwise.log10
    log10_ = elementwise.log10_
    sqrt = elementwise.sqrt
    sqrt_ = elementwise.sqrt_
    rsqrt = elementwise.rsqrt
    rsqrt_ = elementwise.rsqrt_
    reciprocal = elementwise.reciprocal
    reciprocal_ = elementwise.reciprocal_
    sin = elementwise.sin
    sin_ = elementwise.sin_
    cos = elementwise.cos
    cos_ = elementwise.cos_
    tan = elementwise.tan
    tan_ = elementwise.tan_
    asin = elementwise.asin
    asin_ = elementwise.asin_
    acos = elementwise.acos
    acos_ = elementwise.acos_
    atan = elementwise.atan
    atan_ = elementwise.atan_
    sinh = elementwise.sinh
    sinh_ = elementwise.sinh_
    cosh = elementwise.cosh
    cosh_ = elementwise.cosh_
    tanh = elementwise.tanh
    tanh_ = elementwise.tanh_
    asinh = elementwise.asinh
    asinh_ = elementwise.asinh_
    acosh = elementwise.acosh
    acosh_ = elementwise.acosh_
    atanh = elementwise.atanh
    atanh_ = elementwise.atanh_
    sigmoid = elementwise.sigmoid
    sigmoid_ = elementwise.sigmoid_
    erf = elementwise.erf
    erf_ = elementwise.erf_
    erfc = elementwise.erfc
    erfc_ = elementwise.erfc_
    abs_ = elementwise.abs_
    square_ = elementwise.square_
    sign_ = elementwise.sign_
    floor_ = elementwise.floor_
    ceil_ = elementwise.ceil_
    round_ = elementwise.round_
    trunc_ = elementwise.trunc_
    fill_ = elementwise.fill_
    zero_ = elementwise.zero_
    eq = elementwise.eq
    ne = elementwise.ne
    lt = elementwise.lt
    le = elementwise.le
    gt = elementwise.gt
    ge = elementwise.ge
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    bitwise_and = elementwise.bitwise_and
    bitwise_and_ = elementwise.bitwise_and_
    bitwise_or = elementwise.bitwise_or
    bitwise_or_ = elementwise.bitwise_or_
    bitwise_xor = elementwise.bitwise_xor
    bitwise_xor_ = elementwise.bitwise_xor_
    bitwise_left_shift = elementwise.bitwise_left_shift
    bitwise_left_shift_ = elementwise.bitwise_left_shift_
    bitwise_right_shift = elementwise.bitwise_right_shift
    bitwise_right_shift_ = elementwise.bitwise_right_shift_
    bitwise_not = elementwise.bitwise_not
    logical_not = elementwise.logical_not
    isnan = elementwise.isnan
    isinf = elementwise.isinf
    isfinite = elementwise.isfinite
    isclose = elementwise.isclose
    allclose = elementwise.allclose
    equal = elementwise.equal
    __add__ = elementwise.add
    __radd__ = elementwise.add
    __sub__ = elementwise.sub
    __rsub__ = elementwise.rsub
    __mul__ = elementwise.mul
    __rmul__ = elementwise.mul
    __truediv__ = elementwise.div
    __rtruediv__ = elementwise.rdiv
    __floordiv__ = elementwise.floor_divide
    __rfloordiv__ = elementwise.rfloor_divide
    __mod__ = elementwise.remainder
    __rmod__ = elementwise.rremainder
    __pow__ = elementwise.pow
    __rpow__ = elementwise.rpow
    __neg__ = elementwise.neg
    __pos__ = elementwise.positive
    __abs__ = elementwise.abs
    __eq__ = _unless_none(elementwise.eq)
    __ne__ = _unless_none(elementwise.ne)
    __lt__ = elementwise.lt
    __le__ = elementwise.le
    __gt__ = elementwise.gt
    __ge__ = elementwise.ge
    __and__ = elementwise.bitwise_and
    __rand__ = elementwise.bitwise_and
    __or__ = elementwise.bitwise_or
    __ror__ = elementwise.bitwise_or
    __xor__ = elementwise.bitwise_xor
    __rxor__ = elementwise.bitwise_xor
    __lshift__ = elementwise.bitwise_left_shift
    __rshift__ = elementwise.bitwise_right_shift
    __invert__ = elementwise.bitwise_not
    __iadd__ = elementwise.add_
    __isub__ = elementwise.sub_
    __imul__ = elementwise.mul_
    __itruediv__ = elementwise.div_
    __imod__ = elementwise.remainder_
    __ifloordiv__ = rewrite.floor_divide_
    __ipow__ = elementwise.pow_
    __iand__ = elementwise.bitwise_and_
    __ior__ = elementwise.bitwise_or_
    __ixor__ = elementwise.bitwise_xor_
    __ilshift__ = elementwise.bitwise_left_shift_
    __irshift__ = elementwise.bitwise_right_shift_
    true_divide = elementwise.div
    multiply = elementwise.mul
    subtract = elementwise.sub
    divide = elementwise.div
    negative = elementwise.neg
    absolute = elementwise.abs
    clip = elementwise.clamp
    fix = elementwise.trunc
    greater = elementwise.gt
    less = elementwise.lt

    # --- activations

    relu = activation.relu
    relu_ = activation.relu_
    leaky_relu_ = activation.leaky_relu_
    prelu = activation.prelu
    hardshrink = activation.hardshrink

    # --- reductions

    sum = reduce.sum
    mean = reduce.mean
    prod = reduce.prod
    var = reduce.var
    std = reduce.std
    var_mean = reduce.var_mean
    std_mean = reduce.std_mean
    amax = reduce.amax
    amin = reduce.amin
    argmax = reduce.argmax
    argmin = reduce.argmin
    max = reduce.max
    min = reduce.min
    all = reduce.all
    any = reduce.any
    count_nonzero = reduce.count_nonzero
    logsumexp = reduce.logsumexp
    norm = reduce.norm
    median = sort_functions.median
    nansum = reduce.nansum
    nanmean = reduce.nanmean
    sort = sort_functions.sort
    argsort = sort_functions.argsort
    msort = sort_functions.msort
    topk = sort_functions.topk
    kthvalue = sort_functions.kthvalue
    unique = sort_functions.unique
    cumsum = scan.cumsum
    cumsum_ = scan.cumsum_
    cumprod = scan.cumprod
    cummax = scan.cummax
    cummin = scan.cummin
    logcumsumexp = scan.logcumsumexp

    # --- linear algebra

    matmul = linalg.matmul
    mm = linalg.mm
    bmm = linalg.bmm
    mv = linalg.mv
    dot = linalg.dot
    outer = linalg.outer
    addmm = linalg.addmm
    addmv = linalg.addmv
    baddbmm = linalg.baddbmm
    tensordot = linalg.tensordot
    trace = linalg.trace
    __matmul__ = linalg.matmul
    __rmatmul__ = linalg.rmatmul
    __imatmul__ = linalg.imatmul
    vdot = linalg.vdot
    inner = linalg.inner
    ger = linalg.ger
    addmm_ = linalg.addmm_
    baddbmm_ = linalg.baddbmm_
    addbmm = linalg.addbmm
    addr = linalg.addr
    kron = linalg.kron

    # --- shape, joining

    view = shape.view
    reshape = shape.reshape
    view_as = shape.view_as
    reshape_as = shape.reshape_as
    flatten = shape.flatten
    ravel = shape.ravel
    unflatten = shape.unflatten
    squeeze = shape.squeeze
    unsqueeze = shape.unsqueeze
    permute = shape.permute
    transpose = shape.transpose
    t = shape.t
    movedim = shape.movedim
    expand = shape.expand
    expand_as = shape.expand_as
    broadcast_to = shape.broadcast_to
    narrow = shape.narrow
    select = shape.select
    unbind = shape.unbind
    split = shape.split
    chunk = shape.chunk
    diagonal = shape.diagonal
    unfold = shape.unfold
    atleast_1d = shape.atleast_1d
    repeat = shape.repeat
    tile = shape.tile
    repeat_interleave = shape.repeat_interleave
    roll = shape.roll
    flip = shape.flip
    fliplr = shape.fliplr
    flipud = shape.flipud
    diff = shape.diff
    tensor_split = join.tensor_split
    hsplit = join.hsplit
    vsplit = join.vsplit
    dsplit = join.dsplit
    rot90 = join.rot90
    bincount = join.bincount
    tril = shape.tril
    triu = shape.triu
    tril_ = write.tril_
    triu_ = write.triu_
    fill_diagonal_ = write.fill_diagonal_
    masked_scatter = write.masked_scatter
    masked_scatter_ = write.masked_scatter_
    put = write.put
    put_ = write.put_
    diag = shape.diag
    swapaxes = shape.swapaxes
    swapdims = shape.swapdims
    moveaxis = shape.moveaxis
    T = shape.transposed
    mT = shape.matrix_transposed
    __iter__ = shape.iterate

    # --- indexing

    index_put_ = index.index_put_
    index_put = index.index_put
    gather = index.gather
    take_along_dim = index.take_along_dim
    scatter = index.scatter
    scatter_ = index.scatter_
    scatter_add_ = index.scatter_add_
    scatter_add = index.scatter_add
    index_select = index.index_select
    index_add_ = index.index_add_
    index_add = index.index_add
    index_copy_ = index.index_copy_
    index_fill_ = index.index_fill_
    index_copy = index.index_copy
    index_fill = index.index_fill
    take = index.take
    masked_select = index.masked_select
    nonzero = index.nonzero
    argwhere = index.argwhere
    __getitem__ = index.getitem
    __setitem__ = index.setitem

    # --- in place, beside the op

    floor_divide_ = rewrite.floor_divide_
    fmod_ = rewrite.fmod_
    frac_ = rewrite.frac_
    atan2_ = rewrite.atan2_
    xlogy_ = rewrite.xlogy_
    nan_to_num_ = rewrite.nan_to_num_
    clamp_min_ = rewrite.clamp_min_
    clamp_max_ = rewrite.clamp_max_
    cumprod_ = rewrite.cumprod_
    eq_ = rewrite.eq_
    ne_ = rewrite.ne_
    lt_ = rewrite.lt_
    le_ = rewrite.le_
    gt_ = rewrite.gt_
    ge_ = rewrite.ge_
    logical_and_ = rewrite.logical_and_
    logical_or_ = rewrite.logical_or_
    logical_xor_ = rewrite.logical_xor_
    logical_not_ = rewrite.logical_not_
    bitwise_not_ = rewrite.bitwise_not_
    greater_ = rewrite.gt_
    less_ = rewrite.lt_
    clip_ = elementwise.clamp_
    absolute_ = elementwise.abs_
    negative_ = elementwise.neg_
    multiply_ = elementwise.mul_
    divide_ = elementwise.div_
    true_divide_ = elementwise.div_
    subtract_ = elementwise.sub_
    fix_ = elementwise.trunc_

    # --- conversion

    to = convert.to
    clone = convert.clone
    contiguous = convert.contiguous
    copy_ = convert.copy_
    cpu = convert.cpu
    cuda = convert.cuda
    type_as = convert.type_as
    type = convert.type
    half = convert.half
    float = convert.float
    double = convert.double
    long = convert.long
    int = convert.int
    short = convert.short
    char = convert.char
    byte = convert.byte
    bool = convert.bool

    # --- creation like this tensor

    new_empty = creation.new_empty
    new_zeros = creation.new_zeros
    new_ones = creation.new_ones
    new_full = creation.new_full
    new_tensor = creation.new_tensor

    # --- random fills

    normal_ = random.normal_
    uniform_ = random.uniform_
    exponential_ = random.exponential_
    bernoulli_ = random.bernoulli_
    random_ = random.random_
    multinomial = random.multinomial
    bernoulli = random.bernoulli

    # --- softmax

    softmax = softmax_functions.softmax
    log_softmax = softmax_functions.log_softmax


_NOT_METHODS = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__hash__",
    "__firstlineno__",
    "__static_attributes__",
}
for _name, _function in list(vars(Methods).items()):
    if _name not in _NOT_METHODS:
        setattr(Tensor, _name, _function)
