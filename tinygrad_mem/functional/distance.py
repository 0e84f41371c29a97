"""Losses of distances and margins, composed of other functions: each saves what its parts save."""

from __future__ import annotations

import math
import operator

from .. import dtypes
from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError, NotOfferedError, ShapeError
from ..ops import reduce as ops
from ..ops.base import want_floating, want_real
from . import choose, compare, elementwise, join, reduce, unary
from .creation import full_like
from .door import FLOAT32, public
from .loss import _reduce, reduction_of


@public("torch", "nn.functional", cuda=FLOAT32)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along ``dim`` of their common shape; norms count as ``eps`` at least.

    Vectors whose norm is out of the dtype's range, such as those of 1e20 in float32, count as 0, as in PyTorch.

    Saves: both, their norms, and both divided by them.

    Raises:
        ValueError: ``eps`` is negative.
    """
    dim = operator.index(dim)
    if not eps >= 0:
        raise ArgumentError(f"cosine_similarity: eps must be non-negative, found {eps}")
    x1, x2 = join.broadcast_tensors(x1, x2)
    common = dtypes.result_type(x1.array, x2.array)
    pair = [x.to(common) for x in (x1, x2)]
    lines = [elementwise.div(x, _at_least(reduce.norm(x, dim=dim, keepdim=True), eps)) for x in pair]
    return elementwise.mul(*lines).sum(dim)


def _at_least(x: Tensor, low: float) -> Tensor:
    """``x`` clamped to at least ``low``; the gradient is not clamped, as in PyTorch."""
    return elementwise.add(x, choose.clamp(elementwise.sub(low, x.detach()), min=0))


@public("torch", "nn.functional")
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` along the last axis. Saves: the difference and the norm; for p = 1 only it."""
    want_real("pairwise_distance", p=p, eps=eps)
    return reduce.norm(elementwise.add(elementwise.sub(x1, x2), eps), p=p, dim=-1, keepdim=keepdim)


@public("torch", cpu=FLOAT32, cuda=FLOAT32)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The p-norm of each difference of rows: (..., n, m), (..., k, m) -> (..., n, k). It is made of all n * k differences.

    With p = inf, each of several largest differences has all of the gradient, as in PyTorch. Rows with nan are nan apart.

    Args:
        compute_mode: taken for compatibility: no distance is a difference of products, which rounds near points away.

    Saves: what its parts save.

    Raises:
        DTypeError: the tensors are not of one floating dtype.
        ShapeError: a tensor has fewer than 2 dimensions, or the rows differ in size.
        ArgumentError: p is negative.
        NotOfferedError: p is 0.
    """
    for name, x in (("X1", x1), ("X2", x2)):
        if not x.is_floating_point():
            raise DTypeError(f"cdist only supports floating-point dtypes, {name} got: {x.dtype}")
    if x1.dtype != x2.dtype:
        raise DTypeError(f"cdist: expected tensors of one dtype, found {x1.dtype} and {x2.dtype}: convert one")
    if p == 0:
        raise NotOfferedError("cdist: p=0 has no gradient: write (x1[..., :, None, :] != x2[..., None, :, :]).sum(-1)")
    if x1.ndim < 2 or x2.ndim < 2 or x1.size(-1) != x2.size(-1):
        raise ShapeError(f"cdist: X1 and X2 must have rows of the same size, found {list(x1.shape)} and {list(x2.shape)}")
    if not p >= 0:
        raise ArgumentError(f"cdist only supports non-negative p values, found {p}")
    apart = elementwise.sub(x1.unsqueeze(-2), x2.unsqueeze(-3))
    p = p if x1.size(-1) else 1.0  # nothing is largest among no differences; all sums of them are 0
    return apply(ops.Norm, apart, axes=(apart.ndim - 1,), p=float(p), keepdim=False, shared=False)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``1 - cos`` where target is 1, ``max(0, cos - margin)`` where it is -1. Inputs are (N, D) or (D).

    Saves: what its parts save.

    Raises:
        ShapeError: the target is not (N) or 0-d, or the inputs have different numbers of dimensions.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if target.ndim > 1 or target.ndim != input1.ndim - 1:
        raise ShapeError(
            f"0D or 1D target tensor expected, multi-target not supported: found {list(target.shape)} for {list(input1.shape)}"
        )
    if input2.ndim != input1.ndim:
        raise ShapeError(
            f"{target.ndim}D target tensor expects {input1.ndim}D input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}."
        )
    # PyTorch adds a small number to both squared norms instead of clamping them
    square1 = elementwise.add(elementwise.mul(input1, input1).sum(-1), 1e-12)
    square2 = elementwise.add(elementwise.mul(input2, input2).sum(-1), 1e-12)
    cos = elementwise.div(elementwise.mul(input1, input2).sum(-1), unary.sqrt(elementwise.mul(square1, square2)))
    same = choose.where(compare.eq(target, 1), elementwise.sub(1.0, cos), 0.0)
    apart = choose.where(compare.eq(target, -1), choose.clamp(elementwise.sub(cos, margin), min=0), 0.0)
    return _reduce(elementwise.add(same, apart), reduction)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, -target * (input1 - input2) + margin)``. Saves: what its parts save.

    Raises:
        ShapeError: the tensors have different numbers of dimensions.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if not input1.ndim == input2.ndim == target.ndim:
        raise ShapeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {list(input1.shape)}, input2: {list(input2.shape)}, target: {list(target.shape)}"
        )
    apart = elementwise.mul(unary.neg(target), elementwise.sub(input1, input2))
    return _reduce(choose.clamp(elementwise.add(apart, float(margin)), min=0), reduction)


@public("nn.functional", cpu=FLOAT32, cuda=FLOAT32)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``, d being :func:`pairwise_distance`.

    Saves: what its parts save.

    Raises:
        ValueError: the margin is not positive.
        ShapeError: the tensors have different numbers of dimensions.
    """
    reduction = reduction_of(reduction, size_average, reduce)
    if margin <= 0:
        raise ArgumentError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = elementwise.minimum(far, pairwise_distance(positive, negative, p, eps))
    near = pairwise_distance(anchor, positive, p, eps)
    return _reduce(choose.clamp(elementwise.sub(elementwise.add(near, margin), far), min=0), reduction)


@public("nn.functional")
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """``(ln var + (input - target)**2 / var) / 2``; variances count as ``eps`` at least, without a gradient below it.

    Saves: what its parts save.

    Raises:
        ValueError: a variance is negative, or they are of a shape that does not fit.
        DTypeError: the variances are not floating.
    """
    reduction = reduction_of(reduction)
    if not isinstance(var, Tensor):
        if var < 0:
            raise ArgumentError(f"var has negative entry/entries, found {var}")
        var = full_like(input, var)
    want_floating("gaussian_nll_loss", var.array)
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif var.ndim != input.ndim or any(n not in (m, 1) for n, m in zip(var.shape, input.shape, strict=True)):
            raise ArgumentError(
                f"var is of incorrect size: {list(var.shape)} for input {list(input.shape)}; sizes are the input's, or 1"
            )
    negative = reduce.any(compare.lt(var, 0))
    if not negative.is_meta and negative.item():
        raise ArgumentError(
            "var has negative entry/entries: a variance is a square; use softplus() or exp() to make it positive"
        )
    safe = _at_least(var, eps)
    square = unary.square(elementwise.sub(input, target))
    losses = elementwise.mul(elementwise.add(unary.log(safe), elementwise.div(square, safe)), 0.5)
    if full:
        losses = elementwise.add(losses, 0.5 * math.log(2 * math.pi))
    return _reduce(losses, reduction)
