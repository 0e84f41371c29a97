"""The process group of a prediction: one process plays one rank of any number, and nothing is sent.

Tensors are on ``meta``. A rank asks for the same bytes here as with other ranks around it, because collectives ask for none.

Each answer that the program gets about its rank is recorded as an array of the answers that all ranks would get. From these a
prediction knows which ranks are alike.

The bytes that a rank would send are counted: see :func:`sent`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..scope import local
from .group import Array, ProcessGroup, ReduceOp, Work

NOT_A_MEMBER = -1
"""In place of a rank in the group: not a member."""


def note(answer: np.ndarray) -> None:
    """Record the answer that each rank of the world would get, if the answers differ."""
    if local.dry is not None and (answer != answer[0]).any():
        local.dry.answers[answer.tobytes()] = answer


def note_mesh(names: tuple[str, ...], ranks: np.ndarray) -> None:
    """Note the first mesh that a program makes, for tables and pictures of its ranks."""
    if local.dry is not None and local.dry.mesh is None:
        local.dry.mesh = names, ranks


def sent() -> int:
    """The bytes that the rank of this prediction would have sent until now.

    Collectives count as rings, which NCCL uses for large arrays, and which send the least. Of n ranks, each sends (n - 1) / n
    of an array that is gathered, or reduced and scattered, and twice that for an all-reduce. A broadcast or a reduce goes from
    rank to rank, and the last one sends nothing: the mean over the ranks is counted, (n - 1) / n of the array. An
    all-to-all sends what is for other ranks.

    Raises:
        ArgumentError: there is no prediction.

    Source: Patarasuk, Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009.
    """
    if local.dry is None:
        raise ArgumentError("sent: only a prediction counts what a rank sends: call it in what memory.predict() runs")
    return local.dry.sent


def _count(size: int) -> None:
    """Count bytes that are sent, in a prediction."""
    if local.dry is not None:
        local.dry.sent += size


class FakeGroup(ProcessGroup):
    """A group of ranks of which only one runs.

    Args:
        places: for each rank of the world, its rank in its own group. The groups were made together, and this is one of them.
    """

    backend, device_type = "fake", "meta"

    def __init__(self, rank: int, ranks: Sequence[int], timeout: float, places: np.ndarray | None = None) -> None:
        super().__init__(rank, ranks, timeout)
        self._places = np.arange(len(ranks)) if places is None else places

    def rank(self) -> int:
        note(self._places)
        return self._rank

    def choose(self, of_rank: Callable[[Any], Any]) -> Any:
        note(np.where(self._places == NOT_A_MEMBER, NOT_A_MEMBER, of_rank(self._places)))
        return of_rank(self._rank)

    def split(self, parts: Sequence[Sequence[int]]) -> FakeGroup | None:
        within = np.full(self.size() + 1, NOT_A_MEMBER)  # the last entry is that of a rank that is not in this group
        for part in parts:
            within[list(part)] = range(len(part))
        places = within[self._places]
        note(places == NOT_A_MEMBER)
        for part in parts:
            if self._rank in part:
                return FakeGroup(part.index(self._rank), [self.ranks[i] for i in part], self.timeout, places)
        return None

    def _send(self, size: int, times: int = 1) -> None:
        """Count a collective in which each rank sends ``times`` the other ranks' share of ``size`` bytes."""
        _count(-(-times * (self.size() - 1) * size // self.size()))

    def all_reduce(self, array: Array, op: ReduceOp) -> Work:
        self._send(array.nbytes, 2)
        return Work(array)

    def all_gather(self, out: Array, array: Array, of: str = "") -> Work:
        self._send(out.nbytes)
        return Work(out, array)

    def reduce_scatter(self, out: Array, array: Array, op: ReduceOp, of: str = "") -> Work:
        self._send(array.nbytes)
        return Work(out, array)

    def reduce(self, array: Array, root: int, op: ReduceOp) -> Work:
        self._send(array.nbytes)
        return Work(array)

    def broadcast(self, array: Array, root: int) -> Work:
        self._send(array.nbytes)
        return Work(array)

    def all_to_all(self, out: Array, array: Array, outs: Sequence[int], parts: Sequence[int]) -> Work:
        _count((sum(parts) - parts[self._rank]) * array.dtype.itemsize)
        return Work(out, array)

    def send(self, array: Array, to: int, tag: int) -> Work:
        _count(array.nbytes)
        return Work(array)

    def recv(self, array: Array, source: int | None, tag: int) -> Work:
        work = Work(array)
        work.source = 0 if source is None else source
        return work

    def barrier(self) -> Work:
        return Work()
