"""Processes on MPI: mpi4py on NumPy's buffers, without copies.

Before the data of a collective, each rank sends a header of a few words to each other rank: which collective it calls, with
which shape and dtype. The data follows when all headers are there and agree. So a mistake is found before anything is written,
and a rank that waits can name the ranks it waits for. Nothing here waits inside MPI: transfers are advanced in turns, and
between the turns a rank checks whether another has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .. import dtypes
from ..devices import device as Device
from ..errors import DTypeError, RankError, needs
from .group import Array, ProcessGroup, ReduceOp, Work, described, named
from .world import LONGEST, PendingWork, World, mpi

_UFUNCS = {ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum}
_UFUNCS[ReduceOp.MAX] = np.maximum
_KEPT: dict = {}  # (ufunc, dtype) -> an operation of MPI's on a dtype that MPI does not know


def world_group(timeout: float) -> MPIGroup:
    """The group of all processes that ``mpiexec`` started."""
    needs("mpi4py", "the process group 'mpi'")
    world = World.here(timeout)
    if world.group is None:
        world.group = MPIGroup(world, world.comm, range(world.comm.size), timeout)
    world.group.timeout = timeout
    return world.group


class MPIGroup(ProcessGroup):
    """Ranks that talk through MPI. Arrays are NumPy's, on the cpu.

    A reduction has the order of MPI's algorithm for that size: the same in each run, and the same result on each rank.
    """

    backend, device_type = "mpi", "cpu"

    def __init__(self, world: World, comm: Any, ranks: Sequence[int], timeout: float) -> None:
        super().__init__(comm.rank, ranks, timeout)
        self._world, self._data, self._control = world, comm.Dup(), comm.Dup()
        self._called = self._started = self._serial = 0

    def split(self, parts: Sequence[Sequence[int]]) -> MPIGroup | None:
        self._together(f"new groups of {[list(p) for p in parts]}").wait()  # so that MPI does not wait for a rank below
        for part in parts:
            if self._rank in part:
                comm = self._data.Create_group(self._data.Get_group().Incl(list(part)))
                return MPIGroup(self._world, comm, [self.ranks[i] for i in part], self.timeout)
        return None

    def all_reduce(self, array: Array, op: ReduceOp) -> Work:
        typed, operation = _typed(array, op)
        return self._together(
            f"all_reduce({op}) of {described(array)}",
            lambda: self._data.Iallreduce(mpi().IN_PLACE, typed, operation),
            (array,),
            lambda: self._average(array, op),
        )

    def all_gather(self, out: Array, array: Array, of: str = "") -> Work:
        mine = _bytes(out)[0][self._rank * array.nbytes :][: array.nbytes]
        inside = array.nbytes and mine.ctypes.data == array.ctypes.data
        given = mpi().IN_PLACE if inside else _bytes(array)
        return self._together(
            f"all_gather of {described(array, of)}", lambda: self._data.Iallgather(given, _bytes(out)), (out, array)
        )

    def reduce_scatter(self, out: Array, array: Array, op: ReduceOp, of: str = "") -> Work:
        (typed, operation), (result, _) = _typed(array, op), _typed(out, op)
        return self._together(
            f"reduce_scatter({op}) of {described(array, of)}",
            lambda: self._data.Ireduce_scatter_block(typed, result, operation),
            (out, array),
            lambda: self._average(out, op),
        )

    def reduce(self, array: Array, root: int, op: ReduceOp) -> Work:
        typed, operation = _typed(array, op)
        given = (mpi().IN_PLACE, typed) if root == self._rank else (typed, None)
        return self._together(
            f"reduce({op}) to rank {self.ranks[root]} of {described(array)}",
            lambda: self._data.Ireduce(*given, operation, root),
            (array,),
            lambda: self._average(array, op) if root == self._rank else None,
        )

    def broadcast(self, array: Array, root: int) -> Work:
        return self._together(
            f"broadcast from rank {self.ranks[root]} of {described(array)}",
            lambda: self._data.Ibcast(_bytes(array), root),
            (array,),
        )

    def all_to_all(self, out: Array, array: Array, outs: Sequence[int], parts: Sequence[int]) -> Work:
        return self._together(
            f"all_to_all of {array.dtype}",
            lambda: self._data.Ialltoallv(_in_parts(array, parts), _in_parts(out, outs)),
            (out, array),
            sends=parts,
            expects=outs,
        )

    def send(self, array: Array, to: int, tag: int) -> Work:
        self._serial += 1
        serial = self._serial & 0xFFFFF
        header = np.frombuffer(f"{serial} {described(array)}".encode(), np.uint8).copy()
        said = self._control.Isend(header, to, 1 + tag)
        sent = self._data.Isend(_bytes(array), to, serial)

        def steps() -> Iterator[Any]:
            while not sent.Test():
                yield [self.ranks[to]]
            while not said.Test():
                yield [self.ranks[to]]

        return self._world.add(PendingWork(self._world, steps(), f"send of {described(array)}", self.timeout, (array, header)))

    def recv(self, array: Array, source: int | None, tag: int) -> Work:
        MPI, header, status = mpi(), np.empty(LONGEST, np.uint8), mpi().Status()
        received = self._control.Irecv(header, MPI.ANY_SOURCE if source is None else source, 1 + tag)
        waited = [self.ranks[source]] if source is not None else [r for r in self.ranks if r != self.ranks[self._rank]]

        def steps() -> Iterator[Any]:
            while not received.Test(status):
                yield waited
            work.source = sender = status.Get_source()
            serial, _, sent = bytes(header[: status.Get_count(MPI.BYTE)]).decode().partition(" ")
            if sent != described(array):
                raise RankError(
                    f"recv: rank {self.ranks[sender]} sent {sent}, the tensor of rank {self.ranks[self._rank]} is "
                    f"{described(array)}: give recv a tensor of the same shape and dtype",
                    self.ranks[sender],
                )
            request = self._data.Irecv(_bytes(array), sender, int(serial))
            while not request.Test():
                yield [self.ranks[sender]]

        work = PendingWork(self._world, steps(), f"recv of {described(array)}", self.timeout, (array,))
        return self._world.add(work)

    def barrier(self) -> Work:
        return self._together("barrier")

    def agree(self, call: str) -> None:
        """Wait for all ranks, and check that all do the same."""
        self._together(call).wait()

    def end(self) -> Work:
        """Wait for all ranks at the end of the program. A rank that calls a collective instead learns that this one ended."""
        return self._together("the end of the program")

    def fail(self, why: str) -> None:
        self._world.tell(why)

    # --- the machinery

    def _average(self, array: Array, op: ReduceOp) -> None:
        if op is ReduceOp.AVG:
            Device("cpu").kernels.divide(array, self.size(), out=array)

    def _together(
        self,
        call: str,
        start: Callable[[], Any] | None = None,
        arrays: tuple = (),
        after: Callable[[], None] | None = None,
        sends: Sequence[int] = (),
        expects: Sequence[int] = (),
    ) -> Work:
        """Exchange headers, ``start`` the transfer when all agree, and do what is to be done ``after`` it.

        Args:
            sends, expects: elements for and from each rank, which may differ from rank to rank.
        """
        peers = [i for i in range(self.size()) if i != self._rank]
        headers = [np.frombuffer(f"{call}\n{sends[i] if sends else 0}".encode()[:LONGEST], np.uint8) for i in peers]
        received = np.empty((len(peers), LONGEST), np.uint8)
        arrivals = [self._control.Irecv(row, i, 0) for row, i in zip(received, peers, strict=True)]
        said = [self._control.Isend(header, i, 0) for header, i in zip(headers, peers, strict=True)]
        turn, self._called = self._called, self._called + 1

        def steps() -> Iterator[Any]:
            lengths = [0] * len(peers)
            waiting, status = dict(enumerate(peers)), mpi().Status()
            while waiting:
                for k in list(waiting):
                    if arrivals[k].Test(status):
                        lengths[k] = status.Get_count(mpi().BYTE)
                        del waiting[k]
                if waiting:
                    yield [self.ranks[i] for i in waiting.values()]
            mpi().Request.Waitall(said)  # they were received, or fit into MPI's own buffers
            texts = {i: bytes(received[k, : lengths[k]]).decode() for k, i in enumerate(peers)}
            try:
                self._compare(call, texts, expects)
                while turn != self._started:  # MPI requires the same order of a group's collectives on all ranks
                    yield list(self.ranks)
                request = None if start is None else start()
            finally:
                self._started += 1
            while request is not None and not request.Test():
                yield list(self.ranks)
            if after is not None:
                after()

        which = f"{call} (collective {turn + 1} of {named(self.ranks)})"
        return self._world.add(PendingWork(self._world, steps(), which, self.timeout, arrays))

    def _compare(self, call: str, texts: dict[int, str], expects: Sequence[int]) -> None:
        """Compare the headers of the others with this rank's."""
        calls = {i: text.partition("\n")[0] for i, text in texts.items()} | {self._rank: call}
        if len(set(calls.values())) > 1:
            count: dict[str, list[int]] = {}
            for i in sorted(calls):
                count.setdefault(calls[i], []).append(self.ranks[i])
            fewest = min(reversed(count.values()), key=len)
            raise RankError(
                f"ranks do not do the same: {'; '.join(f'{named(ranks)}: {c}' for c, ranks in count.items())}. Nothing was "
                "sent. All ranks of a group must call the same collectives in the same order, with tensors of one shape and "
                "dtype.",
                fewest[0],
            )
        for i in texts if expects else ():
            sent = int(texts[i].partition("\n")[2])
            if sent != expects[i]:
                raise RankError(
                    f"{call}: rank {self.ranks[i]} sends {sent} elements to rank {self.ranks[self._rank]}, which expects "
                    f"{expects[i]}: make output_split_sizes of the one input_split_sizes of the other",
                    self.ranks[i],
                )


