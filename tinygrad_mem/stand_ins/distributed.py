"""Stand-ins for ``torch.distributed``, so that published files import and ask: one process computes here.

PyTorch built without it answers ``is_available()`` alike. What would talk to other processes refuses when it is called.
"""

from __future__ import annotations

from typing import Any

from .. import absent as _absent
from ..errors import NotOfferedError


def is_available() -> bool:
    """Whether processes can talk to each other: never."""
    return False


def is_initialized() -> bool:
    """Whether there is a group of processes: never."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether a launcher started this process: never."""
    return False


def is_nccl_available() -> bool:
    """Whether GPUs can talk to each other: never."""
    return False


def destroy_process_group(group: Any = None) -> None:
    """Nothing: there is no group."""


class ProcessGroup:
    """Processes that talk to each other: there are none, and no object of this class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError("distributed.ProcessGroup: one process computes here; ask distributed.is_initialized() first")


class ReduceOp:
    """How numbers of several processes are combined, for files that name it."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


_TALK = "init_process_group get_rank get_world_size get_backend new_group barrier broadcast broadcast_object_list all_reduce "
_TALK += "reduce all_gather all_gather_into_tensor all_gather_object gather scatter reduce_scatter reduce_scatter_tensor "
_TALK += "all_to_all all_to_all_single send recv isend irecv monitored_barrier get_process_group_ranks"


class _Refused:
    """A function that may be imported, and refuses to run."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(
            f"distributed.{self.__name__}: one process computes here: leave it out, or ask distributed.is_initialized() first"
        )


globals().update({name: _Refused(name) for name in _TALK.split()})


__getattr__ = _absent.refuses("distributed")
