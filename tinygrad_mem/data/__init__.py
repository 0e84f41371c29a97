"""Datasets, samplers, collation and the loader: PyTorch's ``utils.data``, and readers of original distribution files."""

from .collate import *
from .dataset import *
from .loader import *
from .sampler import *
from .sequences import *
from .tokens import *
from .workers import *
