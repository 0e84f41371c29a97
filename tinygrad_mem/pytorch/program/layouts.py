"""Results whose strides are not those of PyTorch's formulas for fake tensors: the kernel or library that runs decides them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .dispatcher import operators
from .fake import on_gpu
from .kernels.call import named
from .kernels.convolution import Convolution, Image, channels_last, strides

aten = torch.ops.aten


def _convolution(*args: Any, **kwargs: Any) -> torch.Tensor:
    made = aten.convolution.default(*args, **kwargs)
    if not on_gpu(made):
        return made
    return _laid_out(made, Convolution(named(aten.convolution.default, args, kwargs)).last)


def _convolution_backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
    made = aten.convolution_backward.default(*args, **kwargs)
    if not any(map(on_gpu, made)):
        return made
    arguments = named(aten.convolution_backward.default, args, kwargs)
    found = Convolution(arguments)
    gradient, x = found.gradients(arguments["grad_output"], arguments["output_mask"][1])
    layouts = (False, False) if found.depthwise else (channels_last(gradient, found.weight), channels_last(x, gradient))
    first, second = [None if each is None else _laid_out(each, last) for each, last in zip(made, layouts, strict=False)]
    return first, second, made[2]


def _batch_norm_backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
    """Make the input's gradient only if it is needed, although PyTorch's formula always makes it; make it row-major if
    statistics are given. An H100 recorded both.

    Source: ``aten/src/ATen/native/cuda/Normalization.cu``, ``batch_norm_elementwise_backward_eval``.
    """
    func = aten.native_batch_norm_backward.default
    made, arguments = func(*args, **kwargs), named(func, args, kwargs)
    if not on_gpu(made[0]):
        return made
    if not arguments["output_mask"][0]:
        return None, *made[1:]
    return made if arguments["train"] else (made[0].new_empty(made[0].shape), *made[1:])


def _of_an_iterator(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A result has the strides of the first of two operands; PyTorch's formula takes those of the other.

    Source: ``aten/src/ATen/TensorIterator.cpp``, ``reorder_dimensions``.
    """
    made = func(*args, **kwargs)
    operands = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if len(operands) != 2 or operands[0].stride() == operands[1].stride():
        return made
    return made.new_empty_strided(made.shape, aten.add.Tensor(*operands).stride())


def _in_rows(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Source: ``aten/src/ATen/native/Loss.cpp``: ``zeros_like`` in rows; ``SoftMax.cpp``."""
    made = func(*args, **kwargs)
    return made if made.is_contiguous() else made.new_empty(made.shape)


def _laid_out(made: torch.Tensor, last: bool) -> torch.Tensor:
    found = strides(Image.of(made).shape, last)
    return made.new_empty_strided(made.shape, found if made.dim() > 3 else (*found[:2], found[3]))


_ITERATED = operators(
    "softplus_backward elu_backward hardswish_backward logit_backward hardsigmoid_backward hardtanh_backward special_xlog1py "
    "xlogy.Tensor floor_divide copysign.Tensor"
)
_ROWS = operators("mse_loss_backward smooth_l1_loss_backward huber_loss_backward _log_softmax_backward_data")
IN_LAYOUT = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **{op: partial(_of_an_iterator, op) for op in _ITERATED},
    **{op: partial(_in_rows, op) for op in _ROWS},
}
"""By op, PyTorch's formula with the layouts of its kernels."""
