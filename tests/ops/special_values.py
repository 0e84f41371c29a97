"""Where an op's answers on special values are not PyTorch's: the whole list, read both ways by ``test_special_values.py``."""

from __future__ import annotations

PATHS = "PyTorch's vectorised loop and its plain one answer differently, so that it depends on the place in the array"
RANGE = "PyTorch's formula leaves the range of the dtype, or meets inf - inf, on its way to a result that ours finds"
NAN = "where nan, or 0 times infinity, is among the numbers: PyTorch's is nan, 0 or all of it by function; ours is nan"
VECTORS = "PyTorch's vector code for AVX2 and for AVX-512 gives other signs to what underflows"
WHICH = "of several nan PyTorch names the last, ours the first"
ROUNDING = "the difference of numbers near 1e13 is what rounding left of it"
EPSILON = "at 0 and 1 the quotient is bounded by 1e-12, which is added elsewhere in PyTorch"
BOUNDS = "where a bound is nan, or both are equal, PyTorch gives the gradient to none of three, ours to the bound"
INVERSE = "the reference divides by the weight, which ours bounds from below: that is what makes it invertible"

_BY_REASON: dict[str, dict[str, str]] = {
    PATHS: dict.fromkeys(("relu6", "hardtanh", "elu", "selu", "hardsigmoid"), "gradient"),
    RANGE: {
        "add_alpha": "value",
        "addcmul": "value",
        "addcdiv": "value gradient",
        "pow": "gradient",
        "remainder": "value",
        "fmod_number": "value",
        "atan2": "gradient",
        "celu": "gradient",
        "gelu": "value gradient",
        "mish": "gradient",
        "softsign": "gradient",
        "hardswish": "value gradient",
        **dict.fromkeys(("ctc_loss mean", "ctc_loss sum in a line", "ctc_loss none zero_infinity"), "gradient"),
    },
    NAN: {
        **dict.fromkeys(("norm_half", "prod", "prod_dim"), "gradient"),
        **dict.fromkeys(("cumprod", "cumprod_zeros", "kl_div none", "kl_div sum", "kl_div batchmean"), "gradient"),
        "binary_cross_entropy_with_logits pos_weight": "gradient",
        "binary_cross_entropy_with_logits weight pos_weight": "gradient",
        "std_mean": "value",
    },
    WHICH: {
        "adaptive_max_pool1d": "gradient",
        "adaptive_max_pool2d": "gradient",
        "adaptive_max_pool2d_positions": "value gradient",
    },
    ROUNDING: {
        **dict.fromkeys(("batch_norm", "batch_norm_2d", "layer_norm", "layer_norm_two"), "gradient"),
        "group_norm": "value gradient",
        "instance_norm": "value gradient",
    },
    EPSILON: dict.fromkeys([f"binary_cross_entropy {how}" for how in ("mean", "none", "weight")], "gradient"),
    BOUNDS: {"clamp_tensors": "gradient"},
    INVERSE: dict.fromkeys(
        ("inplace_abn 2-d affine", "inplace_abn 4-d affine", "inplace_abn 4-d affine frozen"), "value gradient"
    ),
}

DIFFERENCES = {name: (what, reason) for reason, listed in _BY_REASON.items() for name, what in listed.items()}
"""Name of the row -> (what differs: value, gradient or both; why)."""

MAXIMUM = "of 0 and -0 a maximum names either, by instruction set and by order: IEEE 754 leaves it open"
SUMS = "a sum of terms that cancel here, one of others there: the sign of its 0 is what rounding left"
UNDERFLOW = "the smallest of numbers is halved: the result is rounded to a 0 from the other side"
FEWER = "ours multiplies what PyTorch divides, adds to 0 or takes from 0"

FUSED = "a product and a sum are rounded once on a GPU"
SUBNORMAL = "a step of the formula is below the smallest normal number, which a GPU makes 0"
CANCELS = "far below 0 the CPU takes erf from 1, where hardly a digit is left; the kernel has erfc, which is exact"
WAITS = "reading the input, to refuse it, would make the host wait for the GPU"

ON_CUDA = {
    **dict.fromkeys(("addcmul", "lerp", "lerp_weight"), FUSED),
    "addcdiv": SUBNORMAL,
    "gelu": CANCELS,
    **dict.fromkeys((f"binary_cross_entropy {how}" for how in ("mean", "none", "weight")), WAITS),
    **dict.fromkeys(("max_dim", "min_dim", "argmax", "argmin"), "of several nan, which one is named first is left open"),
    **dict.fromkeys(("cumprod", "cumprod_zeros"), NAN),
    **dict.fromkeys(("inplace_abn 2-d affine", "inplace_abn 4-d affine", "inplace_abn 4-d affine frozen"), INVERSE),
}
"""Name of the row -> why CUDA's answer may be another than the CPU's."""

_SIGNS: dict[str, str] = {
    VECTORS: "gelu",
    MAXIMUM: "relu elu selu celu leaky_relu_negative amin max_dim min_dim adaptive_max_pool1d clamp_tensors",
    SUMS: "batch_norm batch_norm_2d group_norm instance_norm layer_norm_plain std_biased",
    UNDERFLOW: "lerp lerp_weight",
    RANGE: "pow",
    FEWER: "atan2 norm_3 prod prod_dim kl_div_none_True kl_div_batchmean_True linear_cross_entropy_none_0.0",
    INVERSE: "inplace_abn_2-d_affine inplace_abn_4-d_affine inplace_abn_4-d_affine_frozen",
}
SIGNS = {name.replace("_", " "): reason for reason, names in _SIGNS.items() for name in names.split()}
"""Name of the row, with blanks -> why the sign of a 0 in its values or gradients is not PyTorch's."""
OPEN = (MAXIMUM, SUMS, INVERSE, VECTORS)
"""Reasons that depend on the machine: there a difference may be, and need not."""
