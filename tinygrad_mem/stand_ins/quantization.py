"""A stand-in for ``torch.ao.quantization``: networks written for it import and train in floating numbers.

What would observe, convert or fuse layers may be imported, and refuses when it is called.
"""

from __future__ import annotations

from typing import Any

from .. import absent as _absent
from ..errors import NotOfferedError
from ..nn.module import Module

_WHOLE = "there are no quantized or packed numbers: train the network as it is, or use half()"


class QuantStub(Module):
    """Where numbers are to be quantized: x itself, as in PyTorch until a network is converted."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            raise NotOfferedError(f"ao.quantization.QuantStub(qconfig=...): {_WHOLE}")

    def forward(self, x: Any) -> Any:
        """x itself."""
        return x


class DeQuantStub(QuantStub):
    """Where numbers are to be made floating again: x itself."""


class QuantWrapper(Module):
    """A module between the two stubs, which leave its input and its output as they are."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.quant, self.dequant, self.module = QuantStub(), DeQuantStub(), module

    def forward(self, X: Any) -> Any:
        """What the module gives."""
        return self.dequant(self.module(self.quant(X)))


_REFUSED = "convert convert_jit default_eval_fn fuse_modules fuse_modules_qat get_default_qat_qconfig get_default_qconfig "
_REFUSED += "get_default_qconfig_mapping get_default_qat_qconfig_mapping prepare prepare_qat propagate_qconfig_ quantize "
_REFUSED += "quantize_dynamic quantize_qat swap_module FakeQuantize MinMaxObserver MovingAverageMinMaxObserver QConfig "
_REFUSED += "PerChannelMinMaxObserver HistogramObserver default_observer default_weight_observer "
_REFUSED += "default_per_channel_weight_observer default_qconfig default_fake_quant default_weight_fake_quant"


class _Refused:
    """A function or class that may be imported, and refuses to run."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(f"ao.quantization.{self.__name__}: {_WHOLE}")

    with_args = __call__


globals().update({name: _Refused(name) for name in _REFUSED.split()})


__getattr__ = _absent.refuses("ao.quantization")
