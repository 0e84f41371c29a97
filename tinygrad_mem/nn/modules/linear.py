"""Where PyTorch defines these: ``nn.modules.linear``."""

from ..linear import Bilinear as Bilinear
from ..linear import Identity as Identity
from ..linear import Linear as Linear
