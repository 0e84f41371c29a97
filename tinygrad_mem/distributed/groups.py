"""The process groups of a program: the default one, of all processes, and those that are made from it.

``mpiexec -n 4 python train.py`` starts four ranks, each of which calls ``init_process_group()``. In a prediction the group is
the ``fake`` one, which plays one rank and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, NotOfferedError
from ..scope import local
from .fake import FakeGroup
from .group import ProcessGroup

__all__ = (
    "GroupMember", "default_pg_timeout", "destroy_process_group", "get_backend", "get_global_rank", "get_group_rank",
    "get_process_group_ranks", "get_rank", "get_world_size", "init_process_group", "is_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "new_group",
)  # fmt: skip

default_pg_timeout = timedelta(minutes=30)
_BACKENDS = ("mpi", "nccl", "fake")


class GroupMember:
    """The group of a process that is not a member."""

    NON_GROUP_MEMBER = object()


_process = SimpleNamespace(process_group=None)


def _state() -> Any:
    """The holder of the default group: this process, or a dry run."""
    return _process if local.dry is None else local.dry


def is_available() -> bool:
    """Return True. Whether a backend is installed shows when it is initialized."""
    return True


def is_mpi_available() -> bool:
    """Return True if mpi4py is installed."""
    from importlib.util import find_spec

    return find_spec("mpi4py") is not None


def is_nccl_available() -> bool:
    """Return True if CuPy is installed and finds NCCL."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return False
    return bool(getattr(nccl, "available", False))


def is_gloo_available() -> bool:
    """Return False: on the cpu MPI is used."""
    return False


def is_torchelastic_launched() -> bool:
    """Return False: ``python -m tinygrad_mem launch`` or ``mpiexec`` starts the processes."""
    return False


def is_initialized() -> bool:
    """Return True between :func:`init_process_group` and :func:`destroy_process_group`."""
    return _state().process_group is not None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Make the default group, of all processes. Each process must call it.

    Args:
        backend: ``"mpi"`` (tensors on ``cpu``, the default), ``"nccl"`` (on ``cuda``), or ``"fake"`` (on ``meta``: this process
            plays ``rank`` of ``world_size``). In a prediction it is always ``fake``.
        timeout: the time that a collective may wait for other ranks; 30 minutes.
        world_size, rank: of the fake group. MPI knows its own, which may be given too.
        init_method, store, group_name, pg_options, device_id: accepted for compatibility; ``mpiexec`` knows the processes.

    Raises:
        ArgumentError: there is a default group already; MPI has another rank or size; the fake group has none.
        NotOfferedError: another backend.
        ModuleNotFoundError: mpi4py or CuPy is not installed.
        RankError: another process did not come in time.
    """
    state = _state()
    if state.process_group is not None:
        raise ArgumentError("trying to initialize the default process group twice! Call destroy_process_group() first.")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise ArgumentTypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout}")
    seconds = (timeout or default_pg_timeout).total_seconds()
    name = (backend or "mpi").lower()
    if name not in _BACKENDS:
        raise NotOfferedError(
            f"init_process_group: the backend {backend!r} is not offered: leave it out for MPI, or use 'nccl' on GPUs"
            if local.dry is None
            else f"init_process_group: the backend {backend!r} is not offered outside of a prediction: leave it out"
        )
    if local.dry is not None or name == "fake":
        state.process_group = _fake(rank, world_size, seconds)
        return
    if name == "mpi":
        from .mpi import world_group as made
    else:
        from .nccl import nccl_group as made
    group = made(seconds)
    if rank not in (-1, group.rank()) or world_size not in (-1, group.size()):
        raise ArgumentError(
            f"init_process_group: rank={rank}, world_size={world_size} were given, mpiexec started this process as rank "
            f"{group.rank()} of {group.size()}: leave them out, or start the program with python -m tinygrad_mem launch -n N"
        )
    state.process_group = group


def _fake(rank: int, size: int, timeout: float) -> FakeGroup:
    """The group of one rank that is played. A prediction knows which; outside of one the caller says it."""
    place = getattr(local.dry, "place", None) or ((0, 1) if local.dry is not None and rank == size == -1 else (rank, size))
    if rank not in (-1, place[0]) or size not in (-1, place[1]):
        raise ArgumentError(
            f"init_process_group: rank={rank}, world_size={size} were given, but rank {place[0]} of {place[1]} is predicted"
        )
    if not 0 <= place[0] < place[1]:
        raise ArgumentError(f"init_process_group: give the fake group a rank and its world_size, found {place[0]}, {place[1]}")
    return FakeGroup(place[0], range(place[1]), timeout)


def destroy_process_group(group: Any = None) -> None:
    """Remove ``group``; without one, the default group."""
    state = _state()
    if group is None or group is state.process_group:
        state.process_group = None


def member(group: Any = None) -> ProcessGroup | None:
    """The group, or the default one; ``None`` if this process does not belong to it."""
    if group is None:
        group = _state().process_group
        if group is None:
            raise ArgumentError("Default process group has not been initialized, please make sure to call init_process_group.")
    if group is GroupMember.NON_GROUP_MEMBER:
        return None
    if not isinstance(group, ProcessGroup):
        raise ArgumentTypeError(f"group: expected a process group, found {type(group).__name__}: make one with new_group()")
    return group


def own_group(who: str, group: Any = None) -> ProcessGroup:
    """As :func:`member`, for a call that only members of the group make; ``who``: the call, for the error."""
    found = member(group)
    if found is None:
        raise ArgumentError(f"{who}: this rank is not a member of the process group: call it on members alone")
    return found


def get_rank(group: Any = None) -> int:
    """This process's number in the group; -1 if it does not belong to it."""
    found = member(group)
    return -1 if found is None else found.rank()


