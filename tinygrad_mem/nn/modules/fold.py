"""Where PyTorch defines these: ``nn.modules.fold``."""

from ..conv import Fold as Fold
from ..conv import Unfold as Unfold
