"""A stand-in for ``torch.ao`` and ``torch.ao.nn``, so that networks written for quantization import and train."""

from ..nn import quantized as quantized
from . import quantization as quantization
