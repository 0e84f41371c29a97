"""Names of ``torch.nn`` and ``torch.nn.functional`` that are not offered, and what to use instead."""

from __future__ import annotations

_FRACTIONAL = "use adaptive max pooling, whose windows are regular"
_MARGIN = "write max(0, margin - x[target] + x) with gather and clamp"
_QUANTISED = "there are no integer layers: use half()"
_MATMUL = "use matmul"
_INNER = "it belongs to PyTorch's inside: import it from where it is defined"

ABSENT = {
    "nn": {
        "AdaptiveLogSoftmaxWithLoss": "use CrossEntropyLoss",
        "CTCLoss": "use CrossEntropyLoss over aligned labels",
        "Container": "use Module",
        "CrossMapLRN2d": "use LocalResponseNorm",
        "FractionalMaxPool2d": _FRACTIONAL,
        "FractionalMaxPool3d": _FRACTIONAL,
        "MultiLabelMarginLoss": _MARGIN,
        "MultiLabelSoftMarginLoss": "use BCEWithLogitsLoss, which averages over the classes as well",
        "MultiMarginLoss": _MARGIN,
        "NLLLoss2d": "use NLLLoss",
        "UninitializedBuffer": "give the layer its sizes, and use Module.register_buffer",
        "UninitializedParameter": "give the layer its sizes, and use Parameter",
        "factory_kwargs": "pass device= and dtype= to the layer",
        **dict.fromkeys(("RNNBase", "RNNCellBase"), _INNER),
        **dict.fromkeys(("intrinsic", "qat", "quantizable"), _QUANTISED),
        **dict.fromkeys(("grad",), _INNER),
    },
    "nn.functional": {
        "conv_tbc": "transpose to (N, C, L) and use conv1d",
        "ctc_loss": "use cross_entropy over aligned labels",
        "grad": "call backward()",
        "multi_margin_loss": _MARGIN,
        "multilabel_margin_loss": _MARGIN,
        "multilabel_soft_margin_loss": "use binary_cross_entropy_with_logits, which averages over the classes as well",
        "native_channel_shuffle": "use channel_shuffle",
        "pdist": "use pairwise_distance of x[:, None] and x",
        "upsample_bilinear": "use interpolate(..., mode='bilinear', align_corners=True)",
        "upsample_nearest": "use interpolate",
        **dict.fromkeys(("grouped_mm", "scaled_mm", "scaled_grouped_mm"), _MATMUL),
        **{f"fractional_max_pool{n}d{more}": _FRACTIONAL for n in (2, 3) for more in ("", "_with_indices")},
        **{
            f"{name}{n}d_with_indices": f"use {name}{n}d(..., return_indices=True)"
            for name in ("max_pool", "adaptive_max_pool")
            for n in (1, 2, 3)
        },
    },
}


def why_absent(name: str, where: str = "nn") -> str:
    """What to say of ``nn.NAME`` or ``nn.functional.NAME``."""
    if where == "nn" and name.startswith("Lazy"):
        return f"nn.{name} is not offered: give {name.removeprefix('Lazy')} its sizes"
    if name in ABSENT[where]:
        return f"{where}.{name} is not offered: {ABSENT[where][name]}"
    of = f"its names are those of torch.{where}, as far as they are offered"
    return f"module 'tinygrad_mem.{where}' has no attribute {name!r}; {of}"
