"""``torch.distributed.fsdp``: parameters, gradients and optimizer state divided among the ranks.

``module.py`` has what users call; ``unit.py`` says when parameters are gathered and dropped; ``shard.py`` does it for one.
"""

from ... import absent as _absent
from ...errors import NotOfferedError as _NotOffered
from .module import *
from .policies import CPUOffloadPolicy as CPUOffloadPolicy
from .policies import MixedPrecisionPolicy as MixedPrecisionPolicy
from .policies import OffloadPolicy as OffloadPolicy

_OLDER = "BackwardPrefetch CPUOffload FullyShardedDataParallel MixedPrecision ShardingStrategy StateDictType"


class _Older:
    """A class of PyTorch's older wrapper. It may be imported, and is never made: no module is one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _NotOffered(f"distributed.fsdp.{type(self).__name__}: use distributed.fsdp.fully_shard")


globals().update({name: type(name, (_Older,), {"__doc__": "Not offered."}) for name in _OLDER.split()})

__getattr__ = _absent.refuses("distributed.fsdp")
