"""The one list of differences from PyTorch's tables: what is otherwise here by choice, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Difference:
    """One reason for which samples of some names fail.

    Attributes:
        kind: the table: "op" ("narrow": in 8 to 32 bits, "dtype": what PyTorch refuses), "module", "optimizer" or "error".
        names: names in PyTorch's table, between blanks. Each must have a sample that this entry excuses.
        why: the reason, for a reader.
        says: a regular expression, found in the words of each failure that is excused.
        when: of what is tried, whether the entry is about it.
    """

    kind: str
    names: str
    why: str
    says: str
    when: Callable[[Any], bool] = lambda tried: True

    def excuses(self, kind: str, name: str, tried: Any, failure: str) -> bool:
        """Whether this failure is the one that the entry is about."""
        return self.kind == kind and name in self.names.split() and bool(re.search(self.says, failure)) and self.when(tried)


def excuse(kind: str, name: str, tried: Any, failure: str) -> Difference | None:
    """The entry that excuses a failure, if there is one."""
    return next((each for each in DIFFERENCES if each.excuses(kind, name, tried, failure)), None)


def about(kind: str, name: str) -> set[Difference]:
    """The entries that name something, each of which must excuse a failure there."""
    return {each for each in DIFFERENCES if each.kind == kind and name in each.names.split()}


_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
_POOLS = "avg_pool2d avg_pool3d local_response_norm"


def _functional(names: str) -> str:
    return " ".join(f"nn.functional.{name}" for name in names.split())


DIFFERENCES: list[Difference] = [
    Difference("module", "LinearCrossEntropyLoss", "sizes of chunks are given as numbers", "LinearCrossEntropy.*not offered"),
    Difference("module", "LSTM", "projections of hidden states are not offered", "proj_size is not offered"),
    Difference(
        "error",
        "Adam AdamW",
        "rates may be tensors everywhere: nothing is compiled or captured, so there is nothing that they could harm",
        "as a Tensor|both floats or both Tensors",
    ),
    Difference(
        "error",
        "clamp_max clamp_min atan2 eq ge gt le lt ne fmod maximum minimum logical_and logical_or logical_xor rsub "
        "__radd__ __rmul__ __rand__ __ror__ __rxor__ max min",
        "a number may stand wherever a tensor may",
        r"must be Tensor, not int|int.*Tensor|Tensor.*int",
    ),
    Difference(
        "op",
        _functional(_CONVOLUTIONS),
        "Convolutions are of floating numbers: integers are refused, in words.",
        "expected a floating input, found int64",
    ),
    Difference(
        "op",
        _functional(_POOLS),
        "Averages are floating: integers are refused, in words.",
        "not implemented for int64",
    ),
    Difference(
        "op",
        "norm linalg.norm",
        "Of a matrix the root of the sum of squares is offered: other norms are refused, in words.",
        "of a matrix is not offered|found 'nuc'",
    ),
    Difference(
        "op",
        "nn.functional.linear_cross_entropy",
        "The weight is a matrix, and scores that are cut in tiles want classes: the rest is refused, in words.",
        "class probabilities need all scores|a linear_weight of shape",
    ),
    Difference(
        "op", "double to", "Memory formats change nothing, with a warning.", "memory of an argument: True, in PyTorch False"
    ),
    Difference("op", "cdist", "p = 0 counts, and has no gradient: it is refused, in words.", "cdist: p=0 has no gradient"),
    Difference(
        "op",
        "as_strided",
        "A gradient needs a tensor that holds all that is shown: others are refused, in words.",
        "a gradient needs a dense tensor",
    ),
    Difference(
        "op",
        "nn.functional.ctc_loss",
        "The exponentials of large differences in float32: both are as far from the result in float64.",
        "^Not equal .* gradient 0 ",
        lambda trial: trial.dtype == torch.float32,
    ),
    Difference("dtype", "round", "Integers are rounded already, whatever the decimals.", "not implemented for"),
    Difference(
        "narrow",
        "add sub rsub index_add",
        "A factor that the dtype cannot hold is refused, in words: PyTorch's wraps around.",
        "out of bounds for uint8",
    ),
    Difference(
        "narrow",
        "nn.functional.interpolate",
        "Images of bytes are refused, in words.",
        "expected a floating tensor, found uint8",
    ),
    Difference(
        "narrow",
        "nn.functional.cosine_embedding_loss",
        "PyTorch takes 255 for -1 as a target.",
        "^Not equal .* result 0",
    ),
]
