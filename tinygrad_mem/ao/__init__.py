"""A stand-in for ``torch.ao``, so that networks written for quantization import and train: nothing is quantized."""

from . import nn as nn
from . import quantization as quantization
