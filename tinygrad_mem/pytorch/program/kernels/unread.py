"""CUDA ops without a row: they allocate only their results, or their kernels were not read for the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from .call import NOTHING, Bound, Requests, nbytes, up

_ELEMENTWISE = """
    _conj_physical _prelu_kernel _prelu_kernel_backward addr binary_cross_entropy_backward celu complex copysign elu
    elu_backward eq floor_divide gcd ge gelu gelu_backward glu glu_backward gt hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward heaviside huber_loss_backward lcm le leaky_relu leaky_relu_backward
    log_sigmoid_backward log_sigmoid_forward lt masked_fill mish mish_backward mse_loss_backward ne polar rsub selu
    smooth_l1_loss_backward softplus_backward threshold threshold_backward xlogy
"""
_FILLING = """
    bernoulli cauchy empty_like exponential fill full_like geometric linspace log_normal logspace new_empty new_empty_strided
    new_full new_ones new_zeros ones_like poisson rand_like randint_like randn_like random uniform zero zeros_like
"""
_MOVING = """
    _unsafe_view as_strided_scatter block_diag cat constant_pad_nd diag_embed diagonal_backward
    diagonal_scatter flip index_copy index_fill lift repeat resize resize_as select_backward select_scatter
    set slice_backward slice_scatter stack take tril triu unsafe_split unsafe_split_with_sizes
"""
_OWN_KERNEL = """
    _amp_update_scale _dirichlet_grad _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _has_same_storage_numel
    _standard_gamma _standard_gamma_grad _weight_norm_interface _weight_norm_interface_backward binomial
    fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask is_same_size
"""
_BETWEEN_PIXELS = "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward upsample_bicubic2d"
_OF_EACH = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor frac lerp
    lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
    zero
"""
_FUSED = "_amp_foreach_non_finite_check_and_unscale _fused_adagrad _fused_adam _fused_adamw _fused_sgd"
RESULTS_ONLY = frozenset(f"{_ELEMENTWISE} {_FILLING} {_MOVING} {_OWN_KERNEL} {_BETWEEN_PIXELS} {_FUSED}".split())
RESULTS_ONLY |= {f"_foreach_{name}" for name in _OF_EACH.split()}
"""Ops whose kernels write into their results, and ask for nothing: one of PyTorch's iterators, a fill, or copies into a view.

Source, below ``aten/src/ATen/native``: for the first group ``TensorIterator.cpp``, ``Activation.cpp``, ``BinaryOps.cpp``,
``Loss.cpp``, ``cuda/Loss.cu``, ``LinearAlgebra.cpp``; for the second ``TensorFactories.cpp``, ``Fill.cpp``,
``Distributions.cpp``; for the third ``TensorShape.cpp``, ``cuda/Shape.cu`` (cat's addresses travel with the launch),
``PadNd.cpp``, ``TriangularOps.cpp``, ``TensorTransformations.cpp``, ``TensorAdvancedIndexing.cpp``; for the fourth
``cuda/AmpKernels.cu``, ``cuda/Distributions.cpp``, ``cuda/WeightNorm.cu``, ``quantized/FakeQuantPerTensorAffine.cpp``; for the
fifth ``cuda/GridSampler.cpp``, ``cuda/UpSampleBicubic2d.cu``, which read tensors of any strides; for lists of tensors
``cuda/MultiTensorApply.cuh``: their addresses are arguments of the kernel."""


_IN_ROWS = """
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _cdist_forward _embedding_bag_per_sample_weights_backward _pdist_forward
    _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward arange avg_pool3d
    avg_pool3d_backward channel_shuffle fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d
    fractional_max_pool3d_backward hardshrink_backward leaky_relu linalg_cross max_pool3d_with_indices
    max_pool3d_with_indices_backward mish_backward pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward
    reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward rot90
    rrelu_with_noise rrelu_with_noise_backward softshrink_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
    upsample_trilinear3d_backward
"""
_OF_DENSE = frozenset(_IN_ROWS.split())
"""Ops that allocated only their results in recordings of an H100, with row-major arguments."""


def unread(func: Any, args: tuple, kwargs: Mapping[str, Any], outputs: list[Any]) -> Requests:
    """The requests of an op without a row: none if it is known to need none, else a bound."""
    if _writes_only_results(func):
        return NOTHING
    given = [*args, *kwargs.values(), *outputs]
    tensors = [each for value in given for each in (value if isinstance(value, (list, tuple)) else [value])]
    tensors = [each for each in tensors if isinstance(each, torch.Tensor)]
    name, size = func._schema.name.removeprefix("aten::"), sum(512 * up(nbytes(each), 512) for each in tensors)  # as blocks
    if name.removesuffix("_") in _OF_DENSE and all(each.is_contiguous() for each in tensors):
        return NOTHING
    why = f"{name} is not in the table of kernels: taken as a copy of each argument and of each result"
    return Requests(bounds=(Bound(size, why),)) if size else NOTHING


@cache
def _writes_only_results(func: Any) -> bool:
    name, returns = func._schema.name.partition("::")[2], func._schema.returns
    return bool(
        func.namespace not in ("aten", "prims")
        or torch.Tag.pointwise in func.tags
        or {torch.Tag.view_copy, torch.Tag.inplace_view} & set(func.tags)
        or name.removesuffix("_") in RESULTS_ONLY
        or not any("Tensor" in str(each.type) for each in (*func._schema.arguments, *returns))
        or not any("Tensor" in str(each.type) for each in func._schema.arguments)
        or (bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns))
        or not returns
    )
