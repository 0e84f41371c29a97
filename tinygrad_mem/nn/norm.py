"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..functional import creation
from ..interrupts import uninterrupted
from ..scope import local
from . import functional as F
from . import init
from .layer import FunctionLayer
from .module import Module
from .parameter import Parameter

__all__ = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LayerNorm", "LocalResponseNorm", "RMSNorm", "SyncBatchNorm",
)  # fmt: skip


class _AffineNorm(FunctionLayer):
    """A weight and a bias of one shape, either of which may be missing."""

    weight: Parameter | None
    bias: Parameter | None

    def _make_affine(self, shape: Sequence[int], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        for name, wanted in (("weight", weight), ("bias", bias)):
            made = Parameter(creation.empty(*shape, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, made)

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        for name, value in (("weight", 1), ("bias", 0)):
            if getattr(self, name, None) is not None:
                init.constant_(getattr(self, name), value)


class _RunningNorm(_AffineNorm):
    """The base of batch and instance norms: one weight and bias per channel, and running statistics.

    Attributes:
        dimensions: the accepted numbers of dimensions of the input.
    """

    _version = 2
    _shown = ("*num_features", "eps", "momentum", "affine", "bias", "track_running_stats")
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._make_affine((num_features,), affine, affine and bias, device, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", creation.zeros(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("running_var", creation.ones(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", creation.zeros((), dtype="int64", device=device) if track else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the mean to 0, the variance to 1 and the count of batches to 0."""
        if self.track_running_stats:
            for buffer, value in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
                init.constant_(buffer, value)  # type: ignore[arg-type]

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0, and call :meth:`reset_running_stats`."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        if input.array.ndim not in self.dimensions:
            expected = " or ".join(f"{n}D" for n in self.dimensions)
            raise ValueError(f"expected {expected} input (got {input.dim()}D input)")


class _BatchNorm(_RunningNorm, function=F.batch_norm):
    """Normalises each channel over the batch; in evaluation, by the running statistics.

    Saves x, and two numbers per channel.

    Args:
        momentum: the weight of the newest batch; ``None`` gives all batches the same weight.

    Source: Ioffe and Szegedy, *Batch normalization*, 2015.
    """

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        weigh = 0.0 if self.momentum is None else self.momentum
        mean, var = self.running_mean, self.running_var
        count = self.num_batches_tracked if self.training and self.track_running_stats else None
        if count is not None and self.momentum is None:
            weigh = 0.0 if count.is_meta else 1.0 / (count.item() + 1)
        batch = self.training or (mean is None and var is None)
        if self.training and not self.track_running_stats:
            mean = var = None
        if count is None or local.phase == "recompute":
            return self.normalise(input, mean, var, batch, weigh)
        return uninterrupted(self._counted, count, input, mean, var, batch, weigh)

    def _counted(self, count: Tensor, *how: Any) -> Tensor:
        """Normalise, then count the batch: a forward that fails is not counted."""
        out = self.normalise(*how)
        with no_grad():
            count.add_(1)
        return out

    def normalise(self, input: Tensor, mean: Tensor | None, var: Tensor | None, training: bool, momentum: float) -> Tensor:
        """Normalise, with the statistics to use and to update."""
        return self.function(input, mean, var, self.weight, self.bias, training, momentum, self.eps)


class SyncBatchNorm(_BatchNorm):
    """Batch norm of (N, C, ...), as PyTorch's in a single process. Wrappers for several ranks refuse it.

    Args:
        process_group: accepted for compatibility; statistics are those of this process.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.array.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Replace each batch norm in ``module`` by one of this class with the same parameters, and return ``module``."""
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            options = module.eps, module.momentum, module.affine, module.track_running_stats, process_group
            result = cls(module.num_features, *options, bias=module.bias is not None)
            result.weight, result.bias = module.weight, module.bias
            result.running_mean, result.running_var = module.running_mean, module.running_var
            result.num_batches_tracked, result.training = module.num_batches_tracked, module.training
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result


class BatchNorm1d(_BatchNorm, dimensions=(2, 3)):
    """Batch norm of (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, dimensions=(4,)):
    """Batch norm of (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, dimensions=(5,)):
    """Batch norm of (N, C, D, H, W)."""


class _InstanceNorm(_RunningNorm, function=F.instance_norm):
    """Normalises each channel of each sample. Saves x, and two numbers per channel of each sample."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        single = input.dim() == self.dimensions[0]
        axis = 0 if single else 1
        if self.affine and input.size(axis) != self.num_features:
            raise ValueError(
                f"expected input's size at dim={axis} to match num_features ({self.num_features}), but got: {input.size(axis)}."
            )
        batch = self.training or not self.track_running_stats
        weigh = 0.0 if self.momentum is None else self.momentum
        x = input.unsqueeze(0) if single else input
        y = self.function(x, self.running_mean, self.running_var, self.weight, self.bias, batch, weigh, self.eps)
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm, dimensions=(2, 3)):
    """Instance norm of (N, C, L) or (C, L)."""


class InstanceNorm2d(_InstanceNorm, dimensions=(3, 4)):
    """Instance norm of (N, C, H, W) or (C, H, W)."""


class InstanceNorm3d(_InstanceNorm, dimensions=(4, 5)):
    """Instance norm of (N, C, D, H, W) or (C, D, H, W)."""


class LayerNorm(_AffineNorm, function=F.layer_norm):
    """Normalises each sample over its last dimensions, of shape ``normalized_shape``. Saves x, and two numbers per sample.

    Source: Ba et al., *Layer normalization*, 2016.
    """

    _shown = ("*normalized_shape", "eps", "elementwise_affine", "bias")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-05,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._make_affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_AffineNorm, function=F.rms_norm):
    """Divides each sample by the root mean square of its last dimensions. Saves x, and one number per sample.

    Source: Zhang and Sennrich, *RMSNorm*, 2019.
    """

    _shown = ("*normalized_shape", "eps", "elementwise_affine")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        made = Parameter(creation.ones(*self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", made)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(_AffineNorm, function=F.group_norm):
    """Normalises the channels of each sample in ``num_groups`` groups. Saves x, and two numbers per group of each sample.

    Raises:
        ValueError: the channels do not divide into the groups.

    Source: Wu and He, *Group normalization*, 2018.
    """

    _shown = ("*num_groups", "*num_channels", "eps", "affine", "bias")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-05,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make_affine((num_channels,), affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, self.num_groups, self.weight, self.bias, self.eps)


class LocalResponseNorm(FunctionLayer, function=F.local_response_norm):
    """Divides each value by a power of the mean square of its neighbour channels."""

    _shown = ("size", "alpha", "beta", "k")

    def __init__(self, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (int(normalized_shape),) if isinstance(normalized_shape, (int, Integral)) else tuple(normalized_shape)
