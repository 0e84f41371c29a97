"""Meshes of processes, and the tensors and networks that are divided over them: ``DeviceMesh``, ``DTensor``, ``fully_shard``.

All of them run as PyTorch wrote them. A mesh is made of real numbers: which process is where does not depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard import _fsdp_init as beginning
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as sharding
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, _random
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from ...errors import NotOfferedError
from ...interrupts import cleanup, context
from .fake import without_modes
from .replacing import handled, patched, refused

if TYPE_CHECKING:
    from .watch import Watch

WRAPPERS = (DTensor, AsyncCollectiveTensor)
"""The types of tensors of which each process holds a part, or has still to receive one."""
PYTHON = {
    torch.ops.fsdp.all_gather_copy_in.default: _fsdp_collectives.all_gather_copy_in_cuda,
    torch.ops.fsdp.split_with_sizes_copy.default: _fsdp_collectives.split_with_sizes_copy,
    torch.ops.fsdp.chunk_cat.default: _fsdp_collectives.chunk_cat,
}
"""Ops that PyTorch writes in Python, of ops that are known."""
_GATHERING = ("foreach_all_gather", "foreach_all_gather_copy_out")
_GROUP = sharding.FSDPParamGroup
_UNKNOWN = "is not predicted for PyTorch"


@context
def meshes(watch: Watch) -> Iterator[None]:
    """Let a program divide its tensors and networks over a mesh."""
    watch.wrappers = WRAPPERS
    tracker = _random._rng_tracker

    def forget() -> None:
        _clear_sharding_prop_cache()  # it holds meshes, and one of another world may be equal
        _random._rng_tracker = tracker

    unpredicted = {
        "set_symm_mem": refused(f"set_symm_mem {_UNKNOWN}: leave it out"),
        "set_allocate_memory_from_process_group": refused(f"memory of a process group {_UNKNOWN}: leave it out"),
    }
    changes = [
        handled(watch, sharding, **dict.fromkeys(_GATHERING, _sends), foreach_reduce=_reduces),
        handled(watch, ShardingPropagator, _propagate_tensor_meta_non_cached=_shapes),
        handled(watch, FSDPParam, reset_sharded_param=_reset, _init_sharded_param=_shard),
        handled(watch, beginning, _move_states_to_device=_move_states),
        handled(watch, _GROUP, _validate_no_meta_params=_with_memory),
        handled(watch, torch.UntypedStorage, resize_=_resize),
        (FullyShardedDataParallel, {"__init__": refused(f"FullyShardedDataParallel {_UNKNOWN}: use fully_shard")}),
        (_GROUP, unpredicted),
    ]
    _clear_sharding_prop_cache()
    _random._rng_tracker = None
    try:
        with _real_numbers(watch), patched(*changes):
            yield
    finally:
        cleanup(forget)


@context
def _real_numbers(watch: Watch) -> Iterator[None]:
    """Let meshes be made of real tensors, without the modes of a prediction."""
    kinds = (FunctionType, staticmethod, property)
    own = {name: each for name, each in vars(DeviceMesh).items() if isinstance(each, kinds) and name != "__init__"}
    try:
        for name, member in own.items():
            setattr(DeviceMesh, name, _outside(member))
        with patched((DeviceMesh, {"__init__": partial(_mesh, watch)})):
            yield
    finally:
        for name, member in own.items():
            setattr(DeviceMesh, name, member)


def _outside(member: Any) -> Any:
    """Wrap a member of a class to run without modes."""
    if isinstance(member, property):
        return property(_outside(member.fget))
    if isinstance(member, staticmethod):
        return staticmethod(_outside(member.__func__))

    def call(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return member(*args, **kwargs)

    return call


_own_mesh = DeviceMesh.__init__


def _mesh(watch: Watch, mesh: DeviceMesh, device_type: str, ranks: Any = None, **kwargs: Any) -> None:
    if isinstance(ranks, FakeTensor):
        raise NotOfferedError(
            "DeviceMesh: a tensor of ranks has no values in a prediction. Give it a list, or use init_device_mesh"
        )
    if isinstance(kwargs.get("_rank_map"), FakeTensor):  # of ``init_device_mesh``: all ranks in order
        with without_modes():
            kwargs["_rank_map"] = torch.arange(kwargs["_layout"].numel(), dtype=torch.int)
    _outside(_own_mesh)(mesh, device_type, ranks, **kwargs)
    if mesh._root_mesh is None:  # else it has the numbers of that one
        with torch._C.DisableTorchFunction():
            watch.own(mesh._rank_map, mesh._rank_map)
        with without_modes():
            watch.processes.met(mesh.mesh_dim_names, np.array(mesh.mesh.tolist()))


def _shapes(watch: Watch, own: Callable[..., Any], *args: Any) -> Any:
    """Count no memory of the tensors of whole shape with which PyTorch runs each op once, to learn its result's shape."""
    with without_modes(), watch.fake:
        return own(*args)


def _sends(watch: Watch, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function of ``fully_shard`` whose allocations are communication buffers."""
    with watch.as_role("COMMUNICATION"):
        return own(*args, **kwargs)


def _reduces(watch: Watch, own: Callable[..., Any], parameters: list[Any], *args: Any) -> Any:
    """Run the function of ``fully_shard`` that reduces gradients; the reduced ones are not communication buffers."""
    found = _sends(watch, own, parameters, *args)
    for each in parameters:
        if each.sharded_param.grad is not None and (held := watch.find(each.sharded_param.grad)) is not None:
            watch.ledger.was(held, "GRADIENT")
    return found


def _resize(watch: Watch, own: Callable[..., Any], storage: torch.UntypedStorage, size: int) -> Any:
    found = own(storage, size)
    watch.resized(storage)
    return found


def _reset(watch: Watch, own: Callable[..., Any], param: Any) -> None:
    """Check if the program has replaced a parameter's local part: PyTorch compares addresses, of plain tensors alone."""
    now = getattr(param._module_info.module, param._module_info.param_name)
    if now is param.sharded_param and _storage(now._local_tensor) == _storage(param._sharded_param_data):
        param._sharding_spec = now._spec
    else:
        own(param)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _move_states(watch: Watch, own: Callable[..., Any], params: list, buffers: list, device: torch.device) -> None:
    """Move tensors as ``fully_shard`` does, which leaves those on ``meta`` there: here, those are on the CPU."""
    there = [[each for each in tensors if not watch.without_memory(each)] for tensors in (params, buffers)]
    own(*there, device)


def _shard(watch: Watch, own: Callable[..., Any], param: Any, whole: Any, device: torch.device, *args: Any) -> None:
    own(param, whole, torch.device("cpu") if watch.without_memory(whole) else device, *args)


def _with_memory(watch: Watch, own: Callable[..., Any], group: Any) -> None:
    if names := [each._param_fqn for each in group.fsdp_params if watch.without_memory(each.sharded_param)]:
        raise RuntimeError(f"fully_shard: {names} are still on meta: call to_empty(device=...) before training")
