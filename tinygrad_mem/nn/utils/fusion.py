"""A convolution and the batch norm behind it, as one convolution: for evaluation."""

from __future__ import annotations

import copy
from typing import Any

from ...autograd.tensor import Tensor
from ...functional.creation import ones_like, zeros_like
from ..parameter import Parameter


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of ``conv`` that computes ``bn(conv(x))`` as in evaluation.

    Args:
        transpose: the convolution is transposed: its output channels are axis 1 of the weight.

    Raises:
        RuntimeError: a module is in training, or the norm keeps no running statistics.
    """
    if conv.training or bn.training:
        raise RuntimeError("Fusion only for eval!: call eval() on both modules")
    if bn.running_mean is None or bn.running_var is None:
        raise RuntimeError("fuse_conv_bn_eval: the norm has no running statistics: make it with track_running_stats=True")
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """The weight and the bias of :func:`fuse_conv_bn_eval`, in the dtypes of the convolution's."""
    scale = (ones_like(bn_rm) if bn_w is None else bn_w) * (bn_rv + bn_eps).rsqrt()
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    bias = ((zeros_like(bn_rm) if conv_b is None else conv_b) - bn_rm) * scale + (zeros_like(bn_rm) if bn_b is None else bn_b)
    trained = conv_b is not None and conv_b.requires_grad
    weight, kind = (conv_w * scale.reshape(shape)).to(conv_w.dtype), conv_w.dtype if conv_b is None else conv_b.dtype
    return Parameter(weight.detach(), conv_w.requires_grad), Parameter(bias.to(kind).detach(), trained)
