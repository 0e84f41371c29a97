"""The collectives of one process of several: nothing is sent. They allocate what NCCL allocates, or gloo on the CPU.

NCCL takes no memory from PyTorch's allocator for these. Gloo takes some on the CPU: each function names the source.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import _create_work_from_future, _resolve_process_group  # type: ignore[attr-defined]

from ...errors import NotOfferedError

if TYPE_CHECKING:
    from .watch import Watch

aten, c10d, functional = torch.ops.aten, torch.ops.c10d, torch.ops._c10d_functional
_GATHER = c10d._allgather_base_.default, functional.all_gather_into_tensor.default
_SCATTER = c10d._reduce_scatter_base_.default, functional.reduce_scatter_tensor.default
_INTO_FIRST = (  # they write into their first argument
    c10d.allreduce_.default, c10d.broadcast_.default, c10d.scatter_.default, _GATHER[0], _SCATTER[0]
)  # fmt: skip
_LISTS = c10d.allgather_.default, c10d.reduce_scatter_.default  # they gather into a list, or scatter one
# NCCL's, into tensors that the program has. Source: ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``, ``collective``,
# ``collectiveCoalesced``, ``pointToPoint``
_WITHOUT_MEMORY: dict[Any, Callable[[tuple[Any, ...]], list[torch.Tensor]]] = {  # -> what they write
    c10d.reduce_.default: itemgetter(0),
    c10d.gather_.default: lambda args: [each for part in args[0] for each in part],
    c10d.send.default: lambda args: [],
    c10d.recv_.default: itemgetter(0),
    c10d.alltoall_base_.default: lambda args: [args[0]],
    c10d.alltoall_.default: itemgetter(0),
    c10d.allreduce_coalesced_.default: itemgetter(0),
    c10d.allgather_into_tensor_coalesced_.default: itemgetter(0),
    c10d.reduce_scatter_tensor_coalesced_.default: itemgetter(0),
}
_BARRIER = c10d.barrier.default  # NCCL's sums up one float32
_WAIT = functional.wait_tensor.default
_NUMBER = 8  # bytes of the number of processes, by which gloo divides


class Collectives:
    """Answers the ops of ``torch.distributed``.

    Args:
        watch: counts what they ask for.

    Attributes:
        averages: True while the program calls a collective that divides a sum, which its op does not show.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.averages = False
        self._running: dict[int, Any] = {}  # by the storage of a result: what its collective reads until it is waited for

    def op(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The result of one."""
        if func is _WAIT:
            self._running.pop(args[0].untyped_storage()._cdata, None)
            return args[0]
        if func is _BARRIER:
            if self._watch.device.type == "cuda":
                self._for_a_moment(4)
            return _done([])
        if func in _WITHOUT_MEMORY and self._watch.device.type == "cuda":
            written = _WITHOUT_MEMORY[func](args)
            for tensor in written:
                self._watch.numbers.written(tensor)
            return (written, _done(written)) if func is c10d.alltoall_.default else _done(written)
        if func in _MADE:
            return self._made(func, args)
        if func is _LISTS[0] or (func is _LISTS[1] and self._watch.device.type == "cuda"):
            return self._in_lists(func, args)
        if func not in _INTO_FIRST:
            name = func._opname.strip("_")
            raise NotOfferedError(
                f"torch.distributed: {name} of several processes is not predicted, because its allocations are not known. Use "
                "all_reduce, broadcast, scatter, all_gather, all_gather_into_tensor or reduce_scatter_tensor; on a GPU also "
                "reduce, gather, send, recv and all_to_all"
            )
        written = args[0] if isinstance(args[0], list) else [args[0]]
        self._beside(func, written[0], args[1], self.averages)
        for tensor in written:
            self._watch.numbers.written(tensor)
        return args[0], _done(written)

    def _in_lists(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Gather into a list of tensors, or scatter one: until it has ended, all tensors are also in one block.

        NCCL sends tensors of unlike sizes one by one. Source: ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``,
        ``allgather``, ``reduce_scatter``, and ``ProcessGroupGloo.cpp``, ``AsyncAllgatherWork``: ``newLikeFlat``.
        """
        written = args[0][0] if func is _LISTS[0] else args[0]
        parts = written if func is _LISTS[0] else args[1][0]
        if len({part.numel() for part in parts}) == 1:
            self._for_a_moment(sum(part.numel() * part.element_size() for part in parts if part.device == self._watch.device))
        for tensor in written:
            self._watch.numbers.written(tensor)
        return args[0], _done(written)

    def _made(self, func: Any, args: tuple[Any, ...]) -> Any:
        """A collective with a result of its own, for which the caller waits."""
        with self._watch, self._watch.as_role("COMMUNICATION"):
            made = _MADE[func](*args)
        self._beside(func, made, args[0], "avg" in args[1:2])
        if made is not args[0]:
            self._running[made.untyped_storage()._cdata] = args[0]
        return made

    def _beside(self, func: Any, output: torch.Tensor, input: Any, averages: bool) -> None:
        """Count what gloo takes on the CPU until a collective has ended.

        Source: ``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``: ``AsyncAllgatherWork`` gathers into a flat tensor of its
        own; ``reduce_scatter_tensor_coalesced`` sums up a copy of its input; a sum is divided by a number.
        """
        if not (self._watch.device == output.device == _CPU):
            return
        whole = output if func in _GATHER else input if func in _SCATTER else None
        sizes = [] if whole is None else [whole.numel() * whole.element_size()]
        self._for_a_moment(*sizes, *([_NUMBER, output.element_size()] if averages else []))

    def _for_a_moment(self, *sizes: int) -> None:
        place, ledger = self._watch.places.here("collective"), self._watch.ledger
        for block in [ledger.malloc(size, place, "COMMUNICATION") for size in sizes if size]:
            ledger.free(block, place)


_CPU = torch.device("cpu")


def _done(tensors: list[torch.Tensor]) -> Any:
    """The handle of a collective that has ended, as C++ takes it."""
    found = torch.futures.Future()
    found.set_result(tensors)
    return _create_work_from_future(found).boxed()


# --- results; source: ``torch/csrc/distributed/c10d/Functional.cpp`` -------------------------------------------------------


def _copied(input: torch.Tensor, *args: Any) -> torch.Tensor:
    return aten.clone(input, memory_format=torch.contiguous_format)


def _rows(input: torch.Tensor, count: int) -> torch.Tensor:
    return aten.new_empty(input, [count, *input.shape[1:]])


def _transposed(input: torch.Tensor, gather: int, shard: int, group: Any) -> torch.Tensor:
    """An all-to-all after which another dimension is divided."""
    size: int = (_resolve_process_group(group) if isinstance(group, str) else group).size()  # type: ignore[arg-type]
    shape, made = list(input.shape), list(input.shape)
    shape[shard : shard + 1] = [size, shape[shard] // size]
    sent = input.view(shape).movedim(shard, 0).contiguous()
    received = aten.empty_like(sent)
    made[shard] //= size
    made[gather] *= size
    return received.movedim(0, gather).contiguous().view(made)


_MADE: dict[Any, Callable[..., torch.Tensor]] = {
    functional.all_reduce.default: _copied,
    functional.broadcast.default: _copied,
    functional.all_reduce_.default: lambda input, *args: input,
    functional.broadcast_.default: lambda input, *args: input,
    functional.all_gather_into_tensor.default: lambda x, size, group: _rows(x, (x.shape[0] if x.dim() else 1) * size),
    functional.reduce_scatter_tensor.default: lambda x, op, size, group: _rows(x, x.shape[0] // size),
    functional.all_to_all_single.default: lambda x, sizes, given, group: _rows(x, sum(sizes)),
    torch.ops._dtensor.shard_dim_alltoall.default: _transposed,
}
