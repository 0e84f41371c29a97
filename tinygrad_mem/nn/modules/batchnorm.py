"""Where PyTorch defines these: ``nn.modules.batchnorm``."""

from ..norm import BatchNorm1d as BatchNorm1d
from ..norm import BatchNorm2d as BatchNorm2d
from ..norm import BatchNorm3d as BatchNorm3d
from ..norm import SyncBatchNorm as SyncBatchNorm
from ..norm import _BatchNorm as _BatchNorm
