"""``torch.nn.utils.fusion``: a layer and the batch norm behind it as one layer, for evaluation."""

from __future__ import annotations

import copy
from typing import Any

from ...autograd.grad_mode import no_grad
from ...autograd.tensor import Tensor
from ...functional import creation, unary
from ..parameter import Parameter


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of the convolution that computes ``bn(conv(x))``, both being in evaluation.

    Args:
        transpose: the convolution is transposed: its weight has the output channels second.

    Raises:
        ValueError: one of them is in training, or the norm keeps no statistics.
    """
    _check("fuse_conv_bn_eval", conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
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
    """The weight and the bias of a convolution with those of the norm behind it; ``None`` is a weight of 1 and a bias of 0."""
    shape = [1, -1] + [1] * (conv_w.ndim - 2) if transpose else [-1] + [1] * (conv_w.ndim - 1)
    with no_grad():
        scale = unary.rsqrt(bn_rv + bn_eps)
        scale = scale if bn_w is None else scale * bn_w
        shift = creation.zeros_like(bn_rm) if bn_b is None else bn_b
        weight = conv_w * scale.reshape(shape)
        bias = (-bn_rm if conv_b is None else conv_b - bn_rm) * scale + shift
    dtype, trained = (conv_w.dtype, False) if conv_b is None else (conv_b.dtype, conv_b.requires_grad)
    return Parameter(weight.to(conv_w.dtype), conv_w.requires_grad), Parameter(bias.to(dtype), trained)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of the linear layer that computes ``bn(linear(x))``, both being in evaluation.

    Raises:
        ValueError: one of them is in training, or the norm keeps no statistics.
    """
    _check("fuse_linear_bn_eval", linear, bn)
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """The weight and the bias of a linear layer with those of the norm behind it, as :func:`fuse_conv_bn_weights`."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _check(name: str, layer: Any, bn: Any) -> None:
    if layer.training or bn.training:
        raise ValueError(f"{name}: Fusion only for eval! call eval() on both")
    if bn.running_mean is None or bn.running_var is None:
        raise ValueError(f"{name}: the norm keeps no statistics: make it with track_running_stats=True")
