"""``tinygrad_mem.data`` under PyTorch's name."""

from ... import absent as _absent
from ...data.collate import *
from ...data.dataset import *
from ...data.loader import *
from ...data.sampler import *
from ...data.sequences import *
from ...data.tokens import *
from ...data.workers import *
from ...distributed.sampler import DistributedSampler as DistributedSampler

__getattr__ = _absent.refuses("utils.data")
