"""The decisions by device in PyTorch's composite functions, made as on CUDA.

C++ sees tensors of the GPU on ``meta``, so these would take the CPU's way. Each kernel here does what the function named in its
``Source`` does for a tensor on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._meta_registrations import pooling_output_shape
from torch.autograd import forward_ad

from .dispatcher import operators
from .fake import on_gpu

aten = torch.ops.aten
KERNELS: dict[str, Callable[..., Any]] = {}
_C: Any = torch._C
_WITHOUT_GRAD, _MAKES_VIEWS = _C.DispatchKey.CompositeExplicitAutograd, _C.DispatchKey.CompositeExplicitAutogradNonFunctional
OF_OTHERS = {
    **dict.fromkeys(
        [
            *operators("binary_cross_entropy_with_logits _euclidean_dist _safe_softmax dist isinf mvlgamma"),
            *operators("_is_all_true _is_any_true affine_grid_generator"),
            *operators("ldexp.Tensor ldexp_ ldexp.out _unsafe_masked_index _unsafe_masked_index_put_accumulate"),
        ],
        _WITHOUT_GRAD,
    ),
    **dict.fromkeys(operators("_trilinear linalg_pinv.atol_rtol_tensor"), _MAKES_VIEWS),
}
"""Ops that PyTorch's C++ makes of others, with temporaries: by the key of that kernel. They have no other on a GPU."""
_LDEXP = {aten.ldexp.Tensor: aten.mul.Tensor, aten.ldexp_.default: aten.mul_.Tensor, aten.ldexp.out: aten.mul.out}
_MOST_ROWS_TRAINING, _MOST_ROWS = 880_801, 65_535  # of a batch that cuDNN's batch norm takes


