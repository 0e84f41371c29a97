"""Batch norm: partial sums of PyTorch's kernels in channels last, and the workspace of cuDNN's."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, accumulated, row, up
from .convolution import Image
from .reductions import power, reduce

_WIDTH, _THREADS = 32, 512  # of a block
_PIXELS, _BLOCKS = 16, 128  # that a thread adds up, and blocks at most that share a channel
_FEW = 8  # blocks: with fewer one block takes all pixels of its channels
_GROUP = 64  # channels of a block of cuDNN's
_CUDNN = "the workspace of cuDNN's batch norm in channels last is known of float32 with channels that are multiples of 4"


def _as_it_is(tensor: torch.Tensor) -> Image:
    """The tensor, with its own number of axes."""
    return Image(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def layout(tensor: torch.Tensor) -> str:
    """``"rows"``, ``"last"`` for channels last, or ``"other"``.

    Source: ``aten/src/ATen/native/cuda/Normalization.cu``, ``batch_norm_choose_impl``.
    """
    image = _as_it_is(tensor)
    if prod(image.shape) >= 1 << 31:
        return "other"
    if image.dense(False):
        return "last" if image.strides[1] == 1 else "rows"
    return "last" if tensor.dim() == 4 and image.dense(True) else "other"


def _last(tensor: torch.Tensor) -> bool:
    """Source: ``cuda/Normalization.cuh``, ``batch_norm_use_channels_last_kernels``."""
    image = _as_it_is(tensor)
    return (tensor.dim() > 3 and image.dense(True)) or (image.dense(False) and image.strides[1] == 1)


def blocks(pixels: int, channels: int) -> tuple[int, int]:
    """Blocks across the channels, and blocks that share one. Source: ``Normalization.cuh``, ``flexible_launch_configs``."""
    width = min(power(channels, _THREADS), _WIDTH)
    height = min(power(up(pixels, _PIXELS), _THREADS), _THREADS // width)
    if width * height != _THREADS:
        width = min(power(channels, _THREADS), _THREADS // height)
    sharing = min(up(pixels, height * _PIXELS), _BLOCKS)
    return up(channels, width), sharing if sharing >= _FEW else 1


def _staged(call: KernelCall, tensor: torch.Tensor, numbers: int) -> None:
    """Ask for the staging of blocks that share a channel: ``numbers`` for each block and channel, and their semaphores."""
    channels = tensor.shape[1]
    across, sharing = blocks(prod(tensor.shape) // max(channels, 1), channels)
    if sharing > 1:
        call.temporary(numbers * channels * sharing * accumulated(tensor.dtype), across * 4)


@row(
    "native_batch_norm",
    takes="in training, channels last: four numbers for each channel and each block that shares it, and a semaphore for each "
    "block across the channels; other strides: the staging of each channel's mean and variance; contiguous: nothing",
    source="cuda/Normalization.cu, batch_norm_mean_var; Normalization.cuh, batch_norm_stats_channels_last_cuda_template",
    seen="h100",
)
def native_batch_norm(call: KernelCall) -> None:
    tensor = call["input"]
    if not call["training"] or prod(tensor.shape) == 0:
        return
    if layout(tensor) == "last":
        _staged(call, tensor, 4)
    elif layout(tensor) == "other":
        others = [axis for axis in range(tensor.dim()) if axis != 1]
        reduce(call, tensor, others, 32 if tensor.dtype == torch.float64 else 16, 2)


@row(
    "native_batch_norm_backward",
    takes="contiguous: usually nothing. Channels last: before the results, two sums for each channel, and an inverse deviation "
    "if the forward saved none (as cuDNN's does); the gradients of weight and bias even if they are not needed; two numbers "
    "for each channel and each block that shares it, and semaphores. The input's gradient is allocated last",
    source="cuda/Normalization.cu, batch_norm_backward_cuda; Normalization.cuh, "
    "batch_norm_backward_reduce_cuda_channels_last_template",
    seen="h100",
)
def native_batch_norm_backward(call: KernelCall) -> None:
    tensor, mask, saved = call["input"], call["output_mask"], call["save_invstd"]
    sums = call["train"] or mask[1] or mask[2]
    if prod(tensor.shape) == 0 or (sums and mask[0] and not _last(tensor) and prod(tensor.shape) < 1 << 31):
        return
    each = tensor.shape[1] * accumulated(tensor.dtype)
    made = [] if saved is not None and saved.numel() else [call.temporary(each)]
    unwanted = []
    if sums:
        last = _last(tensor) and _last(call["grad_out"])
        made += [call.temporary(each) for _ in range(2 * (last or mask[0]))]
        for index in (1, 2):
            if mask[index]:
                call.result(index)
            elif last and call["weight"] is not None:  # made, and dropped
                unwanted.append(call.temporary(tensor.shape[1] * call["weight"].element_size()))
        if last:
            with call.within():
                _staged(call, tensor, 2)
    call.result(0)
    call.free(*reversed(made), *unwanted)


@row(
    "cudnn_batch_norm _batch_norm_impl_index miopen_batch_norm",
    takes="contiguous: nothing. Channels last, in training, for float32: 516 bytes for each 64 pixels of each 64 channels, 4 "
    "bytes for each 64 channels, and 1,072 bytes",
    source="cudnn/BatchNorm.cpp, cudnn_batch_norm; cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, by its sizes",
    seen="cnn-small (nothing: channels are the second axis), h100 (cuDNN 9.19, channels last, 450 sizes)",
)
def cudnn_batch_norm(call: KernelCall) -> None:
    if Image.of(call["input"]).last and call.get("training", True):
        _workspace(call, 64, 516, 1072)


@row(
    "cudnn_batch_norm_backward",
    takes="a copy of a gradient whose layout is not the input's; channels last, for float32: 512 bytes for each 96 pixels of "
    "each 64 channels, 4 bytes for each 64 channels, and 1,056 bytes",
    source="cudnn/BatchNorm.cpp, cudnn_batch_norm_backward; cudnnGetBatchNormalizationBackwardExWorkspaceSize, by its sizes",
    seen="cnn-small (nothing), h100 (cuDNN 9.19, channels last, 450 sizes)",
)
def cudnn_batch_norm_backward(call: KernelCall) -> None:
    gradient, last = Image.of(call["grad_output"]), Image.of(call["input"]).last
    call.temporary(0 if gradient.dense(last) else gradient.size)
    if last:
        _workspace(call, 96, 512, 1056)


def _workspace(call: KernelCall, block: int, each: int, rest: int) -> None:
    """The results, and then ``each`` bytes for each ``block`` pixels and group of channels, 4 for each group, and the rest."""
    tensor = call["input"]
    groups, pixels = up(tensor.shape[1], _GROUP), prod(tensor.shape) // max(tensor.shape[1], 1)
    size = up(pixels, block) * groups * each + 4 * groups + rest
    call.result(0, 1, 2)
    seen = tensor.dtype == torch.float32 and tensor.shape[1] % 4 == 0 and tensor.dim() == 4
    known = seen and call.gpu.capability == (9, 0) and call.gpu.cudnn >= 90000
    call.once(size)
    if not known:
        call.bound(size + (1 << 20), _CUDNN + " on a Hopper")


@row(
    "batch_norm_stats batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_backward_elemt",
    takes="batch_norm_stats in channels last: as native_batch_norm; the others: nothing",
    source="cuda/Normalization.cu, batch_norm_stats_cuda",
)
def batch_norm_stats(call: KernelCall) -> None:
    if call.name.endswith("batch_norm_stats") and layout(call["input"]) == "last":
        _staged(call, call["input"], 4)


@row(
    "batch_norm_backward_reduce",
    takes="in channels last: two numbers for each channel and each block that shares it, and semaphores",
    source="cuda/Normalization.cu, batch_norm_backward_reduce_cuda; Normalization.cuh, "
    "batch_norm_backward_reduce_cuda_channels_last_template",
)
def batch_norm_backward_reduce(call: KernelCall) -> None:
    if _last(call["input"]) and _last(call["grad_out"]):
        _staged(call, call["input"], 2)
