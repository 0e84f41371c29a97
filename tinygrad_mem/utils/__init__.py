"""PyTorch's places: ``utils.data``, ``utils.dlpack``, ``utils.checkpoint`` and what files import beside them."""

from . import checkpoint as checkpoint
from . import data as data
from . import dlpack as dlpack