def get_world_size(group: Any = None) -> int:
    """The number of processes in the group; -1 if this one does not belong to it."""
    found = member(group)
    return -1 if found is None else found.size()


def get_backend(group: Any = None) -> str:
    """``mpi``, ``nccl`` or ``fake``.

    Raises:
        ArgumentError: this process does not belong to the group.
    """
    return own_group("get_backend", group).backend


def get_process_group_ranks(group: Any = None) -> list[int]:
    """The ranks, among all processes, of the group's members, in its order."""
    found = member(group)
    return [] if found is None else list(found.ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank, among all processes, of a group's member.

    Raises:
        ArgumentError: the group has no such rank.
    """
    return get_process_group_ranks(group)[inside(group, None, "get_global_rank", group_rank)]


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in a group of the process that has ``global_rank`` among all."""
    return inside(group, global_rank, "get_group_rank")


def new_group(
    ranks: Sequence[int] | None = None, timeout: timedelta | None = None, backend: str | None = None, **more: Any
) -> Any:
    """A group of some of the ranks. Every process must call it, members or not.

    Returns:
        The group; for a process that is not a member, ``GroupMember.NON_GROUP_MEMBER``.

    Raises:
        ArgumentError: a rank does not exist, or comes twice.
    """
    world = own_group("new_group")
    chosen = sorted(range(world.size()) if ranks is None else ranks)
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(world.size())):
        raise ArgumentError(f"new_group: expected different ranks from 0 to {world.size() - 1}, found {chosen}")
    made = world.split([chosen])
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    if timeout is not None:
        made.timeout = timeout.total_seconds()
    return made


def inside(group: Any, rank: int | None, name: str, group_rank: int | None = None) -> int:
    """The rank in the group of the process with the global ``rank``."""
    found = member(group)
    ranks = () if found is None else found.ranks
    if (rank is None) == (group_rank is None):
        raise ArgumentError(f"{name}: give a rank among all processes, or one in the group: found {rank} and {group_rank}")
    if rank in ranks:
        return ranks.index(rank)
    if group_rank is not None and 0 <= group_rank < len(ranks):
        return group_rank
    raise ArgumentError(f"{name}: invalid rank {rank if group_rank is None else group_rank}: the group has {list(ranks)}")
