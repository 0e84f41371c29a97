"""Where PyTorch defines these: ``nn.modules.loss``."""

from ..loss import BCELoss as BCELoss
from ..loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from ..loss import CosineEmbeddingLoss as CosineEmbeddingLoss
from ..loss import CrossEntropyLoss as CrossEntropyLoss
from ..loss import GaussianNLLLoss as GaussianNLLLoss
from ..loss import HingeEmbeddingLoss as HingeEmbeddingLoss
from ..loss import HuberLoss as HuberLoss
from ..loss import KLDivLoss as KLDivLoss
from ..loss import L1Loss as L1Loss
from ..loss import MarginRankingLoss as MarginRankingLoss
from ..loss import MSELoss as MSELoss
from ..loss import NLLLoss as NLLLoss
from ..loss import PoissonNLLLoss as PoissonNLLLoss
from ..loss import SmoothL1Loss as SmoothL1Loss
from ..loss import SoftMarginLoss as SoftMarginLoss
from ..loss import TripletMarginLoss as TripletMarginLoss
from ..loss import TripletMarginWithDistanceLoss as TripletMarginWithDistanceLoss
from ..loss import _Loss as _Loss
from ..loss import _WeightedLoss as _WeightedLoss
