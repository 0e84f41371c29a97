"""One process of several: its collectives send nothing, and PyTorch's own reducer of ``DistributedDataParallel`` runs.

NCCL takes no memory from PyTorch's allocator for the collectives below. So a rank allocates the same bytes as in a real group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch._C._distributed_c10d import Reducer  # type: ignore[attr-defined]
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as groups
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as data_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from ...autograd.questions import reader
from ...errors import NotOfferedError
from ...interrupts import changed, context
from ...memory.ranks import Grid
from . import objects
from .collectives import Collectives
from .fake import on_gpu
from .mesh import PYTHON, meshes
from .replacing import handled, holders, patched, refused

if TYPE_CHECKING:
    from .watch import Watch

_REDUCING = [  # what it is called differs between versions
    name for name in ("allreduce", "reduce_scatter_single", "_reduce_scatter_base") if hasattr(dist.ProcessGroup, name)
]
_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")
_EMPTY = torch.ops.aten.empty.memory_format
_LEFT_OUT = ("mixed_precision", "delay_all_reduce_named_params", "batched_grad_copy")
_OBJECTS = {
    "all_gather_object": objects.gathered,
    "gather_object": objects.gathered_by_one,
    "broadcast_object_list": objects.broadcast,
    **{name: partial(objects.not_known, name) for name in ("recv_object_list", "scatter_object_list")},
}
_CHECKPOINTS = ("save", "load", "async_save")
_DDP = "DistributedDataParallel"
_HOOKED = f"{_DDP}.register_comm_hook is not predicted for PyTorch: leave it out"
_SAVED = (
    "torch.distributed.checkpoint: nothing is written or read in a prediction. It copies tensors by the host, which takes no "
    "memory of the GPU"
)
_NCCL = "torch.distributed: NCCL and CUDA allocate for each process outside of PyTorch's allocator, which is not counted"

_UNUSED = f"{_DDP}: a parameter that this process does not use was assumed to be unused by all"
_HELD = (
    f"{_DDP}: after its first step it makes its buckets of gradients anew. NCCL's thread may hold the old ones for a tenth of "
    "a second: if steps are shorter, the peak may be higher by the bytes of the gradients"
)
"""Seen on an H200 in 5 of 11 programs. Source: ``ProcessGroupNCCL.hpp``, ``kWatchdogThreadSleepMillis``."""
SAME_SEED = "torch/distributed/tensor/_random.py"
"""The file that asks whether all processes have the same seed, as they should."""
_ALONE = "the program did not call torch.distributed.init_process_group: it was predicted as a single process"


class Processes:
    """The process ``rank`` of ``world_size``, while its program runs.

    Attributes:
        grid: the first mesh of all processes that has names.
        finds_unused: ``DistributedDataParallel`` was asked to find parameters that a process does not use.
        rebuilding: True while the reducer reads numbers that it has written into small tensors of the host: these are real.
    """

    def __init__(self, watch: Watch, rank: int, world_size: int) -> None:
        self.watch, self._rank, self._size = watch, rank, world_size
        self.finds_unused = self.rebuilding = self._met = False
        self.grid: Grid | None = None
        self._collectives = Collectives(watch)
        self.backends: dict[str, str] = {}  # that the program named, by the name of the group

    def met(self, names: tuple[str, ...] | None, ranks: np.ndarray) -> None:
        """Record a mesh that the program made."""
        if self.grid is None and names and ranks.size == self._size:
            self.grid = Grid(names, ranks)

    def assumed(self, number: torch.Tensor) -> int | None:
        """The value of an unknown number with which PyTorch asks about other processes; ``None``: it does not.

        1 if their generators are in this one's state: :data:`SAME_SEED`. 0 if none has used a parameter that this one has not:
        ``torch/csrc/distributed/c10d/reducer.cpp``, ``finalize_bucket_dense``.
        """
        if self.watch.numbers.value(number) is not None:
            return None
        if number.dtype is torch.bool and reader().f_code.co_filename.replace("\\", "/").endswith(SAME_SEED):
            return 1
        if not self.finds_unused or number.dtype is not torch.int32:
            return None
        self.watch.note(_UNUSED)
        return 0

    def op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op of ``torch.distributed``, or of one that must be real; else ``NotImplemented``."""
        if self.rebuilding and func is _EMPTY and kwargs.get("device") is None:
            with _disable_current_modes():
                made = func(*args, **kwargs)
            self.watch.own(made, made)
            return made
        if func in PYTHON:
            with self.watch:
                return PYTHON[func](*args, **kwargs)
        return self._collectives.op(func, args) if func.namespace in _NAMESPACES else NotImplemented

    @context
    def running(self) -> Iterator[None]:
        """Let ``init_process_group`` make the group of this process, and end it with the program."""
        if dist.is_initialized():
            raise NotOfferedError(
                "predict: world_size is given, but there is a process group already: call destroy_process_group() first"
            )
        variables = {"RANK": self._rank, "WORLD_SIZE": self._size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        changes = [
            (groups, {"rendezvous": self._meeting, "_get_default_timeout": lambda backend: groups.default_pg_timeout}),
            handled(self, groups, _new_process_group_helper=_group),
            *[handled(self, owner, get_backend=_backend) for owner in (dist, groups)],
            handled(self, groups, _get_object_coll_device=_place_of_objects),
            *[handled(self.watch, owner, **{name: _OBJECTS[name]}) for owner, name in holders(groups, _OBJECTS)],
            (c10d_logger, {"_get_msg_dict": lambda *args, **kwargs: {}}),  # it asks for the version of NCCL
            (dist, {"is_nccl_available": lambda: True} if self.watch.device.type == "cuda" else {}),
            handled(self._collectives, dist.ProcessGroup, **dict.fromkeys(_REDUCING, _reducing)),
            handled(self, Reducer, _rebuild_buckets=_rebuilt),
            (DistributedDataParallel, {"__init__": partial(_data_parallel, self)}),
            (DistributedDataParallel, {"register_comm_hook": refused(_HOOKED)}),
            *[
                (owner, {name: self._saved})
                for owner, name in (holders(checkpoint, _CHECKPOINTS) if self.watch.device.type == "cuda" else [])
            ],
            (data_parallel, {"_verify_param_shape_across_processes": _verified}),
        ]
        with patched(*changes), meshes(self.watch):
            try:
                os.environ.update({name: str(number) for name, number in variables.items()})  # until the prediction ends
                yield
                if not self._met:
                    self.watch.note(_ALONE)
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _saved(self, *args: Any, **kwargs: Any) -> Any:
        """A call of ``torch.distributed.checkpoint``, which would ask the other processes for their parts."""
        self.watch.note(_SAVED)
        done: Future[Any] = Future()
        done.set_result(None)
        return done  # for which the caller of ``async_save`` waits

    def _meeting(self, *args: Any, **kwargs: Any) -> Iterator[tuple]:
        """The result of the rendezvous of all processes: the rank of this one."""
        self._met = True
        self.watch.note(_NCCL)
        return iter([(FakeStore(), self._rank, self._size)])


_own_model = DistributedDataParallel.__init__


def _group(
    processes: Processes, own: Callable[..., Any], size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
) -> Any:
    """A group that sends nothing, with the name of the backend that the program asked for; another group's is the default."""
    made = own(size, rank, ranks, "fake", *args, **(kwargs | {"backend_options": None, "device_id": None}))
    if isinstance(made[0], dist.ProcessGroup):
        default = next(iter(processes.backends.values()), "undefined")
        processes.backends[made[0].group_name or ""] = default if backend == "fake" else str(backend)
    return made


def _backend(processes: Processes, own: Callable[..., Any], group: Any = None) -> Any:
    """The name of the backend, on which programs and PyTorch's own gradients branch."""
    found: str = own(group)
    name = (group or groups._get_default_group()).group_name or ""
    return dist.Backend(processes.backends.get(name, found))


def _place_of_objects(processes: Processes, own: Callable[..., Any], group: Any = None) -> str:
    """The device by which pickles are sent: NCCL sends only from a GPU."""
    return "cuda" if groups.get_backend(group) == dist.Backend.NCCL else own(group)


def _reducing(collectives: Collectives, own: Callable[..., Any], group: Any, *args: Any) -> Any:
    """Run a collective whose last argument says if it divides the sum."""
    with changed(collectives, averages=getattr(args[-1], "reduceOp", None) == dist.ReduceOp.AVG):
        return own(group, *args)


def _data_parallel(processes: Processes, model: Any, *args: Any, **kwargs: Any) -> None:
    for name in _LEFT_OUT:
        if kwargs.get(name):
            raise NotOfferedError(f"{_DDP}({name}={kwargs[name]!r}) is not predicted: leave it out")
    with processes.watch.as_role("COMMUNICATION"):
        _own_model(model, *args, **kwargs)
    processes.finds_unused |= model.find_unused_parameters or model.static_graph


def _verified(group: dist.ProcessGroup, tensors: list[torch.Tensor], logger: Any = None) -> None:
    """Ask for what the check that all processes have the same parameters takes on a GPU: how many each has, and their shapes.

    NCCL gathers into one tensor first. Source: ``reducer.cpp``, ``verify_params_across_processes``; ``ProcessGroupNCCL.cpp``,
    ``newLikeFlat``; seen on an H200.
    """
    if not on_gpu(tensors[0]):
        return
    where: Any = {"dtype": torch.long, "device": tensors[0].device}
    numbers = [torch.empty(1, **where) for _ in range(1 + group.size())]
    if groups.get_backend(group) != dist.Backend.GLOO:
        torch.empty(group.size(), **where)
    torch.empty(2 * sum(each.dim() for each in tensors), **where)
    del numbers


def _rebuilt(processes: Processes, own: Callable[..., bool], reducer: Any) -> bool:
    with changed(processes, rebuilding=True), processes.watch.as_role("COMMUNICATION"):
        made = own(reducer)
    if made and processes.watch.device.type == "cuda" and groups.get_backend() != dist.Backend.GLOO:
        processes.watch.note(_HELD)
    return made
