"""``torch.quantization``, the older name of ``torch.ao.quantization``: the same module."""

from __future__ import annotations

import sys

from .ao import quantization

sys.modules[__name__] = quantization
