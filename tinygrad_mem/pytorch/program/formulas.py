"""Formulas for shapes, layouts and storages of results, where those of PyTorch's fake tensors differ from its kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import DataDependenceError
from ...interrupts import changed
from .described import Made
from .dispatcher import operators
from .fake import on_gpu

aten = torch.ops.aten
_BIAS_TRAINED = 10  # place of an argument of efficient attention's backward, after its bias
_LINE = 16  # bytes: rows of a grouped product begin at multiples of it on CUDA


def _where(condition: torch.Tensor, *values: Any) -> torch.Tensor:
    """PyTorch's formula takes a condition of bool alone, its kernels one of uint8, too. Source: ``TensorCompare.cpp``."""
    if condition.dtype is not torch.uint8:
        return NotImplemented
    return aten.where.self(torch.empty_like(condition, dtype=torch.bool), *values)


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product for each group of rows, or of columns; PyTorch's formula takes bfloat16 alone.

    Source: ``aten/src/ATen/native/GroupedMMUtils.h``, ``create_grouped_gemm_output_tensor``.
    """
    groups = [] if a.dim() != b.dim() else [offs.shape[0] if offs is not None else a.shape[0]]
    rows, columns, dtype = a.shape[-2], b.shape[-1], out_dtype or a.dtype
    line = _LINE // dtype.itemsize if on_gpu(a) else 1
    padded = -(-columns // line) * line
    strides = [rows * padded] * len(groups) + [padded, 1]
    return a.new_empty_strided([*groups, rows, columns], strides, dtype=dtype)


def _random_on_cpu(func: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Put efficient attention's seed and offset of random numbers on the CPU. Source: ``transformers/cuda/attention.cu``."""
    made, sums, _seed, _offset, *rest = func(*args, **kwargs)
    return made, sums, *(made.new_empty((), dtype=torch.int64, device="cpu") for _ in range(2)), *rest


