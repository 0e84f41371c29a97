"""Cross-entropy of logits whose classes are divided over ranks: the work of PyTorch's ``loss_parallel``, as a function."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....autograd.core import apply
from ....autograd.tensor import Tensor
from ....dtypes import arithmetic
from ....errors import ArgumentError, DTypeError, ShapeError
from ....ops.base import Op
from ....ops.cross_entropy import class_view, line_view, reduced
from ...buffers import buffer
from ...group import ProcessGroup, ReduceOp


class VocabularyCrossEntropy(Op):
    """:class:`CrossEntropy` of this rank's part of the classes; the loss is that of all classes, the same on all ranks.

    Ranks send each other two numbers per line: the logarithm of their part of the sum of e**x, and their part of x[target].

    Saves x, target, lse (``target.size * max(4, x.itemsize)`` bytes), and norm (``max(4, x.itemsize)`` bytes) if
    ``reduction == "mean"``. Backward takes one array of x's size.
    """

    saves = ("x", "target", "lse", "norm")
    outputs = ()

    @staticmethod
    def forward(ctx, x, target, *, group, ignore, smoothing, reduction):
        wide, kernels = arithmetic(x.dtype), ctx.kernels
        scores = class_view(ctx, x)
        goal = line_view(ctx, target, scores.shape)
        every, first = scores.shape[1] * group.size(), scores.shape[1] * group._rank
        kernels.check_target(goal, every, ignore)
        lse, picked = (buffer(ctx.device, goal.shape, wide) for _ in range(2))
        kernels.fill(-np.inf, out=lse)
        kernels.fill(0, out=picked)
        kernels.fold_scores(scores, first, goal, None, ignore, smoothing, every, lse, picked)
        group.all_reduce(picked, ReduceOp.SUM).wait()
        lse = _over_ranks(ctx, lse, group)
        kernels.finish_scores(goal, None, ignore, smoothing, every, lse, picked)
        norm = None
        if reduction == "mean":
            norm = ctx.empty((), wide)
            kernels.target_weight(goal, None, ignore, smoothing, out=norm)
        ctx.save(x=x, target=target, lse=lse, norm=norm)
        ctx.options, ctx.classes = (ignore, smoothing), (first, every)
        return reduced(ctx, picked, x.dtype, target.shape, reduction, norm)

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        scores = class_view(ctx, x)
        goal, gx = line_view(ctx, ctx.take("target"), scores.shape), ctx.empty(x.shape, x.dtype)
        seed = gy if gy.ndim == 0 else line_view(ctx, gy, scores.shape)
        first, every = ctx.classes
        ctx.kernels.cross_entropy_backward(
            seed, scores, ctx.take("lse"), goal, None, *ctx.options, ctx.take("norm"),
            out=gx.reshape(scores.shape), first=first, classes=every,
        )  # fmt: skip
        return gx, None


def _over_ranks(ctx: Any, lse: Any, group: ProcessGroup) -> Any:
    """The logarithm of the sum of e**lse over the ranks."""
    parts = buffer(ctx.device, (1, group.size(), lse.size), lse.dtype)
    group.all_gather(parts, lse).wait()
    out = ctx.empty(lse.shape, lse.dtype)
    ctx.kernels.log_sum_exp(parts, out.reshape(1, lse.size))
    return out


def vocabulary_parallel_cross_entropy(
    input: Tensor,
    target: Tensor,
    group: ProcessGroup,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``nn.functional.cross_entropy`` of scores whose classes are divided over the ranks of ``group``.

    PyTorch does this inside ``with loss_parallel():``, where a DTensor says how its classes are divided. A rank's part is an
    ordinary tensor here, so the group is an argument.

    Args:
        input: scores, floating: (N, part of C) or (N, part of C, d1, ...); rank r has the r-th of equal parts.
        target: int64 indices among all classes, (N) or (N, d1, ...), the same on all ranks.

    Saves: the input, the target, and 4 bytes a sample (8 of float64). Backward takes one array of the input's size.

    Raises:
        ShapeError, DTypeError, ArgumentError: the arguments do not fit.
        DeviceError: a device that the group does not serve.
        DimensionError: a target that is not a class; on the cpu.
    """
    name = "vocabulary_parallel_cross_entropy"
    group.check_device(name, input)
    if input.ndim < 2 or tuple(target.shape) != (input.shape[0], *input.shape[2:]):
        raise ShapeError(
            f"{name}: expected scores (N, part of the classes, ...) and a target (N, ...), found {list(input.shape)} and "
            f"{list(target.shape)}"
        )
    if not input.is_floating_point() or target.is_floating_point():
        raise DTypeError(
            f"{name}: expected floating scores and integer targets, found {input.dtype} and {target.dtype}: class "
            "probabilities are not offered"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"{name}: {reduction} is not a valid value for reduction: one of 'mean', 'sum', 'none'")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"{name}: label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    options: dict[str, Any] = {"ignore": int(ignore_index), "smoothing": float(label_smoothing), "reduction": reduction}
    return apply(VocabularyCrossEntropy, input, target, group=group, **options)
