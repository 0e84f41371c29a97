"""``torch.distributed.fsdp``: parameters, gradients and optimizer state divided among the ranks.

``module.py`` has what users call; ``unit.py`` says when parameters are gathered and dropped; ``shard.py`` does it for one.
"""

from ... import absent as _absent
from .module import *
from .policies import CPUOffloadPolicy as CPUOffloadPolicy
from .policies import FullyShardedDataParallel as FullyShardedDataParallel
from .policies import MixedPrecisionPolicy as MixedPrecisionPolicy
from .policies import OffloadPolicy as OffloadPolicy

__getattr__ = _absent.refuses("distributed.fsdp")
