"""Where PyTorch defines these: ``nn.modules.upsampling``."""

from ..resize import Upsample as Upsample
from ..resize import UpsamplingBilinear2d as UpsamplingBilinear2d
from ..resize import UpsamplingNearest2d as UpsamplingNearest2d
