"""The last layer and its loss in one op, a tile of scores at a time, with PyTorch's name and arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError, NotOfferedError, ShapeError, is_whole
from ..ops import linear_loss as ops
from .door import public
from .linalg import linear
from .loss import cross_entropy, no_gradient, reduction_of


@dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """The tiles of :func:`linear_cross_entropy`: one tile of scores is in memory at a time.

    Args:
        batch_chunk_size: lines of a tile; 1,024 unless given.
        class_chunk_size: classes of a tile; 1,024 unless given. (PyTorch cuts lines only.)
        allow_retain_graph: accepted for compatibility; it is always allowed.
        chunking_method, acc_policy: ``"auto"``; sums are kept in float32, in float64 for float64.
        acc_dtype: not offered.

    Raises:
        ArgumentError: a size that is not a positive whole number. NotOfferedError: any other policy.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None
    class_chunk_size: int | None = None

    def __post_init__(self) -> None:
        if self.chunking_method != "auto" or self.acc_policy != "auto" or self.acc_dtype is not None:
            raise NotOfferedError(
                "LinearCrossEntropyOptions: chunking_method, acc_policy and acc_dtype are not offered; set the size of a tile "
                "with batch_chunk_size and class_chunk_size"
            )
        for name in ("batch_chunk_size", "class_chunk_size"):
            size = getattr(self, name)
            if size is not None and not is_whole(size):
                raise ArgumentError(f"LinearCrossEntropyOptions: {name} must be a positive whole number, found {size!r}")


@public("nn.functional")
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
    softcap: float | None = None,
) -> Tensor:
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)``; with ``options`` not all scores are in memory.

    Args:
        input: (N, D), or (D).
        linear_weight: (C, D).
        target: int64 class indices (N), or one. (Probabilities need all scores, so they do not work with ``options``.)
        options: the size of a tile of scores; ``None`` computes all scores at once, as the two functions do.
        softcap: a bound of the scores, as in Gemma 2: they become ``softcap * tanh(score / softcap)``.

    Memory:
        Of N = 8,192 tokens, C = 256,000 classes and float16 the scores are 4,000 MiB, and their gradient as much. With
        ``options`` there are a tile of scores in float32 (4 MiB by default; in backward two with ``softcap``), 4 bytes a token,
        and in backward the gradients of input and weight alone (of float16 the input's in float32).
    Price:
        The scores are computed again in backward, a fourth matrix product to three.
    Do not use when:
        The classes are few: the tile is then larger than the scores.

    Saves: the input, the weight, the bias, the target, and 4 bytes a sample; without options the input, the weight, the scores.

    Raises:
        DimensionError: a target that is not a class; on the cpu. ShapeError, DTypeError: arguments that do not fit each other.
        NotOfferedError: probabilities with ``options``; a weight of more than 2 dimensions.

    Source: Wijmans et al., *Cut your losses in large-vocabulary language models*, 2024. The name is PyTorch's.
    """
    if linear_weight.ndim != 2:
        raise NotOfferedError("linear_cross_entropy: a linear_weight of shape (C, d1, ..., D) is not offered; give (C, D)")
    reduction = reduction_of(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    ignore = -100 if ignore_index is None else int(ignore_index)
    if softcap is not None and not softcap > 0:
        raise ArgumentError(f"linear_cross_entropy: softcap bounds the scores and must be positive, found {softcap!r}")
    if options is None:
        scores = linear(input, linear_weight, linear_bias)
        scores = scores if softcap is None else (scores / softcap).tanh() * softcap
        return cross_entropy(scores, target, weight, ignore_index=ignore, reduction=reduction, label_smoothing=label_smoothing)
    if target.is_floating_point():
        raise NotOfferedError("linear_cross_entropy: class probabilities need all scores at once; leave options out")
    # PyTorch's own options, which ``from_torch`` leaves as they are, know no classes of a tile
    tile = {"rows": options.batch_chunk_size or 1024, "classes": getattr(options, "class_chunk_size", None) or 1024}
    lines, goal = (input.unsqueeze(0), target.reshape(1)) if input.ndim == 1 else (input, target)
    _check_linear(lines, linear_weight, linear_bias, goal, weight)
    given = {"ignore": ignore, "smoothing": float(label_smoothing), "reduction": reduction, "cap": softcap, **tile}
    losses = apply(ops.LinearCrossEntropy, lines, linear_weight, linear_bias, goal, weight, **given)
    return losses.reshape(target.shape) if input.ndim == 1 and reduction == "none" else losses


def _check_linear(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor, weight: Tensor | None
) -> None:
    classes, size = linear_weight.shape
    if input.ndim != 2 or input.shape[1] != size:
        raise ShapeError(
            f"linear_cross_entropy: expected an input of shape (N, {size}) to a linear_weight of {list(linear_weight.shape)}, "
            f"found {list(input.shape)}"
        )
    if linear_bias is not None and tuple(linear_bias.shape) != (classes,):
        raise ShapeError(f"linear_cross_entropy: expected a linear_bias of shape [{classes}], found {list(linear_bias.shape)}")
    for name, given in (("linear_weight", linear_weight), ("linear_bias", linear_bias)):
        if given is not None and given.dtype != input.dtype:
            raise DTypeError(f"linear_cross_entropy: {name} is {given.dtype}, the input {input.dtype}; cast one of them")
    if not input.is_floating_point():
        raise DTypeError(f"linear_cross_entropy: expected a floating input, found {input.dtype}")
    if tuple(target.shape) != (input.shape[0],):
        raise ShapeError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size: expected a target of shape "
            f"[{input.shape[0]}], found {list(target.shape)}"
        )
    if target.dtype.name not in ("int64", "uint8"):
        raise DTypeError(f"expected target dtype to be Long or Byte, but got {target.dtype}: use target.long()")
    if weight is not None:
        no_gradient("weight", weight)
        if tuple(weight.shape) != (classes,) or weight.dtype != input.dtype:
            raise ShapeError(
                f"weight tensor should be defined either for all {classes} classes or no classes, in the input's dtype "
                f"{input.dtype}, but got weight tensor of shape: {list(weight.shape)} and dtype {weight.dtype}"
            )
