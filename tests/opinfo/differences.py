"""The one list of differences from PyTorch's tables: what is otherwise here by choice, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One reason for which samples of some names fail.

    Attributes:
        kind: the table: "op", "module", "optimizer" or "error".
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


DIFFERENCES: list[Difference] = [
    Difference("module", "LinearCrossEntropyLoss", "sizes of chunks are given as numbers", "LinearCrossEntropy.*not offered"),
    Difference("module", "BatchNorm1d BatchNorm2d BatchNorm3d", "to be mended", ""),
    Difference("error", "linspace logspace", "to be mended", ""),
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
        "acosh add arange normal sub addmv addbmm baddbmm asinh atan2 atanh clamp cumsum kthvalue "
        "linspace logspace masked_select nn.functional.linear_cross_entropy as_strided "
        "nn.functional.avg_pool3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d "
        "nn.functional.conv_transpose3d nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d "
        "nn.functional.local_response_norm nn.functional.avg_pool2d nn.functional.prelu "
        "nn.functional.scaled_dot_product_attention nn.functional.softsign topk nn.functional.batch_norm mode "
        "round sgn __rpow__ tensor_split square atleast_1d atleast_2d atleast_3d gather index_fill index_copy "
        "index_select index_add index_reduce sort put scatter bfloat16 bool byte char double float half int long short "
        "scalar_tensor bernoulli cat unfold take_along_dim xlogy triu_indices tril_indices tensordot logcumsumexp norm "
        "nn.functional.feature_alpha_dropout nn.functional.multi_head_attention_forward argsort repeat_interleave "
        "linalg.norm linalg.matrix_norm ",
        "to be mended",
        "",
    ),
]
