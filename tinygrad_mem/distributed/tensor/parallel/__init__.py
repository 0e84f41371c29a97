"""Tensor and sequence parallel, with ``torch.distributed.tensor.parallel``'s names: layers with divided weights."""

from .... import absent as _absent
from .style import *
from .vocabulary_loss import vocabulary_parallel_cross_entropy as vocabulary_parallel_cross_entropy

__getattr__ = _absent.refuses("distributed.tensor.parallel")
