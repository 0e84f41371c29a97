"""``einops.layers.tinygrad_mem``: the layers of einops as modules."""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from ...autograd.tensor import Tensor
from ...functional import creation, einsum
from .. import init
from ..module import Module
from ..parameter import Parameter


class Rearrange(RearrangeMixin, Module):
    """``rearrange(x, pattern, **axes_lengths)``."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class Reduce(ReduceMixin, Module):
    """``reduce(x, pattern, reduction, **axes_lengths)``."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class EinMix(_EinmixMixin, Module):
    """A linear layer over named axes: an einsum with a weight, and a bias."""

    def _create_parameters(self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float) -> None:
        self.weight = Parameter(init.uniform_(creation.empty(weight_shape), -weight_bound, weight_bound))
        made = None if bias_shape is None else Parameter(init.uniform_(creation.empty(bias_shape), -bias_bound, bias_bound))
        self.register_parameter("bias", made)

    def _create_rearrange_layers(self, before: str | None, before_axes: Any, after: str | None, after_axes: Any) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_axes)
        self.post_rearrange = None if after is None else Rearrange(after, **after_axes)

    def forward(self, input: Tensor) -> Tensor:
        x = input if self.pre_rearrange is None else self.pre_rearrange(input)
        x = einsum.einsum(self.einsum_pattern, x, self.weight)
        if self.bias is not None:
            x = x + self.bias
        return x if self.post_rearrange is None else self.post_rearrange(x)
