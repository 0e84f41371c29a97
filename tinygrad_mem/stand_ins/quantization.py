"""A stand-in for ``torch.ao.quantization``: networks written for it import and train in floating numbers.

Functions that observe, convert or fuse layers can be imported, and raise when they are called.
"""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError
from ..nn.module import Module
from .refused import refused

_WHOLE = "there are no quantized or packed numbers: train the network as it is, or use half()"


class QuantStub(Module):
    """Marks where numbers are to be quantized. It returns x itself, as PyTorch's does until a network is converted."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            raise NotOfferedError(f"ao.quantization.QuantStub(qconfig=...): {_WHOLE}")

    def forward(self, x: Any) -> Any:
        """Return x itself."""
        return x


class DeQuantStub(QuantStub):
    """Marks where numbers are to be dequantized. It returns x itself."""


_REFUSED = "convert convert_jit default_eval_fn fuse_modules fuse_modules_qat get_default_qat_qconfig get_default_qconfig "
_REFUSED += "get_default_qconfig_mapping get_default_qat_qconfig_mapping prepare prepare_qat propagate_qconfig_ quantize "
_REFUSED += "quantize_dynamic quantize_qat swap_module FakeQuantize MinMaxObserver MovingAverageMinMaxObserver QConfig "
_REFUSED += "PerChannelMinMaxObserver HistogramObserver default_observer default_weight_observer "
_REFUSED += "default_per_channel_weight_observer default_qconfig default_fake_quant default_weight_fake_quant"


globals().update(refused("ao.quantization", _REFUSED, _WHOLE))
