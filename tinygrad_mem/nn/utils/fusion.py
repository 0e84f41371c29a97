"""Batch norm folded into the layer before it, for inference: one op and one activation less.

In eval mode ``batch_norm(layer(x))`` is a layer with other weights: with ``scale = weight / sqrt(running_var + eps)``, they are
``layer.weight * scale`` and ``(layer.bias - running_mean) * scale + bias``.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from ...autograd.tensor import Tensor
from ...errors import ArgumentError, ShapeError
from ..module import Module
from ..parameter import Parameter

M = TypeVar("M", bound=Module)


def fuse_conv_bn_eval(conv: M, bn: Module, transpose: bool = False) -> M:
    """A copy of ``conv`` that computes ``bn(conv(x))``. ``transpose``: it is a transposed convolution.

    Raises:
        ArgumentError: a module is in training mode, or ``bn`` has no running statistics.
    """
    statistics = _statistics(conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, *statistics, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_linear_bn_eval(linear: M, bn: Module) -> M:
    """A copy of ``linear`` that computes ``bn(linear(x))``.

    Raises:
        ArgumentError: a module is in training mode, or ``bn`` has no running statistics.
        ShapeError: ``bn`` normalizes another number of features.
    """
    statistics = _statistics(linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise ShapeError(f"fuse_linear_bn_eval: the layer has {linear.out_features} features, batch norm {bn.num_features}")
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, *statistics, bn.eps, bn.weight, bn.bias)
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of the fused convolution. Where they are None, ``bn_w`` counts as 1, ``bn_b`` and ``conv_b`` as 0."""
    scale = (bn_rv + bn_eps).rsqrt() if bn_w is None else bn_w * (bn_rv + bn_eps).rsqrt()
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    shift = (-bn_rm if conv_b is None else conv_b - bn_rm) * scale
    bias = shift if bn_b is None else shift + bn_b
    weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
    dtype, grad = (conv_w.dtype, False) if conv_b is None else (conv_b.dtype, conv_b.requires_grad)
    return Parameter(weight, conv_w.requires_grad), Parameter(bias.to(dtype), grad)


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor, bn_b: Tensor
) -> tuple[Parameter, Parameter]:
    """Weight and bias of the fused linear layer: as :func:`fuse_conv_bn_weights`."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _statistics(layer: Module, bn: Module) -> tuple[Tensor, Tensor]:
    if layer.training or bn.training:
        raise ArgumentError("fusion: both modules must be in eval mode: call .eval() on them")
    if bn.running_mean is None or bn.running_var is None:
        raise ArgumentError("fusion: the batch norm has no running statistics (track_running_stats=False)")
    return bn.running_mean, bn.running_var