def _composite(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(kernel: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS.update(dict.fromkeys(names, kernel))
        return kernel

    return add


def first_of(made: Any) -> torch.Tensor:
    """The first of an op's results. The others are freed in their order, as in C++, and not from the last one on."""
    first, *others = made
    del made
    others.reverse()
    return first


@_composite("dropout")
def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Source: ``aten/src/ATen/native/Dropout.cpp``: one kernel that keeps a mask of booleans."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input.mul(input.new_zeros(()))  # as the CPU does
    return first_of(aten.native_dropout(input, p, True))


def made_of_others(op: Any, version: tuple[int, int], *args: Any, **kwargs: Any) -> Any:
    """The result of an op of :data:`OF_OTHERS`; ``NotImplemented``: a kernel of its own makes it.

    Source: ``aten/src/ATen/native/BinaryOps.cpp``, ``ldexp``: one kernel for whole exponents, known of PyTorch 2.11.
    """
    if op in _LDEXP and args[0].is_floating_point() and not args[1].is_floating_point():
        return NotImplemented if version >= (2, 11) else _LDEXP[op](args[0], torch.pow(2.0, args[1]), **kwargs)
    return op._op_dk(OF_OTHERS[op], *args, **kwargs)


def observed(input: torch.Tensor, observer: torch.Tensor, fakes: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Quantization with an observer of each channel: the first call makes its tensors as long as the channels.

    Source: ``quantized/cpu/fused_obs_fake_quant.cpp``, ``fused_moving_avg_obs_fake_quant_cpu``.
    """
    names = ("low", "high", "scale", "zero_point", "rate", "least", "most", "ch_axis", "per_row_fake_quant", "symmetric_quant")
    given = dict(zip(names, args, strict=False)) | kwargs
    written = args[:4]
    if given.get("per_row_fake_quant") and len(written) == 4 and written[0].numel() == 0:
        with torch.no_grad():
            for tensor in written:
                tensor.resize_(input.shape[given["ch_axis"]])
    return NotImplemented


def max_pool1d(
    input: torch.Tensor,
    kernel_size: list[int],
    stride: list[int] = (),  # type: ignore[assignment]
    padding: list[int] = (0,),  # type: ignore[assignment]
    dilation: list[int] = (1,),  # type: ignore[assignment]
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Max pooling on the CPU, whose kernel keeps no indices if there is no gradient.

    Source: ``aten/src/ATen/native/MaxPooling.cpp``.
    """
    if (input.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0 or input.dim() not in (2, 3):
        return aten.max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)[0]
    kernel, step = kernel_size[0], (stride or kernel_size)[0]
    length = pooling_output_shape(input.shape[-1], kernel, padding[0], step, dilation[0], ceil_mode)
    made = input.new_empty((*input.shape[:-1], length))
    input.contiguous()  # ends when it has been read
    return made


def _softmax(name: str) -> None:
    inner = getattr(aten, f"_{name}").default

    @_composite(f"{name}.int")
    def kernel(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Source: ``aten/src/ATen/native/SoftMax.cpp``: half to float without a copy of the input."""
        if input.dtype is torch.float16 and dtype is torch.float32:
            return inner(input, dim, True)
        return inner(input if dtype is None else input.to(dtype), dim, False)


_softmax("softmax")
_softmax("log_softmax")


@_composite("batch_norm")
def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """Source: ``aten/src/ATen/native/Normalization.cpp``, ``batch_norm``, ``_select_batch_norm_backend``."""
    if not input.numel():
        scaled = input.clone() if weight is None else input.clone() * weight[0]
        return scaled if bias is None else scaled + bias[0]
    statistics = (running_mean is None) == (running_var is None) and (running_mean is not None or training)
    rows = input.shape[0] if input.dim() else 0
    cudnn = (
        cudnn_enabled
        and weight is not None
        and bias is not None
        and input.dtype is not torch.bfloat16
        and weight.dtype is not torch.bfloat16
        and (input.dtype is not torch.float16 or weight.dtype is torch.float32)
        and statistics
        and input.dim() >= 3
        and rows <= (_MOST_ROWS_TRAINING if training else _MOST_ROWS)
        and eps >= 1e-5
        and input.numel() < 2**31 - 1
    )
    if cudnn:
        layout = torch.channels_last if input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last) else None
        input = input.contiguous(memory_format=layout or torch.contiguous_format)
        return first_of(aten.cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps))
    return first_of(aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps))


def compared(left: Any, right: Any = None) -> None:
    """The masks of ``equal`` of two tensors of the GPU. Source: ``aten/src/ATen/native/cuda/Equal.cpp``, ``cuda_equal``."""
    if right is not None and on_gpu(right):
        mask = aten.eq.Tensor(left, right)
        every = mask.all()
        del every


@_composite("cumprod_backward")
def cumprod_backward(grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor) -> torch.Tensor:
    """The way of numbers without zeros; see :data:`.by_values.NODES`. PyTorch's own code takes another one for tensors of a
    prediction. Source: ``aten/src/ATen/native/ReduceOps.cpp``."""
    if input.numel() <= 1 or input.shape[dim] == 1:
        return grad
    weighted = output.conj() * grad
    zeros = input == 0
    zeros.any()
    turned = weighted.flip(dim)
    sums = turned.cumsum(dim)
    back = sums.flip(dim)
    del sums, turned  # C++ ends the temporaries of an expression after it, the last one first
    made = back / input.conj()
    del back, zeros, weighted
    return made


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One kernel that makes a number of each row beside its result; below autograd. Source: ``cuda/layer_norm_kernel.cu``,
    ``_fused_rms_norm_cuda``: since PyTorch 2.9."""
    dense = input.contiguous()  # ends with the op
    made = torch.empty_like(dense)
    wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    rows = input.shape[: input.dim() - len(normalized_shape)]
    return made, input.new_empty(*rows, *[1] * len(normalized_shape), dtype=wide)


def activation_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """One kernel that makes its result alone. Source: ``aten/src/ATen/native/Activation.cpp``."""
    return torch.empty_like(input)


BELOW_AUTOGRAD: dict[str, Callable[..., Any]] = dict.fromkeys(("silu_backward", "mish_backward"), activation_backward)
if hasattr(aten, "_fused_rms_norm"):
    BELOW_AUTOGRAD["_fused_rms_norm"] = fused_rms_norm
"""Ops that PyTorch makes of others where CUDA has no kernel, as in builds without it. Their gradients are PyTorch's own."""


def _with_vectors(matrix: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and matrix.requires_grad


@_composite("linalg_svdvals")
def svdvals(matrix: torch.Tensor, driver: str | None = None) -> torch.Tensor:
    """Source: ``aten/src/ATen/native/BatchLinearAlgebra.cpp``: vectors for a gradient, but also for tensors of a prediction."""
    return aten._linalg_svd(matrix, False, _with_vectors(matrix), driver=driver)[1]


@_composite("linalg_eigvalsh")
def eigvalsh(matrix: torch.Tensor, uplo: str = "L") -> torch.Tensor:
    """Source: as that of :func:`svdvals`."""
    return aten._linalg_eigh(matrix, uplo, _with_vectors(matrix))[0]
