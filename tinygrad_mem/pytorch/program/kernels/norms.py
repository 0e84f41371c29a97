"""Normalization, dropout and losses: partial sums of their backward, and in which order they ask for results."""

from __future__ import annotations

from math import prod

import torch
from torch._prims_common import suggest_memory_format

from .call import KernelCall, accumulated, nbytes, row, up
from .reductions import summed


@row(
    "native_dropout _fused_dropout",
    takes="nothing; the mask is allocated before the result",
    source="cuda/Dropout.cu, dropout_cuda",
    seen="cnn-small",
)
def dropout(call: KernelCall) -> None:
    call.result(1, 0)


@row(
    "native_layer_norm",
    takes="copies of arguments that are not contiguous",
    source="cuda/layer_norm_kernel.cu, layer_norm_cuda",
)
def layer_norm(call: KernelCall) -> None:
    call.copies("input", "weight", "bias")
    call.result(0, 1, 2)


@row(
    "native_layer_norm_backward _fused_rms_norm_backward",
    takes="copies of arguments that are not contiguous, the gradient's after the results; since PyTorch 2.8, for more than "
    "65,536 rows of few columns: partial gradients of weight and bias, a row for every 32 rows, and their sums, which replace "
    "the first results",
    source="cuda/layer_norm_kernel.cu, LayerNormBackwardKernelImplInternal, LaunchGammaBetaBackwardCUDAKernel",
    seen="h100",
)
def layer_norm_backward(call: KernelCall) -> None:
    tensor, weight = call["input"], call["weight"]
    call.copies("input", "weight")
    columns = prod(call["normalized_shape"])
    rows = prod(tensor.shape) // max(columns, 1)
    kept = [place for place, wanted in enumerate(call["output_mask"]) if wanted and place]
    few = call.gpu.version < (2, 8) or rows <= 64 * 1024 or columns // 32 >= call.gpu.processors // 2
    if few or not kept:
        call.result(*range(len(call.outs)))
        call.contiguous(call["grad_out"])
        return
    call.result(0)
    like = weight if weight is not None else tensor
    first = [call.temporary(columns * like.element_size()) for _ in kept]
    call.contiguous(call["grad_out"])
    parts = like.new_empty((min(32 * 1024 // up(columns, 32), up(rows, 32)), columns))
    for _ in kept:
        call.temporary(nbytes(parts))
    for place, replaced in zip(kept, first, strict=True):
        call.result(place)
        with call.within():
            summed(call, parts, 0)
        call.free(replaced)


@row(
    "native_group_norm",
    takes="with a weight or bias, and more than one value in a channel: two numbers for each channel of each sample (in "
    "float32 for 16 bits)",
    source="cuda/group_norm_kernel.cu, GroupNormKernelImplInternal",
)
def group_norm(call: KernelCall) -> None:
    if call["HxW"] > 1 and (call["weight"] is not None or call["bias"] is not None):
        call.temporary(*[call["N"] * call["C"] * accumulated(call["input"].dtype)] * 2)


@row(
    "native_group_norm_backward",
    takes="two numbers for each channel of each sample; for the input's gradient also two for each group of each sample, and, "
    "with a weight and more than one value in a channel, one more for each channel of each sample",
    source="cuda/group_norm_kernel.cu, GroupNormBackwardKernelImplInternal, GroupNorm1dBackward",
    seen="h100",
)
def group_norm_backward(call: KernelCall) -> None:
    width = accumulated(call["input"].dtype)
    call.temporary(*[call["N"] * call["C"] * width] * 2)
    if not call["output_mask"][0]:
        return
    groups = [call.temporary(call["N"] * call["group"] * width) for _ in range(2)]
    scales = call["weight"] is not None and call["HxW"] > 1
    scale = call.temporary(scales * call["N"] * call["C"] * width)
    call.free(*reversed(groups), scale)


@row(
    "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
    takes="copies of arguments that are not contiguous; nll_loss2d_forward asks for its second result first",
    source="cuda/Loss.cu, NLLLoss2d.cu",
    seen="h100",
)
def nll_loss(call: KernelCall) -> None:
    if call.name == "aten::nll_loss2d_forward":
        call.result(1, 0)
    call.copies(*["self"] * ("2d" in call.name), "target", "weight")


@row(
    "soft_margin_loss_backward",
    takes="before the result: minus the targets, their products with the input, and the exponentials of these, each as large "
    "as the result",
    source="Loss.cpp, soft_margin_loss_backward_out",
    seen="h100",
)
def soft_margin_backward(call: KernelCall) -> None:
    size = nbytes(call.outs[0])
    negative, product = call.temporary(size), call.temporary(size)
    call.temporary(size)
    call.free(product, negative)
    call.result(0)


@row(
    "mse_loss smooth_l1_loss huber_loss",
    takes="with a reduction: the loss of each element, and the staging of their sum; mse_loss and smooth_l1_loss first make "
    "their result as large as all losses, and it keeps that block",
    source="Loss.cpp, mse_loss_out, smooth_l1_loss_out, huber_loss",
    seen="h100",
)
def losses(call: KernelCall) -> None:
    if call["reduction"] == 0:
        return
    shape = torch.broadcast_shapes(call["self"].shape, call["target"].shape)
    each = call.outs[0].new_empty(shape)
    call.temporary(nbytes(each))
    if "huber" in call.name:
        call.result(0)
    summed(call, each)


@row(
    "binary_cross_entropy soft_margin_loss",
    takes="with a reduction: a number, and the staging of the losses' sum; the result keeps the block of all losses",
    source="cuda/Loss.cu, binary_cross_entropy_out_cuda; Loss.cpp, soft_margin_loss_out",
    seen="h100",
)
def binary_cross_entropy(call: KernelCall) -> None:
    if call["reduction"]:
        call.temporary(call["self"].element_size())
        summed(call, call["self"])


@row(
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d",
    takes="a copy of an input that is not contiguous in its memory format; upsample_bilinear2d: only in channels last",
    source="cuda/DilatedMaxPool2d.cu, AveragePool2d.cu, AdaptiveAveragePooling.cu, UpSampleNearest2d.cu, UpSampleBilinear2d.cu",
    seen="cnn-small (nothing)",
)
def pools(call: KernelCall) -> None:
    tensor = call.get("self", call.get("input"))
    order = suggest_memory_format(tensor)
    if order == torch.channels_last or "bilinear" not in call.name:
        call.contiguous(tensor, order)


@row(
    "max_pool2d_with_indices_backward avg_pool2d_backward",
    takes="copies of the input and of the gradient, if they are not contiguous in the input's memory format",
    source="cuda/DilatedMaxPool2d.cu, AveragePool2d.cu",
    seen="cnn-small (nothing)",
)
def pools_backward(call: KernelCall) -> None:
    order = suggest_memory_format(call["self"])
    call.contiguous(call["self"], order)
    call.contiguous(call["grad_output"], order)


@row(
    "adaptive_max_pool2d",
    takes="channels last: contiguous copies of both results and of the input; else a copy of an input that is not contiguous",
    source="cuda/AdaptiveMaxPooling2d.cu, adaptive_max_pool2d_out_cuda",
    seen="h100",
)
def adaptive_max_pool(call: KernelCall) -> None:
    for tensor in (*call.outs, call["self"]):
        call.contiguous(tensor)


@row(
    "adaptive_max_pool2d_backward",
    takes="copies of the gradient, of the indices and of the result, if they are not contiguous",
    source="cuda/AdaptiveMaxPooling2d.cu, adaptive_max_pool2d_backward_out_cuda",
    seen="h100",
)
def adaptive_max_pool_backward(call: KernelCall) -> None:
    for tensor in (call["grad_output"], call["indices"], *call.outs):
        call.contiguous(tensor)


@row(
    "_adaptive_avg_pool2d_backward",
    takes="a copy of a gradient that is not contiguous, unless the input is in channels last",
    source="cuda/AdaptiveAveragePooling.cu",
)
def adaptive_pool_backward(call: KernelCall) -> None:
    if suggest_memory_format(call["self"]) == torch.contiguous_format:
        call.contiguous(call["grad_output"])


@row(
    "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward",
    takes="a copy of a gradient that is not contiguous in its memory format; for upsample_bicubic2d, of one that is not "
    "row-major",
    source="cuda/UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu",
)
def upsample_backward(call: KernelCall) -> None:
    gradient = call["grad_output"]
    cubic = "bicubic" in call.name
    call.contiguous(gradient, torch.contiguous_format if cubic else suggest_memory_format(gradient))
