"""Data parallel: each rank has the whole model and its part of the batch; gradients are averaged while backward runs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ..autograd.gradients import SparseTensor
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, GraphError, NotOfferedError
from ..interrupts import changed
from ..nn import parallel
from ..nn.module import Module
from ..scope import local
from .buffers import buffer
from .collectives import broadcast_together
from .cut import divided_over, refuse_sync_batchnorm
from .group import ProcessGroup, ReduceOp, Work
from .groups import own_group

MIB = 1 << 20
FIRST_BUCKET, BUCKET = MIB, 25 * MIB
"""The bytes of buckets, unless the user says them. The first is small, so that the first transfer begins soon."""


class DistributedDataParallel(Module):
    """Calls ``module``, and averages its gradients over the ranks of a group while backward computes them.

    Gradients are averaged in buckets, in the order in which backward computes them: the parameters from the last to the first.
    A bucket that is complete is sent while backward continues.

    Memory:
        The buckets: a second copy of all gradients, as long as this object lives. ``gradient_as_bucket_view`` saves that copy:
        each gradient is copied into its bucket, freed, and from then on a view of the bucket.
    Price:
        One all-reduce of all gradients for each backward. MPI advances transfers only while a rank calls it, so little of that
        is hidden on the cpu.
    Do not use when:
        The model does not fit one rank: nothing but the batch is divided. Use ``distributed.fsdp.fully_shard``.

    Args:
        module: all its parameters have one shape and dtype on all ranks.
        forward_sync_buffers: before each forward that follows a backward with averages, the buffers of all ranks become those
            of rank 0. On by default.
        broadcast_buffers: the older name. If it is off, buffers are not sent at the beginning either.
        init_sync: at the beginning, parameters and buffers of all ranks become those of rank 0.
        process_group: the ranks; by default all.
        bucket_cap_mb: MiB of a bucket; by default 1 for the first and 25 for the others. A bucket is closed by the parameter
            that fills it.
        find_unused_parameters: the loss of a rank may not depend on some parameters: they count as zeros there. A parameter
            that no rank used keeps its gradient. (In a prediction, all ranks use what this one uses.)
        gradient_as_bucket_view: gradients are views of the buckets.
        device_ids, output_device, dim, check_reduction, static_graph: accepted for compatibility.

    Raises:
        ArgumentError: there is no group, no parameter requires a gradient, or ``fully_shard`` has cut some over its ranks.
        NotOfferedError: the module has a SyncBatchNorm, and there are several ranks; in backward: sparse gradients.
        RankError: the parameters of the ranks differ.
        GraphError (in backward): a parameter got no gradient, and ``find_unused_parameters`` is off; or its optimizer steps in
            backward.

    Source: Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020.

    >>> model = nn.parallel.DistributedDataParallel(model)
    >>> for x, y in loader:  # with a DistributedSampler
    ...     F.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        group = own_group("DistributedDataParallel", process_group)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise ArgumentError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
            )
        if divided_over(module.parameters(), group):
            raise ArgumentError(
                "DistributedDataParallel: each of these ranks has another part of the parameters (fully_shard, tensor "
                "parallel): name the process_group of ranks that have the same part, or call the module itself"
            )
        refuse_sync_batchnorm("DistributedDataParallel", module, group)
        self.module, self.process_group, self.dim = module, process_group, dim
        buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        self.forward_sync_buffers = buffers if forward_sync_buffers is None else forward_sync_buffers
        self.require_backward_grad_sync = self._syncs_buffers = True
        if init_sync:
            tensors = [*module.parameters(), *(module.buffers() if buffers else ())]
            broadcast_together([(0, tensor) for tensor in tensors], process_group)
        for number, (_, p) in enumerate(trained if group.size() > 1 else ()):
            p._replica = number
        self._reducer = Reducer(trained, group, bucket_cap_mb, gradient_as_bucket_view, find_unused_parameters)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output."""
        syncs = local.grad_enabled and self.require_backward_grad_sync
        if self.forward_sync_buffers and self._syncs_buffers:
            broadcast_together([(0, buffer) for buffer in self.module.buffers()], self.process_group)
        self._syncs_buffers = syncs
        if local.grad_enabled:
            self._reducer.expect(syncs)
        return self.module(*inputs, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, gradients are added up on each rank alone. The first forward and backward after it averages the sum."""
        return changed(self, require_backward_grad_sync=False)


