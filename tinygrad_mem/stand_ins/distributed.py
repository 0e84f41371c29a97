"""Stand-ins for ``torch.distributed``, so that published files import and ask: one process computes here.

PyTorch built without it answers ``is_available()`` alike. What would talk to other processes refuses when it is called.
"""

from __future__ import annotations

from typing import Any

from .. import absent as _absent
from ..errors import NotOfferedError
from .refused import refused


def is_available() -> bool:
    """Return False: there is one process."""
    return False


def is_initialized() -> bool:
    """Return False: there is one process."""
    return False


def is_torchelastic_launched() -> bool:
    """Return False: no launcher started this process."""
    return False


def is_nccl_available() -> bool:
    """Return False: GPUs do not talk to each other."""
    return False


def destroy_process_group(group: Any = None) -> None:
    """Do nothing: there is no group."""


class ProcessGroup:
    """A group of processes. There is none, so no object is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(
            f"distributed.{type(self).__name__}: one process computes here; ask distributed.is_initialized() first"
        )


class DeviceMesh(ProcessGroup):
    """A grid of devices of several processes. There is none."""


class DTensor(ProcessGroup):
    """A tensor in parts on several devices. There is none."""


class ReduceOp:
    """The ways to combine numbers of several processes, for files that name them."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


_ALONE = "one process computes here: leave it out, or ask distributed.is_initialized() first"
_TALK = "init_process_group get_rank get_world_size get_backend new_group barrier broadcast broadcast_object_list all_reduce "
_TALK += "reduce all_gather all_gather_into_tensor all_gather_object gather scatter reduce_scatter reduce_scatter_tensor "
_TALK += "all_to_all all_to_all_single send recv isend irecv monitored_barrier get_process_group_ranks init_device_mesh"


globals().update(refused("distributed", _TALK, _ALONE))
__getattr__ = _absent.refuses("distributed")
