"""Where PyTorch defines these: ``nn.modules.instancenorm``."""

from ..norm import InstanceNorm1d as InstanceNorm1d
from ..norm import InstanceNorm2d as InstanceNorm2d
from ..norm import InstanceNorm3d as InstanceNorm3d
from ..norm import _InstanceNorm as _InstanceNorm
