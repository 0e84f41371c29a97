"""Losses, with the names and arguments of ``torch.nn.functional``. Reductions: ``"mean"``, ``"sum"`` or ``"none"``."""

from __future__ import annotations

from typing import Any

from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import DimensionError, DTypeError, ShapeError
from ..ops import loss as ops
from . import elementwise, reduce, softmax

Reduction = str


def _checked(reduction: str) -> str:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction: use 'none', 'mean' or 'sum'")
    return reduction


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if _checked(reduction) == "mean":
        return reduce.mean(loss)
    return reduce.sum(loss) if reduction == "sum" else loss


def _in_bounds(target: Tensor, classes: int, ignore_index: int) -> None:
    """Class indices are looked at where there are values: an index outside would read somebody else's memory."""
    if target.is_meta or target.numel() == 0:
        return
    for bound in (target.min().item(), target.max().item()):
        if not 0 <= bound < classes and bound != ignore_index:
            raise DimensionError(f"Target {bound} is out of bounds.")
    if not 0 <= ignore_index < classes and (target.min().item() == ignore_index or target.max().item() == ignore_index):
        kept = elementwise.masked_fill(target, elementwise.eq(target, ignore_index), 0)
        low, high = kept.min().item(), kept.max().item()
        if low < 0 or high >= classes:
            raise DimensionError(f"Target {low if low < 0 else high} is out of bounds.")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Softmax and negative log-likelihood: logits (N, C, ...) and class indices (N, ...), or class probabilities (N, C, ...).

    Saves: the logits, the targets, one number a row. No copy of the logits is made before backward, which makes one.

    Raises:
        DimensionError: a target is out of bounds. ShapeError, DTypeError: they do not fit.
        ValueError: the reduction or ``label_smoothing`` is not one.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if input.ndim == 0:
        raise ShapeError("cross_entropy: input needs a dimension of classes, found a 0-d tensor")
    axis = 0 if input.ndim == 1 else 1
    if target.is_floating_point():
        return _soft_cross_entropy(input, target, weight, _checked(reduction), label_smoothing, axis)
    _in_bounds(target, input.size(axis), ignore_index)
    return apply(
        ops.CrossEntropy,
        input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=_checked(reduction),
        smoothing=label_smoothing,
    )


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, axis: int
) -> Tensor:
    """Class probabilities for targets: every class of a row counts."""
    if target.shape != input.shape:
        raise ShapeError(f"cross_entropy: class probabilities need input's shape {list(input.shape)}, got {list(target.shape)}")
    classes = input.size(axis)
    if smoothing:
        target = elementwise.add(elementwise.mul(target, 1 - smoothing), smoothing / classes)
    log_probabilities = softmax.log_softmax(input, axis)
    if weight is not None:
        shape = [1] * input.ndim
        shape[axis] = classes
        target = elementwise.mul(target, weight.reshape(shape))
    rows = elementwise.neg(reduce_sum(elementwise.mul(log_probabilities, target), axis))
    if reduction == "mean":
        return elementwise.div(reduce_sum(rows), max(rows.numel(), 1))
    return reduce_sum(rows) if reduction == "sum" else rows


reduce_sum = reduce.sum


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probabilities (N, C, ...) of class indices (N, ...). Saves: the targets.

    Raises:
        DimensionError: a target is out of bounds.
    """
    _in_bounds(target, input.size(0 if input.ndim == 1 else 1), ignore_index)
    return apply(ops.NLLLoss, input, target, weight, ignore_index=ignore_index, reduction=_checked(reduction))


def _pair(op: type, name: str, input: Tensor, target: Tensor, reduction: str, numbers: tuple = ()) -> Tensor:
    if input.dtype != target.dtype or input.shape != target.shape:
        dtype = (input.new_empty(0) + target.new_empty(0)).dtype
        shape = elementwise.ops.broadcast(name, tuple(input.shape), tuple(target.shape))
        input, target = input.to(dtype).expand(*shape), target.to(dtype).expand(*shape)
    if not input.is_floating_point():
        raise DTypeError(f"{name}: expected floating tensors, found {input.dtype}")
    return apply(op, input, target, reduction=_checked(reduction), numbers=numbers)


def mse_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """The squared difference. Saves: both tensors, no difference."""
    return _pair(ops.MSELoss, "mse_loss", input, target, reduction)


def l1_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    """The absolute difference. Saves: both tensors."""
    return _pair(ops.L1Loss, "l1_loss", input, target, reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Half the square within ``delta``, linear beyond. Saves: both tensors."""
    if delta <= 0:
        raise ValueError(f"huber_loss does not support non-positive values for delta, found {delta}")
    return _pair(ops.HuberLoss, "huber_loss", input, target, reduction, (delta, 1.0))


