"""Tensor and sequence parallel, with ``torch.distributed.tensor.parallel``'s names: layers whose weights lie over ranks."""

from .... import absent as _absent
from .style import ColwiseParallel as ColwiseParallel
from .style import ParallelStyle as ParallelStyle
from .style import PrepareModuleInput as PrepareModuleInput
from .style import RowwiseParallel as RowwiseParallel
from .style import SequenceParallel as SequenceParallel
from .style import parallelize_module as parallelize_module
from .vocabulary_loss import vocabulary_parallel_cross_entropy as vocabulary_parallel_cross_entropy

__getattr__ = _absent.refuses("distributed.tensor.parallel")
