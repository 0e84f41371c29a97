"""Losses, with the names and arguments of ``torch.nn.functional``.

``reduction`` is ``"mean"``, ``"sum"`` or ``"none"`` everywhere; ``size_average`` and ``reduce`` are its old form. The result
has the promoted dtype of input and target; half precision is computed in float32 inside.
"""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic, finfo, int64, is_floating, promote_types, uint8
from ..errors import ArgumentError, DTypeError, NotOfferedError, ShapeError
from ..ops import cross_entropy as class_ops
from ..ops import loss as ops
from ..ops.base import broadcast
from ..scope import local
from . import elementwise, join
from .door import FLOAT32, REFUSED, public
from .softmax import log_softmax as log_softmax


def reduction_of(reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> str:
    """The reduction to use, from the current argument and the two old ones.

    Raises:
        ValueError: it is not one of none, mean, sum.
    """
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"{reduction} is not a valid value for reduction: expected 'none', 'mean' or 'sum'")
    return reduction


def _scale(reduction: str, count: int) -> float | None:
    """The factor of the sum of all losses; ``None`` without a sum. The mean of no losses is nan."""
    if reduction == "none":
        return None
    return 1.0 if reduction == "sum" else 1.0 / count if count else math.nan


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def _count(*tensors: Tensor | None) -> int:
    """The number of elements of the broadcast shape. (The op refuses shapes that do not broadcast.)"""
    return math.prod(broadcast("loss", *[tuple(t.shape) for t in tensors if t is not None]))


def no_gradient(name: str, weight: Tensor | None) -> None:
    if weight is not None and weight.requires_grad:
        raise NotOfferedError(f"the derivative for '{name}' is not implemented: detach() it")


def _want_floating(name: str, input: Tensor, target: Tensor, one_dtype: bool = False) -> None:
    """Refuse integers, and two dtypes if the loss wants one."""
    found = f"found {input.dtype} and {target.dtype}"
    if not (input.is_floating_point() and target.is_floating_point()):
        raise DTypeError(f"{name}: expected a floating input and target, {found}; convert with .to(input.dtype)")
    if one_dtype and input.dtype != target.dtype:
        raise DTypeError(f"{name}: expected an input and a target of one dtype, {found}; convert with .to(input.dtype)")


# --- classes ------------------------------------------------------------------------------------------------------------


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``-ln softmax(input)[target]``: the loss of scores against class indices or class probabilities.

    Args:
        input: scores, floating: (C), (N, C) or (N, C, d1, ...).
        target: int64 (or uint8) indices of input's shape without C, or probabilities of input's shape.
        weight: one weight a class; the mean is over the weights of the targets.
        ignore_index: targets that are ignored.
        label_smoothing: the share of the target that is spread evenly over all classes.

    Saves: the input, the target, and 4 bytes a sample; no softmax. Backward takes one array of the input's size.

    Raises:
        DimensionError: a target that is not a class; on the cpu (on a GPU the loss is nan, because a check would have to wait).
        ShapeError, DTypeError: target or weight do not fit the input.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    _check_scores("cross_entropy", input, weight)
    if input.shape == target.shape:
        if not target.is_floating_point():
            raise DTypeError(f"Expected floating point type for target with class probabilities, got {target.dtype}")
        if ignore_index >= 0:
            raise ArgumentError("ignore_index is not supported for floating point target: give those samples probability 0")
        if target.dtype != input.dtype:
            promoted = promote_types(input.dtype, target.dtype)
            input, target = input.to(promoted), target.to(promoted)
        options: dict[str, Any] = {"smoothing": float(label_smoothing), "reduction": reduction}
        return apply(class_ops.CrossEntropyProbabilities, input, target, weight, **options)
    target = _check_classes(input, target)
    options = {"ignore": operator.index(ignore_index), "smoothing": float(label_smoothing), "reduction": reduction}
    return apply(class_ops.CrossEntropy, input, target, weight, **options)


