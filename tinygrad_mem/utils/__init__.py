"""The modules of ``torch.utils``: ``data``, ``dlpack``, ``checkpoint`` and others that files import."""

from . import checkpoint as checkpoint
from . import data as data
from . import dlpack as dlpack
