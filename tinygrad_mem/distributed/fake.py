"""The process group of a prediction: one process plays one rank of any number, and nothing is sent.

Tensors are on ``meta``. A rank asks for the same bytes here as with other ranks around it, because collectives ask for none.
"""

from __future__ import annotations

from collections.abc import Sequence

from .group import Array, ProcessGroup, ReduceOp, Work


class FakeGroup(ProcessGroup):
    """A group of ranks of which only one runs."""

    backend, device_type = "fake", "meta"

    def split(self, parts: Sequence[Sequence[int]]) -> FakeGroup | None:
        for part in parts:
            if self._rank in part:
                return FakeGroup(part.index(self._rank), [self.ranks[i] for i in part], self.timeout)
        return None

    def all_reduce(self, array: Array, op: ReduceOp) -> Work:
        return Work(array)

    def all_gather(self, out: Array, array: Array) -> Work:
        return Work(out, array)

    def reduce_scatter(self, out: Array, array: Array, op: ReduceOp) -> Work:
        return Work(out, array)

    def broadcast(self, array: Array, root: int) -> Work:
        return Work(array)

    def all_to_all(self, out: Array, array: Array, outs: Sequence[int], parts: Sequence[int]) -> Work:
        return Work(out, array)

    def send(self, array: Array, to: int, tag: int) -> Work:
        return Work(array)

    def recv(self, array: Array, source: int | None, tag: int) -> Work:
        work = Work(array)
        work.source = 0 if source is None else source
        return work

    def barrier(self) -> Work:
        return Work()
