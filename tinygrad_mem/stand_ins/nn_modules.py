"""``torch.nn.modules``, where PyTorch defines its layers: all names of ``nn``, and the private ones that files import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from ..nn import *  # noqa: F403
from ..nn.conv import _ConvNd as _ConvNd
from ..nn.loss import _Loss as _Loss
from ..nn.loss import _WeightedLoss as _WeightedLoss
from ..nn.multihead import NonDynamicallyQuantizableLinear as NonDynamicallyQuantizableLinear
from ..nn.norm import _BatchNorm as _BatchNorm
from ..nn.norm import _InstanceNorm as _InstanceNorm
from ..nn.state import IncompatibleKeys as _IncompatibleKeys  # noqa: F401
from ..nn.transformer import _activation as _get_activation_fn  # noqa: F401


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple]:
    def parse(x: Any) -> tuple:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")
