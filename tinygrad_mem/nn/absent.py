"""Names of ``torch.nn`` that are not offered, and what to use instead."""

from __future__ import annotations

ABSENT = {
    "SyncBatchNorm": "one process computes here: use BatchNorm2d",
    "DataParallel": "one process computes here: call the module itself",
    "UninitializedParameter": "give the layer its sizes, and use Parameter",
    "ChannelShuffle": "reshape, transpose and reshape again",
    "MaxUnpool2d": "scatter the values to the indices of MaxPool2d(return_indices=True)",
    "FractionalMaxPool2d": "use AdaptiveMaxPool2d",
    "LPPool2d": "use AvgPool2d of the p-th power",
    "FeatureAlphaDropout": "use AlphaDropout",
    "CTCLoss": "use CrossEntropyLoss over aligned labels",
    "AdaptiveLogSoftmaxWithLoss": "use CrossEntropyLoss",
}


def why_absent(name: str) -> str:
    """What to say of ``nn.NAME``."""
    if name.startswith("Lazy"):
        return f"nn.{name} is not offered: give {name.removeprefix('Lazy')} its sizes"
    if name in ABSENT:
        return f"nn.{name} is not offered: {ABSENT[name]}"
    return f"module 'tinygrad_mem.nn' has no attribute {name!r}; its names are those of torch.nn, as far as they are offered"
