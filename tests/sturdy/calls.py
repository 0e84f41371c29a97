"""A valid call of every public function, as data: the misuse tests change one thing in it at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Of:
    """A tensor to be made, of a shape and kind ("f" floating, "i" int64, "b" bool), with values from ``low`` to ``high``."""

    shape: tuple[int, ...]
    kind: str = "f"
    low: float = 0.1
    high: float = 0.9

    def array(self, rng: np.random.Generator) -> np.ndarray:
        """Its values."""
        if self.kind == "f":
            return rng.uniform(self.low, self.high, self.shape).astype(np.float32)
        if self.kind == "b":
            return rng.random(self.shape) > 0.5
        return rng.integers(0, int(self.high), self.shape)


@dataclass(frozen=True)
class Call:
    """A function by name (``F.`` in nn.functional, ``T.`` a method of its first argument) and its arguments."""

    name: str
    args: tuple
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def f(*shape: int) -> Of:
    return Of(shape)


def i(*shape: int, high: int = 3) -> Of:
    return Of(shape, "i", 0, high)


def b(*shape: int) -> Of:
    return Of(shape, "b")


def _c(name: str, *args: Any, **kwargs: Any) -> Call:
    return Call(name, args, kwargs)


def _each(names: str, *args: Any, **kwargs: Any) -> list[Call]:
    return [Call(name, args, kwargs) for name in names.split()]


X, M, V = f(3, 4), f(2, 3, 4), f(4)
SIGNAL, IMAGE, VOLUME = f(2, 4, 8), f(2, 4, 6, 7), f(1, 4, 4, 5, 4)
_UNARY = "asin acos atan sin cos tan sinh cosh tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal "
_UNARY += "sigmoid erf erfc erfinv abs sign square floor ceil round trunc neg"
_IN_PLACE_TOO = "sin cos tanh exp log log1p log10 sqrt rsqrt reciprocal sigmoid erfinv abs sign square floor ceil round neg"
_NAMED = "absolute frac negative isnan isinf isfinite logical_not relu selu t numel positive ravel "
_NAMED += "nonzero argwhere atleast_1d clone is_floating_point unique trace nan_to_num zeros_like ones_like"
_IN_PLACE = "exponential_ normal_ uniform_ random_ zero_ bernoulli_"
_LOSSES = "F.mse_loss F.l1_loss F.smooth_l1_loss F.huber_loss F.kl_div F.binary_cross_entropy "
_LOSSES += "F.binary_cross_entropy_with_logits"
_ACTIVATIONS = "F.relu F.relu6 F.selu F.celu F.elu F.gelu F.silu F.mish F.softplus F.softsign "
_ACTIVATIONS += "F.hardsigmoid F.hardswish F.hardtanh F.leaky_relu F.logsigmoid F.sigmoid F.tanh F.glu"

ELEMENTWISE = [
    *_each(_UNARY, X),
    *_each(_NAMED.replace("positive ", ""), X),
    *_each(" ".join(f"T.{name}_" for name in _IN_PLACE_TOO.split()), X),
    *_each(" ".join(f"T.{name}" for name in _IN_PLACE.split()), X),
    *_each("add sub mul div pow remainder fmod maximum minimum atan2 floor_divide true_divide subtract multiply divide", X, V),
    *_each("eq ne lt le gt ge logical_and logical_or logical_xor isclose allclose equal rsub xlogy", X, X),
    *_each("T.add_ T.sub_ T.mul_ T.div_ T.pow_ T.remainder_", X, V),
    *_each("add sub mul div pow remainder eq lt T.add_ T.mul_ T.fill_ clamp_min clamp_max rsub", X, 0.5),
    *_each("bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift", i(3, 4), i(4)),
    *_each("T.bitwise_and_ T.bitwise_or_ T.bitwise_xor_", i(3, 4), i(4)),
    _c("bitwise_not", i(3, 4)),
    _c("add", X, V, alpha=2),
    _c("sub", X, V, alpha=2),
    _c("div", X, V, rounding_mode="floor"),
    *_each("clamp clip T.clamp_", X, 0.3, 0.6),
    _c("where", b(3, 4), X, V),
    *_each("masked_fill T.masked_fill_", X, b(3, 4), 2.0),
    *_each("lerp T.lerp_", X, X, 0.3),
    *_each("addcmul addcdiv T.addcmul_ T.addcdiv_", X, X, V, value=0.5),
    _c("full_like", X, 2.0),
    _c("T.copy_", X, V),
    _c("round", X, decimals=1),
]
REDUCTIONS = [
    *_each("sum mean prod amax amin max min all any argmax argmin count_nonzero median std var nansum nanmean norm", X),
    *_each("sum mean prod amax amin max min all any argmax argmin count_nonzero median nansum nanmean logsumexp", M, 1),
    *_each("sum mean amax amin std var std_mean var_mean all any", M, (0, -1), keepdim=True),
    *_each("std var std_mean var_mean", M, dim=1),
    _c("sum", M, 1, dtype="float64"),
    _c("norm", M, 2, 1),
    *_each("cumsum cumprod cummax cummin softmax log_softmax F.softmax F.log_softmax", M, 1),
    *_each("T.cumsum_", M, 1),
    *_each("sort argsort", M, 1, True),
    *_each("topk", M, 2, 1),
    _c("std", X, 0, correction=0),
    *_each("histc", X),
    *_each("quantile", M, 0.3, 1),
    _c("quantile", M, f(2), 1, True, interpolation="nearest"),
]
SHAPES = [
    *_each("reshape T.view T.reshape", X, (2, 6)),
    *_each("broadcast_to T.expand", V, (3, 4)),
    *_each("tile T.repeat", X, (2, 1)),
    *_each("permute T.permute", M, (2, 0, 1)),
    *_each("transpose swapaxes swapdims movedim moveaxis", M, 0, -1),
    _c("movedim", M, (0, 1), (1, 2)),
    *_each("squeeze unsqueeze unbind", M, 1),
    _c("squeeze", M, (0, 1)),
    *_each("flatten", M, 0, 1),
    _c("unflatten", X, 1, (2, 2)),
    *_each("select", M, 1, 2),
    *_each("narrow", M, 1, 0, 2),
    *_each("split chunk", M, 2, 1),
    _c("split", M, [1, 2], 1),
    _c("diagonal", M, 0, 0, 1),
    *_each("diag tril triu diag_embed", X, 1),
    _c("split_with_sizes", M, [1, 2], 1),
    *_each("T.squeeze_ T.unsqueeze_", M, 1),
    *_each("as_strided", X, (2, 3), (1, 2), 1),
    *_each("flip", M, (0, 1)),
    *_each("roll", M, 1, 0),
    _c("roll", M, (1, 2), (0, 1)),
    _c("diff", M, 1, 1),
    *_each("repeat_interleave", M, 2, 1),
    *_each("cat concat concatenate stack", [X, X], 1),
    *_each("hstack vstack row_stack", [X, X]),
    _c("broadcast_tensors", X, V),
    _c("meshgrid", f(3), f(4), indexing="ij"),
    _c("T.unfold", M, 2, 2, 1),
    _c("T.view_as", X, f(4, 3)),
    _c("T.expand_as", V, X),
    _c("T.to", X, "float64"),
    _c("T.type_as", X, i(2)),
]
INDEXING = [
    *_each("gather", X, 1, i(3, 2, high=4)),
    _c("take_along_dim", X, i(3, 2, high=4), 1),
    *_each("scatter T.scatter_ scatter_add T.scatter_add_", X, 1, i(3, 2, high=4), f(3, 2)),
    _c("scatter", X, 1, i(3, 2, high=4), value=2.0),
    _c("index_select", M, 1, i(2)),
    *_each("index_add T.index_add_ index_copy T.index_copy_", X, 0, i(1), f(1, 4)),
    *_each("scatter_reduce T.scatter_reduce_", X, 1, i(3, 2, high=4), f(3, 2), "mean"),
    *_each("searchsorted", f(5), X),
    _c("bucketize", X, f(5)),
    _c("isin", i(4), i(2)),
    *_each("unique_consecutive", i(8)),
    *_each("index_fill T.index_fill_", X, 0, i(2), 1.5),
    *_each("index_put T.index_put_", X, (i(2), i(2)), f(2)),
    _c("take", X, i(2, high=12)),
    _c("masked_select", X, b(3, 4)),
    _c("T.__getitem__", M, 1),
    _c("T.__getitem__", M, (0, 2)),
    _c("T.__getitem__", M, i(2, high=2)),
    _c("T.__getitem__", M, (i(2, high=2), i(2))),
    _c("T.__setitem__", X, 1, V),
    _c("T.__setitem__", X, i(2), V),
    _c("bincount", i(5)),
    _c("multinomial", X, 2),
    _c("bernoulli", X),
]
LINEAR = [
    *_each("matmul mm T.__matmul__", X, f(4, 5)),
    _c("matmul", M, f(4, 5)),
    *_each("bmm", M, f(2, 4, 5)),
    *_each("mv", X, V),
    *_each("dot outer ger", V, V),
    *_each("addmm T.addmm_", f(3, 5), X, f(4, 5), beta=0.5, alpha=2),
    *_each("baddbmm", f(2, 3, 5), M, f(2, 4, 5)),
    _c("einsum", "ij,jk->ik", X, f(4, 5)),
    _c("tensordot", M, f(3, 4, 2), 2),
    _c("tensordot", M, f(4, 3), ([1, 2], [1, 0])),
    _c("F.linear", X, f(5, 4), f(5)),
    *_each("bilinear F.bilinear", f(2, 3), f(2, 4), f(5, 3, 4), f(5)),
]
LAYERS = [
    *_each("conv1d F.conv1d", SIGNAL, f(6, 2, 3), f(6), 2, 1, 1, 2),
    *_each("conv2d F.conv2d", IMAGE, f(6, 4, 3, 3), f(6), (1, 2), "valid"),
    _c("F.conv2d", IMAGE, f(6, 4, 3, 3), None, 1, (1, 0)),
    *_each("conv3d", VOLUME, f(6, 4, 2, 2, 2), f(6)),
    *_each("conv_transpose1d", SIGNAL, f(4, 3, 3), f(6), 2, 1, 1, 2),
    *_each("conv_transpose2d", IMAGE, f(4, 6, 3, 3), f(6), 2, 1, 1),
    *_each("conv_transpose3d", VOLUME, f(4, 2, 2, 2, 2)),
    *_each("F.max_pool1d F.avg_pool1d", SIGNAL, 2, 2, 1),
    *_each("F.max_pool2d F.avg_pool2d", IMAGE, (2, 3), 2, 1),
    *_each("F.max_pool3d F.avg_pool3d", VOLUME, 2),
    *_each("F.adaptive_avg_pool1d F.adaptive_max_pool1d", SIGNAL, 3),
    *_each("F.adaptive_avg_pool2d F.adaptive_max_pool2d", IMAGE, (3, 2)),
    *_each("F.adaptive_avg_pool3d F.adaptive_max_pool3d", VOLUME, 2),
    _c("F.batch_norm", IMAGE, f(4), f(4), f(4), f(4), True, 0.1, 1e-5),
    _c("F.batch_norm", f(5, 4), f(4), f(4)),
    _c("F.instance_norm", IMAGE, None, None, f(4), f(4)),
    _c("F.layer_norm", X, (4,), f(4), f(4)),
    _c("F.rms_norm", X, (4,), f(4)),
    _c("F.group_norm", IMAGE, 2, f(4), f(4)),
    _c("F.local_response_norm", IMAGE, 2),
    _c("F.local_response_norm", f(2, 4, 3), 2),
    _c("F.normalize", X, 2.0, 1),
    *_each("F.dropout F.alpha_dropout", X, 0.5, True),
    *_each("F.dropout1d", SIGNAL, 0.5, True),
    *_each("F.dropout2d", IMAGE, 0.5, True),
    *_each("F.dropout3d", VOLUME, 0.5, True),
    *_each(_ACTIVATIONS, X),
    *_each("F.threshold", X, 0.5, 2.0),
    *_each("prelu F.prelu", X, f(4)),
    _c("F.gelu", X, approximate="tanh"),
    _c("F.embedding", i(2, 3, high=5), f(5, 4), 1),
    _c("F.embedding_bag", i(2, 3, high=5), f(5, 4)),
    _c("F.one_hot", i(4), 3),
    _c("F.pad", X, (1, 2), "constant", 0.5),
    _c("F.pad", SIGNAL, (1, 2), "reflect"),
    _c("F.interpolate", IMAGE, scale_factor=2.0, mode="nearest"),
    _c("F.interpolate", IMAGE, (5, 4), mode="bilinear"),
    _c("F.grid_sample", IMAGE, f(2, 3, 2, 2), "bilinear", "zeros", False),
    _c("F.affine_grid", f(2, 2, 3), (2, 4, 3, 5), False),
    *_each("F.pixel_shuffle", IMAGE, 2),
    *_each("F.pixel_unshuffle", f(2, 3, 4, 6), 2),
    _c("F.unfold", IMAGE, 2, 1, 1, 2),
    _c("F.fold", f(2, 8, 12), (4, 5), (2, 2)),
    _c("F.channel_shuffle", IMAGE, 2),
    _c("F.scaled_dot_product_attention", IMAGE, f(2, 4, 5, 7), f(2, 4, 5, 3), f(6, 5), 0.0, False, scale=0.5),
    _c("F.scaled_dot_product_attention", IMAGE, IMAGE, IMAGE, b(6, 6)),
    _c("F.scaled_dot_product_attention", M, M, M, is_causal=True),
    _c("F.multi_head_attention_forward", M, M, M, 4, 2, f(12, 4), f(12), None, None, False, 0.0, f(4, 4), f(4), True, b(3, 2)),
]
LOSSES = [
    *_each(_LOSSES, X, X),
    *_each("F.mse_loss F.l1_loss F.kl_div", X, X, reduction="sum"),
    *_each("F.cross_entropy F.nll_loss", X, i(3, high=4)),
    _c("F.cross_entropy", X, i(3, high=4), f(4), ignore_index=1, label_smoothing=0.1, reduction="sum"),
    _c("F.cross_entropy", X, X),
    _c("F.nll_loss", IMAGE, i(2, 6, 7)),
    _c("F.ctc_loss", f(6, 2, 5), i(2, 3, high=4), (6, 5), (3, 2), 4, "sum"),
    *_each("cosine_similarity F.cosine_similarity F.pairwise_distance", X, X, 1),
    *_each("cdist", X, X),
    _c("F.cosine_embedding_loss", X, X, f(3)),
    _c("F.margin_ranking_loss", X, X, X),
    _c("F.triplet_margin_loss", X, X, X),
    _c("F.gaussian_nll_loss", X, X, X),
]
CREATION = [
    *_each("zeros ones rand randn", 3, 4),
    *_each("zeros ones rand randn", (3, 4)),
    _c("zeros", 3, 4, dtype="int64"),
    _c("full", (3, 4), 2.0),
    _c("arange", 1, 7, 2),
    _c("linspace", 0.0, 1.0, 5),
    *_each("eye tril_indices triu_indices", 3, 4),
    _c("randint", 0, 5, (3, 4)),
    _c("randperm", 5),
    _c("normal", X, X),
    _c("tensor", [[1.0, 2.0], [3.0, 4.0]]),
    _c("as_tensor", [1, 2]),
    *_each("rand_like randn_like", X),
    _c("randint_like", X, 0, 5),
    *_each("T.new_zeros T.new_ones", X, (2, 2)),
    _c("T.new_full", X, (2, 2), 1.5),
]
CALLS = [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING, *LINEAR, *LAYERS, *LOSSES, *CREATION]
