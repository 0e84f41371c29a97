"""Convolutions: cuDNN chooses an algorithm, and only cuDNN knows what that takes."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, row, up

_CHANNELS = 8  # tensor cores take multiples of these


def usual(tensor: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> int:
    """Bytes of cuDNN's usual algorithms at most: input, weight and result again, channels a multiple of 8, and 1 MiB.

    A copy in another layout, or a transformed weight, is what they take. It is no limit: those that transform the input (FFT,
    Winograd in several kernels) take more, and without ``torch.backends.cudnn.benchmark`` cuDNN's heuristics choose.
    """
    width = tensor.element_size()
    images = sum(_padded(each) * width for each in (tensor, out))
    kernel = up(weight.shape[0], _CHANNELS) * up(weight.shape[1], _CHANNELS) * _CHANNELS**2 * prod(weight.shape[2:]) * width
    return images + kernel + (1 << 20)


def _padded(image: torch.Tensor) -> int:
    return prod(image.shape) // max(image.shape[1], 1) * up(image.shape[1], _CHANNELS) * _CHANNELS


def _depthwise(call: KernelCall, tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    """True if PyTorch's own kernel runs, which takes nothing. Source: ``Convolution.cpp``, ``use_cudnn_depthwise``."""
    return call["groups"] == tensor.shape[1] > 1 and weight.shape[1] == 1 and tensor.dtype == torch.float32


@row(
    "convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose", "cudnn_convolution_relu",
    takes="after the result: the workspace of the algorithm that cuDNN's heuristics choose, until the op ends: not known "
    "without the GPU (seen: 51,328 to 205,056 bytes for kernels of 5 x 5, about the weight once more); a copy of an input or a "
    "weight that is not contiguous",
    source="aten/src/ATen/native/cudnn/Conv_v8.cpp, run_conv_plan; cuDNN, cudnnBackendExecute",
    seen="cnn-small",
)  # fmt: skip
def convolution(call: KernelCall) -> None:
    tensor, weight = call.get("input", call.get("self")), call["weight"]
    if prod(tensor.shape) == 0 or _depthwise(call, tensor, weight):
        return
    call.bound(usual(tensor, weight, call.outs[0]), _why(call))


@row(
    "convolution_backward",
    takes="of each gradient a workspace after its result, as forward; a copy of a gradient that is not contiguous",
    source="aten/src/ATen/native/cudnn/Conv_v8.cpp; Convolution.cpp, convolution_backward",
    seen="cnn-small (the input's gradient)",
)
def convolution_backward(call: KernelCall) -> None:
    grad, tensor, weight = call["grad_output"], call["input"], call["weight"]
    if prod(tensor.shape) == 0 or _depthwise(call, tensor, weight):
        return
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if not (grad.is_contiguous() or (last and grad.is_contiguous(memory_format=torch.channels_last))):
        call.ask(nbytes(grad), "TEMPORARY")
    if any(call["output_mask"][:2]):
        call.bound(usual(tensor, weight, grad), _why(call))


def _why(call: KernelCall) -> str:
    how = "measures algorithms, each with as much as is free" if call.gpu.benchmark else "chooses an algorithm by heuristics"
    return f"cuDNN {how}: the workspace of a convolution is not known without the GPU"
