"""Normalisation, with the names and arguments of ``torch.nn.functional``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic, finfo
from ..errors import ArgumentError, DeviceError, DTypeError, ShapeError
from ..interrupts import uninterrupted
from ..ops import norm as ops
from ..ops.base import want_real
from ..scope import local, setting
from . import choose, elementwise, pool, rearrange, reduce
from .door import AS_IS, FLOAT32, public


@public("nn.functional")
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel (axis 1) over all other axes; in training update the running statistics, otherwise use them.

    When a checkpointed function is recomputed in backward, the statistics are not updated again.

    Saves: input, 2 numbers a channel, and weight.

    Raises:
        ShapeError: fewer than 2 dimensions, or parameters that do not fit the channels.
        ArgumentError: one value a channel in training, or no running statistics outside of it, or one of the two.
        DeviceError, DTypeError: statistics on another device, or of integers.
    """
    if not input.numel():
        return _of_nothing(input, weight, bias)
    mean, var = statistics_of("batch_norm", input, running_mean, running_var, training, momentum, eps)
    numbers = {"training": training, "momentum": momentum, "eps": eps}
    return with_statistics(apply, ops.BatchNorm, (input, weight, bias), mean, var, numbers)


def _of_nothing(input: Tensor, *parameters: Tensor | None) -> Tensor:
    """The result for an empty batch: the input. Statistics do not change, and gradients of parameters are zero."""
    out = input.clone()
    for parameter in parameters:
        out = out if parameter is None else elementwise.mul(out, reduce.sum(parameter))
    return out


def statistics_of(
    name: str, input: Tensor, mean: Tensor | None, var: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor | None, Tensor | None]:
    """The running statistics that an op of batch norm uses and updates, checked."""
    if input.ndim < 2:
        raise ShapeError(f"{name}: expected at least 2 dimensions (batch, channels), found {list(input.shape)}")
    if training and input.numel() // max(input.size(1), 1) <= 1:
        raise ArgumentError(f"Expected more than 1 value per channel when training, got input size {list(input.shape)}")
    if not training and (mean is None or var is None):
        raise ArgumentError("Expected running_mean and running_var to be defined when training=False")
    _check_statistics(name, input, mean, var, training, (momentum, eps))
    return (None, None) if training and local.phase == "recompute" else (mean, var)  # the forward has updated them


def with_statistics(
    how: Callable[..., Tensor], op: Any, inputs: tuple, mean: Tensor | None, var: Tensor | None, numbers: dict[str, Any]
) -> Tensor:
    """Apply ``op``, a batch norm, with the parameters ``how``. In training both statistics are updated, or neither."""
    if mean is None or var is None:
        return how(op, *inputs, running_mean=None, running_var=None, **numbers)
    if not numbers["training"]:
        return how(op, *inputs, running_mean=mean.array, running_var=var.array, **numbers)
    return uninterrupted(_moving, how, op, inputs, mean, var, numbers)


def _moving(how: Callable[..., Tensor], op: Any, inputs: tuple, mean: Tensor, var: Tensor, numbers: dict[str, Any]) -> Tensor:
    out = how(op, *inputs, running_mean=mean.array, running_var=var.array, **numbers)
    for statistic in (mean, var):
        statistic.storage.written("batch_norm")
    return out


def _check_statistics(
    name: str, input: Tensor, mean: Tensor | None, var: Tensor | None, training: bool, numbers: tuple
) -> None:
    """Check everything before the op writes the statistics."""
    if (mean is None) != (var is None):
        raise ArgumentError("Expected running_mean and running_var both, or neither of them, found one")
    for which, statistic in (("running_mean", mean), ("running_var", var)):
        if statistic is not None and statistic.device is not input.device:
            raise DeviceError(f"{name}: {which} is on {statistic.device}, the input on {input.device}; move it")
        if statistic is not None and not statistic.is_floating_point():
            raise DTypeError(f"{name}: expected a floating {which}, found {statistic.dtype}")
    for which, number in zip(("momentum", "eps"), numbers, strict=True):
        unused = which == "momentum" and (mean is None or not training)
        if not (number is None and unused):
            want_real(name, False, **{which: number})
    if numbers[1] < 0 or (training and numbers[1] == 0):
        raise ArgumentError(f"{name}: eps must be positive, found {numbers[1]}; 0 is for evaluation only")


@public("nn.functional", cuda=FLOAT32)
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last dimensions, whose sizes are ``normalized_shape``. Saves: input, 2 numbers a row, and weight.

    Raises:
        ShapeError: the last dimensions have other sizes.
    """
    rows, size = _last(input, normalized_shape, "layer_norm", weight, bias)
    want_real("layer_norm", eps=eps)
    return apply(ops.SampleNorm, input, weight, bias, layout=(rows, 1, 1, size), affine=(1, 1, size), eps=eps, centre=True)


@public("nn.functional", cuda=FLOAT32)
def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root of the mean square over the last dimensions. Saves: input, 1 number a row, and weight."""
    rows, size = _last(input, normalized_shape, "rms_norm", weight, None)
    tiny = finfo(arithmetic(input.dtype)).eps if eps is None else eps  # that of the arithmetic
    want_real("rms_norm", eps=tiny)
    return apply(ops.SampleNorm, input, weight, None, layout=(rows, 1, 1, size), affine=(1, 1, size), eps=tiny, centre=False)