def _bytes(array: Array) -> list:
    """The array's memory in the form for MPI."""
    return [array.reshape(-1).view(np.uint8), mpi().BYTE]


def _in_parts(array: Array, sizes: Sequence[int]) -> list:
    counts = [n * array.dtype.itemsize for n in sizes]
    return [array.reshape(-1).view(np.uint8), counts, [0, *accumulate(counts)][:-1], mpi().BYTE]


def _typed(array: Array, op: ReduceOp) -> tuple[list, Any]:
    """The array and the operation, for a reduction."""
    MPI, dtype = mpi(), array.dtype
    if dtype in (dtypes.float16, dtypes.bfloat16):
        return [array.reshape(-1).view(np.int16), MPI.INT16_T], _of_halves(_UFUNCS[op], dtype)
    names = {"f4": MPI.FLOAT, "f8": MPI.DOUBLE, "i1": MPI.INT8_T, "i2": MPI.INT16_T, "i4": MPI.INT32_T, "i8": MPI.INT64_T}
    kind = names.get(f"{dtype.kind}{dtype.itemsize}") or (MPI.UINT8_T if dtype == dtypes.uint8 else None)
    if kind is None:
        raise DTypeError(f"a reduction over ranks of {dtype}: convert the tensor to a floating or an integer dtype")
    plain = {np.add: MPI.SUM, np.multiply: MPI.PROD, np.minimum: MPI.MIN, np.maximum: MPI.MAX}
    return [array.reshape(-1), kind], plain[_UFUNCS[op]]


def _of_halves(ufunc: Any, dtype: np.dtype) -> Any:
    """An operation on 16-bit floats. MPI counts them as 16-bit integers, whose values it does not read."""
    if (ufunc, dtype) not in _KEPT:

        def reduce(given: Any, out: Any, _: Any) -> None:
            total = np.frombuffer(out, dtype)
            with np.errstate(all="ignore"):
                ufunc(total, np.frombuffer(given, dtype), out=total)

        _KEPT[ufunc, dtype] = mpi().Op.Create(reduce, commute=True)
    return _KEPT[ufunc, dtype]
