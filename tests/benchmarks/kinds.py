"""Kinds of work in a training step, by the names that kernels have here and that ops have in PyTorch's profiler."""

from __future__ import annotations

import re
from typing import NamedTuple

OUTSIDE, OTHER = "outside of kernels", "other kernels"
BOTH_GRADIENTS = "both gradients"  # PyTorch's one op for a convolution's two: the profile divides it
INPUTS, WEIGHTS = "input gradients", "weight gradients"
PRODUCTS, STEPS, WAITS = "products", "LSTM steps", "waits for the other thread"
STEPS_AND_PRODUCTS = "LSTM steps, all products"  # in one row where PyTorch's one op does both


class Kind(NamedTuple):
    """A kind of work: patterns of whole names, of our kernels and of PyTorch's ops without ``aten::``."""

    name: str
    ours: str
    theirs: str


KINDS = (
    Kind("convolutions", "conv_forward", "(mkldnn|thnn|slow|_slow)_conv(?!.*_backward).*|_?convolution"),
    Kind(INPUTS, "conv_backward_input", "-"),
    Kind(WEIGHTS, "conv_backward_(weight|bias)", "-"),
    Kind(BOTH_GRADIENTS, "-", "(convolution|_slow_conv2d)_backward"),
    Kind("pooling", "(adaptive_)?(avg|max)_pool", "_?(adaptive_)?(avg|max)_pool[123]d(_with_indices)?"),
    Kind("pooling backward", "(adaptive_)?(avg|max)_pool_backward|unpool", ".*(avg|max)_pool.*_backward"),
    Kind(PRODUCTS, "matmul|matmul_add|add_matmul|add_product|grouped_matmul", "mm|addmm|bmm|baddbmm|dot|mv"),
    Kind("attention", "(varlen_)?attention(_backward)?", "_scaled_dot_product_.*"),
    Kind("dropout", "dropout", "(native_)?dropout(_backward)?_?|bernoulli_?"),
    Kind("gelu", "gelu(_backward)?", "gelu(_backward)?"),
    Kind("layer norm", "sample_norm(_backward)?", "native_layer_norm(_backward)?"),
    Kind(
        "batch norm",
        "(given|batch)_statistics|batch_norm(_backward)?|inplace_norm_backward",
        "native_batch_norm(_backward)?|batch_norm_.*",
    ),
    Kind("ReLU", "(relu|threshold)(_backward)?", "relu_?|clamp_min_?|threshold_backward"),
    Kind(STEPS, "(lstm|gru|rnn)(_backward)?|lstm_cells|previous_states", "(mkldnn_rnn_layer|_thnn_fused_lstm_cell).*"),
    Kind("embedding", "embedding.*", "embedding.*|index_select"),
    Kind(
        "loss",
        "(soft_)?cross_entropy(_backward)?|nll_loss(_backward)?|target_weight|scaled_sum|check_target",
        "_log_softmax.*|nll_loss.*|cross_entropy_loss",
    ),
    Kind("optimizer", ".*_step", "Optimizer.step#.*"),
    Kind(WAITS, "finish|beside|hand_over", "-"),
    Kind(
        "sums, copies, additions",
        "sum|add_sum|mean|copy|fill|add|subtract|multiply|divide|weighted_sum",
        "sum|mean|copy_|clone|cat|fill_|zero_|add_?|sub_?|mul_?|div_?",
    ),
)
_ALONE = "sums, copies, additions"  # a kind that stands back: inside of another op they are part of its work
_BOOKKEEPING = (  # ops that compute nothing, or call those that do
    "view|_unsafe_view|reshape|_reshape_alias|transpose|t|permute|as_strided_?|expand|slice|narrow|select|split|squeeze|unsqueeze|"
    "empty.*|resize_|detach|alias|to|_to_copy|item|_local_scalar_dense|zeros|ones_like|zeros_like|arange|contiguous|"
    "result_type|resolve_conj|resolve_neg|is_nonzero|linear|matmul|conv2d|max_pool2d|lstm|layer_norm|batch_norm|"
    "_batch_norm_impl_index|log_softmax|scaled_dot_product_attention|flatten|set_|lift_fresh|"
    ".*Backward.*"
)


def kind_of(kernel: str) -> str:
    """The kind of one of our kernels."""
    return next((kind.name for kind in KINDS if re.fullmatch(kind.ours, kernel)), OTHER)


def kind_of_theirs(event: str, inside: str | None) -> str:
    """The kind of an event of PyTorch's profiler, which happened within work of the kind ``inside`` (or ``None``).

    What an op calls is part of its work, and what the optimizer calls is the optimizer's.
    """
    name = event.removeprefix("aten::")
    if inside in (None, OUTSIDE, OTHER, _ALONE):
        found = next((kind.name for kind in KINDS if re.fullmatch(kind.theirs, name)), None)
        if found is None and inside == _ALONE:
            return _ALONE
        if found is not None:
            return found
        return OTHER if event.startswith("aten::") and not re.fullmatch(_BOOKKEEPING, name) else OUTSIDE
    return inside
