"""PyTorch's places: ``utils.data``, ``utils.dlpack`` and ``utils.checkpoint``."""

from . import checkpoint as checkpoint
from . import data as data
from . import dlpack as dlpack