def _last(input: Tensor, normalized_shape: Any, name: str, *parameters: Tensor | None) -> tuple[int, int]:
    """The number of rows and their size, for the last dimensions."""
    sizes = (int(normalized_shape),) if isinstance(normalized_shape, Integral) else tuple(normalized_shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes:
        raise ShapeError(
            f"Given normalized_shape={list(sizes)}, expected input with shape [*, {', '.join(map(str, sizes))}], but got input "
            f"of size{list(input.shape)}"
        )
    for parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != sizes:
            raise ShapeError(f"{name}: expected parameters of shape {list(sizes)}, found {list(parameter.shape)}")
    size = math.prod(sizes)
    return math.prod(input.shape[: input.ndim - len(sizes)]), size


@public("nn.functional", cuda=FLOAT32)
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise groups of channels of each sample. Saves: input, 2 numbers a (sample, group), and weight.

    Raises:
        ShapeError: the channels cannot be divided by the groups.
        ArgumentError: one sample, of one value a group.
    """
    num_groups = operator.index(num_groups)
    if input.ndim < 2 or num_groups < 1 or input.size(1) % num_groups:
        raise ShapeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape {list(input.shape)} "
            f"and num_groups={num_groups}"
        )
    want_real("group_norm", eps=eps)
    if input.numel() == num_groups:
        raise ArgumentError(f"Expected more than 1 value per channel when training, got input size {list(input.shape)}")
    n, channels = input.shape[:2]
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (channels,):
            raise ShapeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, {channels}, but got {name} "
                f"of shape {list(parameter.shape)} and input of shape {list(input.shape)}"
            )
    k, length = channels // num_groups, math.prod(input.shape[2:])
    layout, affine = (n, num_groups, k, length), (num_groups, k, 1)
    return apply(ops.SampleNorm, input, weight, bias, layout=layout, affine=affine, eps=eps, centre=True)


@public("nn.functional", cuda=AS_IS)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample. Saves: input, 2 numbers a (sample, channel), and weight.

    Raises:
        ValueError: one value a channel, or ``eps`` is 0.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if eps == 0:  # PyTorch's is 0 for a line of equal numbers here, and nan in its other layers
        raise ArgumentError("instance_norm: eps is 0: a line of equal numbers would be divided by 0; give a small number")
    if momentum is not None:  # that of a layer without statistics
        want_real("instance_norm", momentum=momentum)
    n, channels = input.shape[:2]
    length = math.prod(input.shape[2:])
    if not input.numel():
        return _of_nothing(input, weight, bias)
    if length == 1:
        raise ArgumentError(f"Expected more than 1 spatial element when training, got input size {list(input.shape)}")
    if n and running_mean is not None and running_var is not None and local.phase != "recompute":
        uninterrupted(_move_on, input.detach().reshape(n, channels, length), running_mean, running_var, momentum)
    return group_norm(input, channels, weight, bias, eps)


def _move_on(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Update both running statistics from ``x`` (n, channels, length)."""
    with setting(once=True):
        for statistic, now in ((running_mean, x.mean(2)), (running_var, x.var(2))):
            statistic.copy_(statistic.detach() * (1 - momentum) + now.mean(0) * momentum)


@public("nn.functional")
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide by the p-norm along ``dim``, not taken below ``eps``. Saves: what its parts save."""
    length = choose.clamp(reduce.norm(input, p, dim, keepdim=True), min=eps)
    return elementwise.div(input, length.expand_as(input))


@public("nn.functional")
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide by ``(k + alpha * mean of the squares of size neighbour channels) ** beta``: (N, C, ...) -> (N, C, ...).

    Saves: what its parts save.

    Raises:
        ShapeError: fewer than 3 dimensions.
    """
    if input.ndim < 3:
        raise ShapeError(f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)")
    if input.numel() == 0:
        return input
    # by the pooling that PyTorch takes: under autocast on the CPU, one of them is in float32
    pooled, ones = (pool.avg_pool2d, (1,)) if input.ndim == 3 else (pool.avg_pool3d, (1, 1))
    squares = elementwise.mul(input, input).reshape(input.size(0), 1, input.size(1), math.prod(input.shape[2:]), *ones[1:])
    padded = rearrange.pad(squares, (*[0, 0] * len(ones), size // 2, (size - 1) // 2))
    mean = pooled(padded, (size, *ones), stride=1).reshape(tuple(input.shape))
    return elementwise.div(input, elementwise.pow(elementwise.add(elementwise.mul(mean, alpha), k), beta))