class _Bucket:
    """Gradients that are sent together: an array, and the place of each parameter in it."""

    def __init__(self, members: list[int], array: Any) -> None:
        self.members, self.array = members, array
        self.missing, self.work = len(members), Work()


class Reducer:
    """Averages gradients in buckets. Its references to parameters are weak: their hooks lead to it."""

    def __init__(
        self, trained: Sequence[tuple[str, Tensor]], group: ProcessGroup, cap: float | None, as_views: bool, finds_unused: bool
    ) -> None:
        self._group, self._as_views, self._finds_unused = group, as_views, finds_unused
        self._names = [name for name, _ in trained]
        self._parameters = [weakref.ref(p) for _, p in trained]
        self._places: list[Any] = [None] * len(trained)
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        tensors = [p for _, p in trained]
        for members in in_buckets(tensors, cap):
            sizes = [tensors[i].numel() for i in members]
            made, start = _Bucket(members, buffer(tensors[members[0]].device, (sum(sizes),), _dtype(tensors[members[0]]))), 0
            for i, size in zip(members, sizes, strict=True):
                self._places[i] = made.array[start : start + size].reshape(tensors[i].array.shape)
                self._bucket_of[i] = made
                start += size
            self._buckets.append(made)
        device = tensors[0].device
        self._used = buffer(device, (len(trained),), np.dtype(np.int32)) if finds_unused else None
        self._expected, self._arrived, self._next = True, set[int](), 0
        self._unsent = set[int]()  # parameters that were used under no_sync since the last averages
        for index, p in enumerate(tensors):
            p.register_post_accumulate_grad_hook(partial(_arrived, weakref.ref(self), index))

    def expect(self, syncs: bool) -> None:
        """A forward begins: the next backward averages, or adds up on this rank alone."""
        self._expected = syncs
        self._begin()

    def _begin(self) -> None:
        """Drop what an earlier backward left: it may have ended with an error."""
        self._arrived, self._next = set(), 0
        for each in self._buckets:
            each.missing, each.work = len(each.members), Work()

    def arrived(self, index: int, leaf: Tensor) -> None:
        """The gradient of a parameter is complete on this rank."""
        if local.walk is None:
            return
        if not self._expected:
            self._unsent.add(index)
            return
        if not self._arrived:
            self._begin()
            local.walk.at_end.append(self.finish)
        if leaf._stepped_in_backward is not None:
            raise GraphError(
                f"DistributedDataParallel: {self._names[index]} is updated in backward, before its gradient is averaged over "
                "the ranks: remove() optimizer_in_backward, and call optimizer.step()"
            )
        if isinstance(leaf.grad, SparseTensor):
            raise NotOfferedError("DistributedDataParallel: sparse gradients are not offered: use Embedding(sparse=False)")
        self._put(index, leaf)

    def _put(self, index: int, leaf: Tensor) -> None:
        """Copy a gradient into its bucket, divided by the number of ranks; send each bucket that is complete, in order."""
        place, grad, kernels = self._places[index], leaf.grad, leaf.device.kernels
        if grad is None:
            kernels.fill(0, out=place)
        else:
            kernels.multiply(grad.array, 1 / self._group.size(), out=place)
            if self._as_views and grad.array is not place:
                leaf.grad = None  # it is freed before the next one is made
                self._show(index, leaf)
        self._arrived.add(index)
        self._bucket_of[index].missing -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            due = self._buckets[self._next]
            due.work = self._group.all_reduce(due.array, ReduceOp.SUM)
            self._next += 1

    def _show(self, index: int, leaf: Tensor) -> None:
        """Let the gradient be a view of the bucket."""
        leaf.grad = Tensor._wrap(self._places[index], leaf.device)

    def finish(self) -> None:
        """The end of a backward: wait for all buckets, and let the gradients be the averages."""
        leaves = [reference() for reference in self._parameters]
        absent = [i for i, leaf in enumerate(leaves) if leaf is not None and i not in self._arrived]
        if absent and not self._finds_unused:
            self._begin()
            raise GraphError(
                "DistributedDataParallel: Expected to have finished reduction, but these parameters got no gradient: "
                f"{', '.join(self._names[i] for i in absent)}. If the loss does not depend on them, pass "
                "find_unused_parameters=True."
            )
        for i in absent:
            leaf = leaves[i]
            assert leaf is not None
            self._put(i, leaf)
        used = self._mark_used(leaves[0], absent)  # after all buckets: other ranks have sent some in backward
        for each in self._buckets:
            each.work.wait()
        for i, leaf in enumerate(leaves):
            if leaf is not None and used[i]:
                self._take(i, leaf)
        self._unsent = set()
        self._begin()

    def _mark_used(self, leaf: Tensor | None, absent: list[int]) -> list[bool]:
        """For each parameter, whether any rank used it."""
        mine = [i not in absent or i in self._unsent for i in range(len(self._names))]
        if self._used is None or leaf is None:
            return [True] * len(mine)
        leaf.device.upload(np.array(mine, np.int32), self._used)
        self._group.all_reduce(self._used, ReduceOp.MAX).wait()
        if leaf.device.kind == "meta":
            return mine
        found = np.empty(len(mine), np.int32)
        leaf.device.download(self._used, found)
        return found.astype(bool).tolist()

    def _take(self, index: int, leaf: Tensor) -> None:
        """Let the gradient be the average."""
        place = self._places[index]
        if self._as_views:
            if leaf.grad is None or leaf.grad.array is not place:
                self._show(index, leaf)
        elif leaf.grad is None:
            own = leaf.device.empty(place.shape, place.dtype)
            leaf.device.kernels.copy(place, out=own)
            leaf.grad = Tensor._wrap(own, leaf.device)
        else:
            leaf.device.kernels.copy(place, out=leaf.grad.array)
        assert leaf.grad is not None
        leaf.grad.storage.written("all_reduce")