def _check_scores(name: str, input: Tensor, weight: Tensor | None) -> None:
    if not input.is_floating_point():
        raise DTypeError(f"{name}: expected floating scores, found {input.dtype}; cast the input")
    if input.ndim == 0:
        raise ShapeError(f"{name}: Expected 1 or more dimensions (got 0)")
    if weight is None:
        return
    no_gradient("weight", weight)
    classes = input.shape[1 if input.ndim > 1 else 0]
    if tuple(weight.shape) != (classes,):
        raise ShapeError(
            f"weight tensor should be defined either for all {classes} classes or no classes "
            f"but got weight tensor of shape: {list(weight.shape)}"
        )
    if weight.dtype != input.dtype:
        raise DTypeError(f"{name}: expected a weight of the input's dtype {input.dtype}, but found {weight.dtype}; cast it")


def _check_classes(input: Tensor, target: Tensor) -> Tensor:
    """The target of class indices, 0-d for a single sample."""
    if target.dtype not in (int64, uint8):
        raise DTypeError(f"expected target dtype to be Long or Byte, but got {target.dtype}: use target.long()")
    shape = list(input.shape)
    if input.ndim == 1:
        if target.numel() != 1 or target.ndim > 1:
            raise ShapeError(f"For 1D input, 1D target must have size 1, but got target size: {list(target.shape)}")
        return target
    if target.ndim == 0 or target.shape[0] != shape[0]:
        found = target.shape[0] if target.ndim else 1
        raise ShapeError(f"Expected input batch_size ({shape[0]}) to match target batch_size ({found}).")
    if input.ndim == 2 and target.ndim != 1:
        raise ShapeError(f"0D or 1D target tensor expected, multi-target not supported: found {list(target.shape)}")
    if list(target.shape) != [shape[0], *shape[2:]]:
        raise ShapeError(
            f"size mismatch: Expected target size {[shape[0], *shape[2:]]}, got {list(target.shape)} for input {shape}"
        )
    return target


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``-input[target]``, input being log-probabilities; arguments as :func:`cross_entropy`.

    Saves: the target and 4 bytes; not the input.

    Raises:
        DimensionError, ShapeError, DTypeError: as :func:`cross_entropy`.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    _check_scores("nll_loss", input, weight)
    target = _check_classes(input, target)
    return apply(class_ops.NLLLoss, input, target, weight, ignore=operator.index(ignore_index), reduction=reduction)


