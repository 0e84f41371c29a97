"""Where PyTorch defines these: ``nn.modules.pixelshuffle``."""

from ..resize import PixelShuffle as PixelShuffle
from ..resize import PixelUnshuffle as PixelUnshuffle