def _cudnn_attention(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return no sums if no gradient is needed. Source: ``transformers/cuda/attention.cu``; ``cudnn/MHA.cpp``."""
    made = aten._scaled_dot_product_cudnn_attention.default(*args, **kwargs)
    wanted = args[4] if len(args) > 4 else kwargs["compute_log_sumexp"]
    return made if wanted else (made[0], None, *made[2:])


def _attention_layer(
    query: torch.Tensor, key: Any, value: Any, width: int, heads: int, *given: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Source: ``aten/src/ATen/native/transformers/attention.cpp``, ``native_multi_head_attention_cpu``."""
    need_weights, average = (*given[5:7], *(True, True)[len(given[5:7]) :])
    places = query.shape[1], query.shape[1]
    weights = query.new_empty((query.shape[0], *(() if average else (heads,)), *places)) if need_weights else None
    return query.new_empty(query.shape), weights


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss of each sequence, and a table of all its steps, as wide as the longest target; see :mod:`.reading`.

    Source: ``aten/src/ATen/native/LossCTC.cpp``.
    """
    if targets.dim() != 2:
        raise DataDependenceError(
            "ctc_loss: the lengths of concatenated targets are not known in a prediction. Give targets of shape "
            "(batch, longest)"
        )
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[1] + 1)


def _keeps_all(func: Any, input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The formula of a loss that PyTorch allocates for all elements, and then resizes to one number: its memory stays as large.

    Source: ``aten/src/ATen/native/Loss.cpp``, the meta functions of ``mse_loss`` and ``smooth_l1_loss``, and
    ``soft_margin_loss_out``; ``cuda/Loss.cu``, ``binary_cross_entropy_out_cuda``.
    """
    made = func(input, target, *args, **kwargs)
    return _in_block(made, torch.broadcast_shapes(input.shape, target.shape).numel() * made.element_size())


def _kaiser_window(func: Any, length: int, periodic: bool = True, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A periodic window is a part of one that is a number longer. Source: ``aten/src/ATen/native/TensorFactories.cpp``."""
    made = func(length, *((periodic, *args) if "periodic" in func._schema.arguments[1].name else ()), **kwargs)
    return _in_block(made, (length + (periodic and length > 1)) * made.element_size())


def _in_block(made: torch.Tensor, size: int) -> torch.Tensor:
    """A result in a block of at least ``size`` bytes."""
    made.untyped_storage().resize_(max(size, made.untyped_storage().nbytes()))
    return made


def _to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """PyTorch's kernel, which its formula for fake tensors differs from: that returns the tensor itself for its own device,
    and for another one keeps gaps between elements.

    Source: ``aten/src/ATen/native/TensorConversions.cpp``, ``_to_copy``.
    """
    device, dtype = options.get("device"), options.get("dtype") or tensor.dtype
    if device == tensor.device:
        return torch.empty_like(tensor, dtype=dtype, memory_format=options.get("memory_format") or torch.preserve_format)
    if device is None or options.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    if Made.of(tensor).needed == tensor.numel() * tensor.element_size():
        return NotImplemented
    layout = suggest_memory_format(tensor)
    return torch.empty(tensor.shape, dtype=dtype, device=device, memory_format=layout)


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *rest: Any,
    **_: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Call PyTorch's formula, which lacks one of the arguments.

    Source: ``aten/src/ATen/native/transformers/cuda/attention_backward.cu``, ``_efficient_attention_backward``.
    """
    grads = [each.new_empty(each.shape) for each in (query, key, value)]
    if bias is None or not rest[_BIAS_TRAINED]:
        return *grads, None
    *outer, last = bias.shape
    return *grads, bias.new_empty(*outer, -(-last // _LINE) * _LINE)[..., :last]


def _log_sigmoid(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an empty buffer on a GPU: only the CPU's kernel has one."""
    made, buffer = aten.log_sigmoid_forward.default(tensor)
    return made, made.new_empty(0) if on_gpu(made) else buffer


def _columns(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The result uses a block as large as the input, if that is larger. Source: ``aten/src/ATen/native/cuda/Im2Col.cu``."""
    made = func(tensor, *args, **kwargs)
    return _in_block(made, tensor.numel() * tensor.element_size()) if on_gpu(tensor) else made


def _geqrf(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reflections, column by column, and a number for each. Source: ``BatchLinearAlgebra.cpp``, ``geqrf_out_helper``."""
    *batch, rows, columns = matrix.shape
    made = matrix.new_empty((*batch, columns, rows)).mT
    return made, matrix.new_empty((*batch, min(rows, columns)))


def _quantized(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantized numbers, and a mask of those between the bounds. Source: ``quantized/FakeQuantPerTensorAffine.cpp``."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


def _bincount(tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Assume that the numbers are below ``minlength``; without it their values are needed.

    Source: ``aten/src/ATen/native/SummaryOps.cpp``.
    """
    if not minlength:
        return NotImplemented
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return tensor.new_empty(minlength, dtype=dtype)


def _like_argument(place: int) -> Callable[..., torch.Tensor]:
    """The formula of an op whose result is like one of its arguments, and contiguous."""
    return lambda *args, **_: args[place].new_empty(args[place].shape)


def _statistics(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two statistics of each channel, in the dtype in which they are summed up. Source: ``Normalization.cuh``,
    ``batch_norm_stats_cuda_template``, ``batch_norm_gather_stats_cuda_template``."""
    dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    return like.new_empty(like.shape[1], dtype=dtype), like.new_empty(like.shape[1], dtype=dtype)


def _batch_norm_reduced(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    *needed: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Source: ``Normalization.cuh``, ``batch_norm_backward_reduce_cuda_template``."""
    sums = [torch.empty_like(mean) if needed[0] else None for _ in range(2)]
    like = mean if weight is None else weight
    return *sums, *(like.new_empty(tensor.shape[1]) if each else None for each in needed[1:])


def _like_its_layout(place: int) -> Callable[..., torch.Tensor]:
    """The formula of an op whose result has the shape and the layout of one of its arguments."""
    return lambda *args, **_: torch.empty_like(args[place])


def _uncached(func: Any, tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    """Run an op past the cache of the mode of fake tensors, which would keep the storages of its calls alive."""
    with changed(tensor.fake_mode, cache_enabled=False):
        return func(tensor, *args, **kwargs)


def _of(ops: tuple[Any, ...], formula: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Bind PyTorch's own formula as the first argument, for each of these ops."""
    return {op.default: partial(formula, op.default) for op in ops}


def _index_put(tensor: FakeTensor, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    """``_index_put_impl_``, of which PyTorch's fake tensors refuse indices of the host; autograd gives them to it."""
    return aten.index_put_(tensor, indices, values, accumulate)


SETS = {aten.set_.source_Storage, aten.set_.source_Storage_storage_offset}
FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.where.self: _where,
    aten._index_put_impl_.default: _index_put,
    aten._grouped_mm.default: _grouped_mm,
    **_of((aten._scaled_dot_product_efficient_attention, aten._efficient_attention_forward), _random_on_cpu),
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    aten._transformer_encoder_layer_fwd.default: _like_argument(0),
    aten._native_multi_head_attention.default: _attention_layer,
    aten._to_copy.default: _to_copy,
    aten._efficient_attention_backward.default: _efficient_backward,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten._ctc_loss_backward.Tensor: _like_argument(1),
    aten.bincount.default: _bincount,
    aten.geqrf.default: _geqrf,
    **dict.fromkeys(
        operators("_sample_dirichlet _dirichlet_grad _standard_gamma _standard_gamma_grad binomial"), _like_argument(0)
    ),
    **dict.fromkeys(
        operators("fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"), _quantized
    ),
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _quantized,
    aten.multi_margin_loss_backward.default: _like_argument(1),
    aten.multilabel_margin_loss_backward.default: _like_argument(1),
    aten.fractional_max_pool3d_backward.default: _like_argument(1),
    **_of((aten.im2col, aten.col2im), _columns),
    aten.batch_norm_stats.default: lambda tensor, eps: _statistics(tensor),
    aten.batch_norm_gather_stats_with_counts.default: lambda tensor, means, *_: _statistics(means),
    aten.batch_norm_backward_reduce.default: _batch_norm_reduced,
    aten.batch_norm_elemt.default: _like_its_layout(0),
    aten.batch_norm_backward_elemt.default: _like_its_layout(1),
    aten.binary_cross_entropy_backward.default: _like_its_layout(1),  # ``Loss.cpp``; ``cuda/Loss.cu``
    **_of((aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss), _keeps_all),
    **{op: partial(_kaiser_window, op) for op in operators("kaiser_window kaiser_window.periodic kaiser_window.beta")},
    **{op: partial(_uncached, op) for op in SETS},
}