# --- pairs --------------------------------------------------------------------------------------------------------------


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``(input - target)**2``. Saves: both; no difference, no squares.

    Raises:
        DTypeError: neither is floating.
        ShapeError: the shapes do not broadcast.
    """
    return _weighted(ops.MSELoss, input, target, reduction_of(reduction, size_average, reduce), weight)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """``|input - target|``. Saves: both. Raises: as :func:`mse_loss`; and DTypeError: one is bool."""
    if "bool" in (input.dtype.name, target.dtype.name):
        raise DTypeError(f"l1_loss: bools are not subtracted, found {input.dtype} and {target.dtype}; convert with .float()")
    return _weighted(ops.L1Loss, input, target, reduction_of(reduction, size_average, reduce), weight)


def _weighted(op: Any, input: Tensor, target: Tensor, reduction: str, weight: Tensor | None, numbers: tuple = ()) -> Tensor:
    """A loss of pairs; with weights the mean is over their sum, but Huber's over their number, as in PyTorch."""
    if input.shape != target.shape:
        warnings.warn(
            f"Using a target size ({list(target.shape)}) that is different to the input size ({list(input.shape)}). "
            "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )
        if input.dtype != target.dtype:  # of one shape, a number's dtype counts as much as any: PyTorch broadcasts them first
            input, target = join.broadcast_tensors(input, target)
    if weight is None:
        return apply(op, input, target, scale=_scale(reduction, _count(input, target)), numbers=numbers)
    if input.shape != weight.shape:
        raise ShapeError(f"Inputs and weight must have the same size, found {list(input.shape)} and {list(weight.shape)}")
    losses = elementwise.mul(apply(op, input, target, scale=None, numbers=numbers), weight)
    if reduction == "mean" and op is not ops.HuberLoss:
        return elementwise.div(losses.sum(), weight.sum())
    return _reduce(losses, reduction)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """``(input - target)**2 / (2 * beta)`` where they differ by less than ``beta``, linear beyond. Saves: both.

    Raises:
        ValueError: ``beta`` is negative.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if not beta >= 0:
        raise ArgumentError(f"smooth_l1_loss does not support negative values for beta, found {beta}")
    wide = arithmetic(promote_types(input.dtype, target.dtype))
    if not is_floating(wide) or beta < finfo(wide).tiny:  # of no difference to a result, and 1 / beta may be beyond the dtype
        return _weighted(ops.L1Loss, input, target, reduction, None)
    return _weighted(ops.HuberLoss, input, target, reduction, None, (float(beta), 1.0 / beta))


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """``(input - target)**2 / 2`` where they differ by at most ``delta``, linear beyond; of the input's dtype. Saves: both.

    Raises:
        DTypeError: the input is not floating, or for gradients both are not of one floating dtype.
        ValueError: ``delta`` is not positive.
    """
    wants = local.grad_enabled and (input.requires_grad or target.requires_grad)
    if not input.is_floating_point() or (wants and input.dtype != target.dtype):
        _want_floating("huber_loss", input, target, one_dtype=True)
    if not delta > 0:
        raise ArgumentError(f"huber_loss does not support non-positive values for delta, found {delta}")
    return _weighted(ops.HuberLoss, input, target, reduction_of(reduction), weight, (float(delta), 1.0)).to(input.dtype)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """``target * (ln target - input)``: input holds log-probabilities, and so does target with ``log_target``.

    ``"batchmean"`` divides the sum by the batch size, which is what the divergence is; ``"mean"`` divides by all elements.

    Saves: both.

    Raises:
        DTypeError: one is not floating.
    """
    _want_floating("kl_div", input, target)
    batchmean = reduction == "batchmean" and size_average is None and reduce is None
    reduction = "sum" if batchmean else reduction_of(reduction, size_average, reduce)
    scale = _scale("mean", input.shape[0]) if batchmean and input.ndim else _scale(reduction, _count(input, target))
    return apply(ops.KLDiv, input, target, scale=scale, numbers=(bool(log_target),))


@public("nn.functional", cpu=FLOAT32, cuda=REFUSED)
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``-(target * ln input + (1 - target) * ln(1 - input))``, logarithms not below -100. Saves: both, and the weight.

    Raises:
        DTypeError: both are not of one floating dtype.
        ValueError: the shapes differ.
        RuntimeError: an input or a target outside of [0, 1]; on the cpu. On a GPU, which is not waited for, it gives nan.
    """
    _want_floating("binary_cross_entropy", input, target, one_dtype=True)
    reduction = reduction_of(reduction, size_average, reduce)
    if input.shape != target.shape:
        raise ArgumentError(
            f"Using a target size ({list(target.shape)}) that is different to the input size ({list(input.shape)}) is "
            "deprecated. Please ensure they have the same size."
        )
    no_gradient("weight", weight)
    return apply(ops.BCELoss, input, target, weight, scale=_scale(reduction, _count(input, weight)))


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """:func:`binary_cross_entropy` of ``sigmoid(input)``, without overflow; it has the target's dtype.

    Saves: both, and the weights; no sigmoid.

    Raises:
        DTypeError: one is not floating.
        ValueError: the shapes differ.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if input.shape != target.shape:
        raise ArgumentError(f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})")
    _want_floating("binary_cross_entropy_with_logits", input, target)
    no_gradient("weight", weight)
    no_gradient("pos_weight", pos_weight)
    scale = _scale(reduction, _count(input, weight, pos_weight))
    return apply(ops.BCEWithLogitsLoss, input, target, weight, pos_weight, scale=scale).to(target.dtype)