def _dtype(p: Tensor) -> np.dtype:
    return p.array.dtype if p.grad_dtype is None else p.grad_dtype


def _arrived(reducer: weakref.ref[Reducer], index: int, leaf: Tensor) -> None:
    found = reducer()
    if found is not None:
        found.arrived(index, leaf)


def in_buckets(tensors: list[Tensor], cap: float | None) -> list[list[int]]:
    """The numbers of the tensors of each bucket, from the last tensor to the first; a bucket has one dtype and device.

    Args:
        cap: MiB of a bucket; ``None``: the usual sizes.
    """
    first, later = (FIRST_BUCKET, BUCKET) if cap is None else (int(cap * MIB),) * 2
    open_ones: dict[Any, tuple[list[int], int]] = {}
    closed: list[list[int]] = []
    limits: dict[Any, int] = {}
    for index in reversed(range(len(tensors))):
        p = tensors[index]
        key = (_dtype(p), p.device)
        members, size = open_ones.pop(key, ([], 0))
        members.append(index)
        size += p.numel() * _dtype(p).itemsize
        if size >= limits.get(key, first):
            closed.append(members)
            limits[key] = later
        else:
            open_ones[key] = members, size
    return sorted([*closed, *[members for members, _ in open_ones.values()]], key=lambda members: -members[0])


parallel.DistributedDataParallel = DistributedDataParallel
