"""Where PyTorch defines these: ``nn.modules.normalization``."""

from ..norm import GroupNorm as GroupNorm
from ..norm import LayerNorm as LayerNorm
from ..norm import LocalResponseNorm as LocalResponseNorm
from ..norm import RMSNorm as RMSNorm
