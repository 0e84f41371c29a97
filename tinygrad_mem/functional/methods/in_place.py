"""Methods that write into their tensor: their names end in ``_``."""

from __future__ import annotations

from .. import activation, choose, compare, convert, elementwise, index, linalg, random, rewrite, scan, unary, write
from .. import diagonal as diagonals
from .. import gather as gather_functions


class InPlace:
    """Name -> function."""

    add_ = elementwise.add_
    sub_ = elementwise.sub_
    mul_ = elementwise.mul_
    div_ = elementwise.div_
    pow_ = elementwise.pow_
    remainder_ = elementwise.remainder_
    clamp_ = choose.clamp_
    masked_fill_ = choose.masked_fill_
    lerp_ = elementwise.lerp_
    addcmul_ = elementwise.addcmul_
    addcdiv_ = elementwise.addcdiv_
    neg_ = unary.neg_
    exp_ = unary.exp_
    exp2_ = unary.exp2_
    expm1_ = unary.expm1_
    log_ = unary.log_
    log1p_ = unary.log1p_
    log2_ = unary.log2_
    log10_ = unary.log10_
    sqrt_ = unary.sqrt_
    rsqrt_ = unary.rsqrt_
    reciprocal_ = unary.reciprocal_
    sin_ = unary.sin_
    cos_ = unary.cos_
    tan_ = unary.tan_
    asin_ = unary.asin_
    acos_ = unary.acos_
    atan_ = unary.atan_
    sinh_ = unary.sinh_
    cosh_ = unary.cosh_
    tanh_ = unary.tanh_
    asinh_ = unary.asinh_
    acosh_ = unary.acosh_
    atanh_ = unary.atanh_
    sigmoid_ = unary.sigmoid_
    erf_ = unary.erf_
    erfc_ = unary.erfc_
    abs_ = unary.abs_
    square_ = unary.square_
    sign_ = unary.sign_
    floor_ = unary.floor_
    ceil_ = unary.ceil_
    round_ = unary.round_
    trunc_ = unary.trunc_
    fill_ = choose.fill_
    zero_ = choose.zero_
    bitwise_and_ = compare.bitwise_and_
    bitwise_or_ = compare.bitwise_or_
    bitwise_xor_ = compare.bitwise_xor_
    bitwise_left_shift_ = compare.bitwise_left_shift_
    bitwise_right_shift_ = compare.bitwise_right_shift_
    relu_ = activation.relu_
    leaky_relu_ = activation.leaky_relu_
    cumsum_ = scan.cumsum_
    addmm_ = linalg.addmm_
    baddbmm_ = linalg.baddbmm_
    tril_ = diagonals.tril_
    triu_ = diagonals.triu_
    fill_diagonal_ = diagonals.fill_diagonal_
    masked_scatter_ = write.masked_scatter_
    put_ = write.put_
    index_put_ = index.index_put_
    scatter_ = gather_functions.scatter_
    scatter_add_ = gather_functions.scatter_add_
    index_add_ = gather_functions.index_add_
    index_copy_ = gather_functions.index_copy_
    index_fill_ = gather_functions.index_fill_
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
    clip_ = choose.clamp_
    absolute_ = unary.abs_
    negative_ = unary.neg_
    multiply_ = elementwise.mul_
    divide_ = elementwise.div_
    true_divide_ = elementwise.div_
    subtract_ = elementwise.sub_
    fix_ = unary.trunc_
    copy_ = convert.copy_
    normal_ = random.normal_
    uniform_ = random.uniform_
    exponential_ = random.exponential_
    bernoulli_ = random.bernoulli_
    random_ = random.random_
