"""Where PyTorch defines these: ``nn.modules.distance``."""

from ..loss import CosineSimilarity as CosineSimilarity
from ..loss import PairwiseDistance as PairwiseDistance
