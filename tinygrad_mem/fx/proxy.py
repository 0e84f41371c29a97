"""``torch.fx.proxy``, so that published files import: nothing is traced."""

from .graphs import Proxy as Proxy
from .graphs import TracerBase as TracerBase
