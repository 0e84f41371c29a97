"""Where PyTorch defines these: ``nn.modules.pooling``."""

from ..pooling import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from ..pooling import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from ..pooling import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from ..pooling import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from ..pooling import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from ..pooling import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from ..pooling import AvgPool1d as AvgPool1d
from ..pooling import AvgPool2d as AvgPool2d
from ..pooling import AvgPool3d as AvgPool3d
from ..pooling import LPPool1d as LPPool1d
from ..pooling import LPPool2d as LPPool2d
from ..pooling import LPPool3d as LPPool3d
from ..pooling import MaxPool1d as MaxPool1d
from ..pooling import MaxPool2d as MaxPool2d
from ..pooling import MaxPool3d as MaxPool3d
from ..pooling import MaxUnpool1d as MaxUnpool1d
from ..pooling import MaxUnpool2d as MaxUnpool2d
from ..pooling import MaxUnpool3d as MaxUnpool3d
