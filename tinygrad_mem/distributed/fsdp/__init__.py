"""``torch.distributed.fsdp``: parameters, gradients and optimizer state divided among the ranks.

``module.py`` has what users call; ``unit.py`` says when parameters are gathered and dropped; ``shard.py`` does it for one.
"""

from ... import absent as _absent
from .module import FSDPModule as FSDPModule
from .module import UnshardHandle as UnshardHandle
from .module import fully_shard as fully_shard
from .module import register_fsdp_forward_method as register_fsdp_forward_method
from .policies import CPUOffloadPolicy as CPUOffloadPolicy
from .policies import MixedPrecisionPolicy as MixedPrecisionPolicy
from .policies import OffloadPolicy as OffloadPolicy

__getattr__ = _absent.refuses("distributed.fsdp")
