"""Objects that processes send each other as pickles: only those of this process are known."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ...errors import NotOfferedError

if TYPE_CHECKING:
    from .watch import Watch

_ALIKE = "torch.distributed: objects that other processes send were assumed to be the one that this process sends"
_FROM_ANOTHER = (
    "torch.distributed: {} receives what process {} sends, which is not known in a prediction of process {}. Predict that one "
    "with rank={}, or make the objects in each process"
)

_NOT_KNOWN = (
    "torch.distributed: {} receives what another process sends, which is not known in a prediction of this one. Make the "
    "objects in each process. torch.distributed.pipelining sends shapes so: give each PipelineStage input_args and output_args"
)


def gathered(watch: Watch, own: Callable[..., None], object_list: list[Any], obj: Any, group: Any = None) -> None:
    """``all_gather_object``. Source: ``torch/distributed/distributed_c10d.py``."""
    sent, *rest = _sent(watch, obj, group, receives=True)
    dist.all_gather(list(rest[-1].split(len(sent))), sent, group=group)
    object_list[:] = [obj] * dist.get_world_size(group)


def gathered_by_one(
    watch: Watch,
    own: Callable[..., None],
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """``gather_object``. Source: ``torch/distributed/distributed_c10d.py``."""
    receives = object_gather_list is not None
    held = _sent(watch, obj, group, receives)
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * dist.get_world_size(group)
    del held


def _sent(watch: Watch, obj: Any, group: Any, receives: bool) -> list[torch.Tensor]:
    """Tensors for the pickle of this process, its length, the lengths of all, and, if it receives them, the pickles of all."""
    watch.note(_ALIKE)
    device, size, count = watch.device, len(pickle.dumps(obj)), dist.get_world_size(group)
    with watch.as_role("COMMUNICATION"):
        sent = torch.empty(size, dtype=torch.uint8, device=device)
        length, lengths = torch.empty(1, dtype=torch.long, device=device), torch.zeros(count, dtype=torch.long, device=device)
        dist.all_gather(list(lengths.split(1)), length, group=group)
        received = [torch.empty(size * count, dtype=torch.uint8, device=device)] if receives else []
    return [sent, length, lengths, *received]


def broadcast(
    watch: Watch, own: Callable[..., None], object_list: list[Any], src: Any = None, *args: Any, **kwargs: Any
) -> None:
    """``broadcast_object_list``: the sender alone knows the objects."""
    group = args[0] if args else kwargs.get("group")
    here, sender = dist.get_rank(), src if src is not None else 0
    if kwargs.get("group_src") is not None:
        here, sender = dist.get_rank(group), kwargs["group_src"]
    if here != sender:
        raise NotOfferedError(_FROM_ANOTHER.format("broadcast_object_list", sender, here, sender))
    own(object_list, src, *args, **kwargs)


def not_known(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    """A function whose objects only the sender knows."""
    raise NotOfferedError(_NOT_KNOWN.format(name))
