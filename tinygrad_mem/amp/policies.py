"""The dtype in which each public function runs in a region of autocast: PyTorch's lists, by the functions' names.

A function that is in no list runs as it is: dtypes are promoted as anywhere, and what it calls may be in a list. A function
that is in one runs wholly as the list says; nothing inside it is cast again. The lists hold all names of PyTorch's, also of
functions that are not offered.
"""

from __future__ import annotations

from enum import Enum


class Policy(Enum):
    """The cast of a function's floating arguments; float64 ones stay as they are."""

    LOWER = "cast to the region's dtype"
    FLOAT32 = "cast to float32"
    FLOAT32_RESULT = "as they are; the result is float32, unless the call names a dtype"
    WIDEST = "cast to the widest dtype among them"
    FIRST = "cast to the dtype of the first of them"
    AS_IS = "as they are, also in what the function calls"
    REFUSED = "an error: what the function computes does not fit half precision"


_PRODUCTS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu linear matmul mm bmm addmm addbmm "
_PRODUCTS += "baddbmm vecdot scaled_dot_product_attention multi_head_attention_forward"
_LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss nll_loss cross_entropy kl_div binary_cross_entropy_with_logits "
_LOSSES += "cosine_embedding_loss hinge_embedding_loss poisson_nll_loss margin_ranking_loss soft_margin_loss "
_LOSSES += "triplet_margin_loss multi_margin_loss multilabel_margin_loss"

CUDA = {
    Policy.LOWER: _PRODUCTS + " einsum mv addmv addr chain_matmul multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "recurrent_layer",
    Policy.FLOAT32: "acos arccos asin arcsin cosh sinh tan exp expm1 log log10 log2 log1p reciprocal rsqrt pow rpow square "
    "float_power erfinv softplus layer_norm rms_norm group_norm cosine_similarity dist pdist cdist renorm logsumexp "
    "interpolate upsample " + _LOSSES,
    Policy.FLOAT32_RESULT: "sum prod cumsum cumprod softmax log_softmax norm",
    Policy.WIDEST: "addcdiv addcmul atan2 arctan2 bilinear cross dot vdot grid_sample index_put scatter_add tensordot",
    Policy.AS_IS: "trace xlogy nansum nanmean instance_norm affine_grid",  # made here of functions that are in the lists above
    Policy.REFUSED: "binary_cross_entropy",
}
CPU = {
    Policy.LOWER: _PRODUCTS,
    Policy.FLOAT32: "prod trace cdist grid_sample quantile nanquantile binary_cross_entropy max_pool3d avg_pool3d "
    "adaptive_max_pool3d adaptive_avg_pool3d local_response_norm ctc_loss " + _LOSSES,
    Policy.WIDEST: "cat stack index_copy addr",
    Policy.FIRST: "recurrent_layer",  # what RNN, LSTM and GRU call: half precision where the layer before gave that
    Policy.AS_IS: "mv dot vdot",
}


def _by_name(lists: dict[Policy, str]) -> dict[str, Policy]:
    return {name: policy for policy, names in lists.items() for name in names.split()}


POLICIES = {"cuda": _by_name(CUDA), "cpu": _by_name(CPU)}
"""Device type -> function -> policy."""