def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Half the square over ``beta`` within it, linear beyond. Saves: both tensors."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss does not support negative values for beta, found {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    return _pair(ops.HuberLoss, "smooth_l1_loss", input, target, reduction, (beta, 1.0 / beta))


def _same_shape(name: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ValueError(
            f"{name}: Using a target size ({list(target.shape)}) that is different to the input size ({list(input.shape)}) is "
            "not supported. Please ensure they have the same size."
        )


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """``-(target * ln(input) + (1 - target) * ln(1 - input))`` of probabilities. Saves: both tensors.

    Raises:
        ValueError: the shapes differ, or an input is outside [0, 1].
    """
    _same_shape("binary_cross_entropy", input, target)
    if input.numel() and not input.is_meta:
        low, high = input.detach().min().item(), input.detach().max().item()
        if low < 0 or high > 1:
            raise ValueError(f"all elements of input should be between 0 and 1, found {low} to {high}")
    loss = apply(ops.BinaryCrossEntropy, input, target)
    return _reduced(loss if weight is None else elementwise.mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """:func:`binary_cross_entropy` of the sigmoid of ``input``, without overflow. Saves: both tensors."""
    _same_shape("binary_cross_entropy_with_logits", input, target)
    loss = apply(ops.BCEWithLogits, input, target, pos_weight)
    return _reduced(loss if weight is None else elementwise.mul(loss, weight), reduction)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """``target * (ln(target) - input)`` of log-probabilities; ``"batchmean"`` divides the sum by the batch."""
    if log_target:
        loss = elementwise.mul(elementwise.exp(target), elementwise.sub(target, input))
    else:
        loss = elementwise.sub(elementwise.xlogy(target, target), elementwise.mul(target, input))
    if reduction == "batchmean":
        return elementwise.div(reduce_sum(loss), input.size(0) if input.ndim else 1)
    return _reduced(loss, reduction)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along ``dim``; lengths are not taken below ``eps``."""
    lengths = [elementwise.clamp(reduce.norm(x, 2, dim), min=eps) for x in (x1, x2)]
    return elementwise.div(reduce_sum(elementwise.mul(x1, x2), dim), elementwise.mul(*lengths))


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """``1 - cos`` where target is 1, ``max(0, cos - margin)`` where it is -1."""
    cosine = cosine_similarity(input1, input2, dim=input1.ndim - 1, eps=1e-12)
    apart = elementwise.clamp(elementwise.sub(cosine, margin), min=0)
    loss = elementwise.where(elementwise.eq(target, 1), elementwise.rsub(cosine, 1.0), apart)
    return _reduced(loss, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, -target * (input1 - input2) + margin)``."""
    gap = elementwise.mul(elementwise.neg(target), elementwise.sub(input1, input2))
    return _reduced(elementwise.clamp(elementwise.add(gap, margin), min=0), reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """``input`` where target is 1, ``max(0, margin - input)`` where it is -1."""
    apart = elementwise.clamp(elementwise.rsub(input, margin), min=0)
    return _reduced(elementwise.where(elementwise.eq(target, 1), input, apart), reduction)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` along the last dimension."""
    return reduce.norm(elementwise.add(elementwise.sub(x1, x2), eps), p, -1, keepdim)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, |anchor - positive| - |anchor - negative| + margin)``."""
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = elementwise.minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced(elementwise.clamp(elementwise.add(elementwise.sub(near, far), margin), min=0), reduction)
