"""PyTorch's places: ``utils.data`` and ``utils.dlpack``."""

from . import data as data
from . import dlpack as dlpack
