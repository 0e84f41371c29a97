"""Losses, as layers."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..errors import NotOfferedError
from ..functional.linear_loss import LinearCrossEntropyOptions
from ..functional.loss import reduction_of
from . import functional as F
from .layer import FunctionLayer
from .linear import Linear
from .module import Module

__all__ = (
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CosineSimilarity", "CrossEntropyLoss",
    "GaussianNLLLoss", "HuberLoss", "KLDivLoss", "L1Loss", "LinearCrossEntropyLoss",
    "LinearCrossEntropyOptions", "MSELoss", "MarginRankingLoss", "NLLLoss", "PairwiseDistance",
    "SmoothL1Loss", "TripletMarginLoss",
)  # fmt: skip


class _Loss(FunctionLayer):
    """The base of losses, which call ``function`` with ``reduction`` and the attributes in ``_options``.

    Args:
        reduction: ``mean``, ``sum`` or ``none``; the other two arguments are its old form.
    """

    _options: tuple[str, ...] = ()

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
        super().__init__()
        old = size_average is not None or reduce is not None
        self.reduction = reduction_of(reduction, size_average, reduce) if old else reduction

    def _loss(self, *tensors: Any, **more: Any) -> Tensor:
        options = {name: getattr(self, name) for name in self._options}
        return self.function(*tensors, reduction=self.reduction, **options, **more)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return self._loss(input, target)


class _WeightedLoss(_Loss):
    _options = ("weight",)
    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss, function=F.l1_loss):
    """abs(input - target). Saves both."""


class MSELoss(_Loss, function=F.mse_loss):
    """(input - target)^2. Saves both, not their difference."""


class SmoothL1Loss(_Loss, function=F.smooth_l1_loss):
    """Quadratic for differences below ``beta``, linear above."""

    _options = ("beta",)

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta


class HuberLoss(_Loss, function=F.huber_loss):
    """Quadratic for differences up to ``delta``, linear above: ``delta`` times :class:`SmoothL1Loss`."""

    _options = ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta


class CrossEntropyLoss(_WeightedLoss, function=F.cross_entropy):
    """Minus the log-softmax of the target class, or of target probabilities.

    Saves the scores, the target and 4 bytes per sample, never the softmax.
    """

    _options = ("weight", "ignore_index", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing


class LinearCrossEntropyLoss(_WeightedLoss, function=F.linear_cross_entropy):
    """A linear layer and the cross-entropy of its scores; with ``options``, a tile of scores at a time.

    Args:
        in_features, num_classes, bias, device, dtype: of the layer, :attr:`linear`.
        out_features: not offered.
        options: :class:`LinearCrossEntropyOptions`; ``None`` computes all scores at once.

    Raises:
        NotOfferedError: ``out_features``.
    """

    _options = ("weight", "ignore_index", "label_smoothing", "options")

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        if out_features:
            raise NotOfferedError("LinearCrossEntropyLoss: out_features is not offered; leave it out")
        super().__init__(weight, None, None, reduction)
        self.in_features, self.num_classes = in_features, num_classes
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        self.linear = Linear(in_features, num_classes, bias, device, dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return self._loss(input, self.linear.weight, target, linear_bias=self.linear.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, out_features=(), "
            f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class NLLLoss(_WeightedLoss, function=F.nll_loss):
    """Minus the log-probability of the target class. Saves the target, not the input."""

    _options = ("weight", "ignore_index")

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index


class KLDivLoss(_Loss, function=F.kl_div):
    """target * (log(target) - input): ``input`` holds log-probabilities; also ``reduction="batchmean"``."""

    _options = ("log_target",)

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target


class BCELoss(_WeightedLoss, function=F.binary_cross_entropy):
    """Cross entropy of probabilities of one class. Saves input and target."""


class BCEWithLogitsLoss(_WeightedLoss, function=F.binary_cross_entropy_with_logits):
    """Cross entropy of the sigmoid of the input, in one function.

    Args:
        weight: of each element; broadcast.
        pos_weight: of the positive class; broadcast.
    """

    _options = ("weight", "pos_weight")

    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)


class _MarginLoss(_Loss):
    _options = ("margin",)

    def __init__(self, margin: float = 0.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return self._loss(input1, input2, target)


class CosineEmbeddingLoss(_MarginLoss, function=F.cosine_embedding_loss):
    """``1 - cosine`` of similar pairs (target 1), ``max(0, cosine - margin)`` of others (target -1)."""


class MarginRankingLoss(_MarginLoss, function=F.margin_ranking_loss):
    """``max(0, margin - target * (input1 - input2))``: target 1 wants ``input1`` to be larger by ``margin``, -1 ``input2``."""


class CTCLoss(_Loss, function=F.ctc_loss):
    """-ln of the probability of targets with unknown alignment to the input: see :func:`functional.ctc_loss`."""

    _options = ("blank", "zero_infinity")

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return self._loss(log_probs, targets, input_lengths, target_lengths)


class GaussianNLLLoss(_Loss, function=F.gaussian_nll_loss):
    """The loss of normally distributed targets: ``input`` is their mean, ``var`` their variance."""

    _options = ("full", "eps")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return self._loss(input, target, var)


class TripletMarginLoss(_Loss, function=F.triplet_margin_loss):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``: ``positive`` should be nearer by ``margin``.

    Raises:
        ValueError: the margin is not positive.
    """

    _options = ("margin", "p", "eps", "swap")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> None:
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: expected margin to be greater than 0, got {margin} instead")
        super().__init__(size_average, reduce, reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return self._loss(anchor, positive, negative)


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along ``dim``."""

    def __init__(self, dim: int = 1, eps: float = 1e-08) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of the difference of vectors along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
