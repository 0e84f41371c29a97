"""``torch.quantization``, the older name of ``torch.ao.quantization``."""

from __future__ import annotations

from .ao.quantization import DeQuantStub as DeQuantStub
from .ao.quantization import QuantStub as QuantStub
from .ao.quantization import QuantWrapper as QuantWrapper


def __getattr__(name: str) -> object:
    from .absent import lacking
    from .ao import quantization

    try:
        return getattr(quantization, name)
    except AttributeError as error:
        raise lacking(name, str(error)) from None
