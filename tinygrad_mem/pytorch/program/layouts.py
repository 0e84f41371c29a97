"""Results whose layout depends on the library that runs an op on a GPU, whatever PyTorch was built with."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .kernels.convolution import Convolution, Image, channels_last, strides

aten = torch.ops.aten


def _convolution(*args: Any, **kwargs: Any) -> torch.Tensor:
    made = aten.convolution.default(*args, **kwargs)
    if not _on_gpu(made):
        return made
    return _laid_out(made, Convolution(_named(aten.convolution.default, args, kwargs).__getitem__).last)


def _convolution_backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
    made = aten.convolution_backward.default(*args, **kwargs)
    if not any(map(_on_gpu, made)):
        return made
    named = _named(aten.convolution_backward.default, args, kwargs)
    found = Convolution(named.__getitem__)
    gradient, x = found.gradients(named["grad_output"], named["output_mask"][1])
    layouts = (False, False) if found.depthwise else (channels_last(gradient, found.weight), channels_last(x, gradient))
    first, second = [None if each is None else _laid_out(each, last) for each, last in zip(made, layouts, strict=False)]
    return first, second, made[2]


def _batch_norm_backward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
    """The input's gradient lies in rows where statistics are given, as an H100 recorded for an input in channels_last.

    Source: ``aten/src/ATen/native/cuda/Normalization.cu``, ``batch_norm_elementwise_backward_eval``.
    """
    func = aten.native_batch_norm_backward.default
    made = func(*args, **kwargs)
    if not _on_gpu(made[0]) or _named(func, args, kwargs)["train"]:
        return made
    return made[0].new_empty(made[0].shape), *made[1:]


def _named(func: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip([each.name for each in func._schema.arguments], args, strict=False)), **kwargs}


def _on_gpu(made: Any) -> bool:
    return isinstance(made, FakeTensor) and made.fake_device.type == "cuda"


def _laid_out(made: torch.Tensor, last: bool) -> torch.Tensor:
    found = strides(Image.of(made).shape, last)
    return made.new_empty_strided(made.shape, found if made.dim() > 3 else (*found[:2], found[3]))


IN_LAYOUT = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
"""By op, PyTorch's formula with a GPU's layouts."""
