"""Where an op's answers on special values are not PyTorch's: the whole list, read both ways by ``test_special_values.py``."""

from __future__ import annotations

PATHS = "PyTorch's vectorised loop and its plain one answer differently, so that it depends on the place in the array"
RANGE = "PyTorch's formula leaves the range of the dtype, or meets inf - inf, on its way to a result that ours finds"
NAN = "where nan, or 0 times infinity, is among the numbers: PyTorch's is nan, 0 or all of it by function; ours is nan"
WHICH = "of several nan PyTorch names the last, ours the first"
ROUNDING = "the difference of numbers near 1e13 is what rounding left of it"
EPSILON = "at 0 and 1 the quotient is bounded by 1e-12, which is added elsewhere in PyTorch"
INVERSE = "the reference divides by the weight, which ours bounds from below: that is what makes it invertible"

_BY_REASON: dict[str, dict[str, str]] = {
    PATHS: dict.fromkeys(("relu6", "hardtanh", "elu", "selu", "hardshrink", "softshrink", "hardsigmoid"), "gradient"),
    RANGE: {
        "add_alpha": "value",
        "addcmul": "value",
        "addcdiv": "value gradient",
        "pow": "gradient",
        "remainder": "value gradient",
        "fmod_number": "value",
        "atan2": "gradient",
        "celu": "gradient",
        "gelu": "value gradient",
        "mish": "gradient",
        "softsign": "gradient",
        "hardswish": "value gradient",
    },
    NAN: {
        **dict.fromkeys(("max", "norm_3", "norm_half", "norm_inf", "norm_minus_inf", "prod", "prod_dim"), "gradient"),
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
    INVERSE: dict.fromkeys(
        ("inplace_abn 2-d affine", "inplace_abn 4-d affine", "inplace_abn 4-d affine frozen"), "value gradient"
    ),
}

DIFFERENCES = {name: (what, reason) for reason, listed in _BY_REASON.items() for name, what in listed.items()}
"""Name of the row -> (what differs: value, gradient or both; why)."""
