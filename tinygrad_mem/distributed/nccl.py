"""Processes on GPUs: NCCL through CuPy, one GPU a rank. MPI starts the processes and compares what they call.

This file has not run yet: it needs two GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .. import dtypes
from ..devices import device as Device
from ..errors import DTypeError, NotOfferedError, needs
from .group import Array, ProcessGroup, ReduceOp, Work, described
from .mpi import MPIGroup, world_group

_DTYPES = {"float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "int8": "INT8", "uint8": "UINT8"}
_DTYPES |= {"int32": "INT32", "int64": "INT64"}
_OPS = {ReduceOp.SUM: "SUM", ReduceOp.AVG: "SUM", ReduceOp.PRODUCT: "PROD", ReduceOp.MIN: "MIN", ReduceOp.MAX: "MAX"}


def nccl_group(timeout: float) -> NCCLGroup:
    """The group of all processes; rank r uses the GPU r, counted on its machine."""
    needs("cupy", "the process group 'nccl'")
    return NCCLGroup(world_group(timeout))


class NCCLGroup(ProcessGroup):
    """Ranks whose arrays are CuPy's. Work is put on the current stream: what comes later on it finds the result.

    Headers go through MPI before each collective, as for arrays on the cpu; so a rank waits on the host for the others to
    arrive, and not for the data.
    """

    backend, device_type = "nccl", "cuda"

    def __init__(self, control: MPIGroup) -> None:
        super().__init__(control.rank(), control.ranks, control.timeout)
        from cupy.cuda import nccl as module

        nccl: Any = module
        if not getattr(nccl, "available", False):
            raise NotOfferedError("the process group 'nccl': CuPy does not find NCCL: pip install nvidia-nccl-cu12")
        self._nccl = nccl
        self._control = control
        name = np.zeros(128, np.int8)
        if control.rank() == 0:
            name[:] = nccl.get_unique_id()
        control.broadcast(name, 0).wait()
        self._comm: Any = nccl.NcclCommunicator(self.size(), tuple(name.tolist()), self._rank)

    def split(self, parts: Sequence[Sequence[int]]) -> NCCLGroup | None:
        control = self._control.split(parts)
        return None if control is None else NCCLGroup(control)

    def all_reduce(self, array: Array, op: ReduceOp) -> Work:
        count, kind = array.size, self._kind(array)
        return self._run(
            f"all_reduce({op}) of {described(array)}",
            lambda at: self._comm.allReduce(array.data.ptr, array.data.ptr, count, kind, self._op(op), at),
            (array,),
            op,
        )

    def all_gather(self, out: Array, array: Array, of: str = "") -> Work:
        return self._run(
            f"all_gather of {described(array, of)}",
            lambda at: self._comm.allGather(array.data.ptr, out.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, at),
            (out, array),
        )

    def reduce_scatter(self, out: Array, array: Array, op: ReduceOp, of: str = "") -> Work:
        kind = self._kind(array)
        return self._run(
            f"reduce_scatter({op}) of {described(array, of)}",
            lambda at: self._comm.reduceScatter(array.data.ptr, out.data.ptr, out.size, kind, self._op(op), at),
            (out, array),
            op,
        )

    def reduce(self, array: Array, root: int, op: ReduceOp) -> Work:
        count, kind = array.size, self._kind(array)
        own = op if root == self._rank else ReduceOp.SUM  # only the root divides
        return self._run(
            f"reduce({op}) to rank {self.ranks[root]} of {described(array)}",
            lambda at: self._comm.reduce(array.data.ptr, array.data.ptr, count, kind, self._op(op), root, at),
            (array,),
            own,
        )

    def broadcast(self, array: Array, root: int) -> Work:
        return self._run(
            f"broadcast from rank {self.ranks[root]} of {described(array)}",
            lambda at: self._comm.broadcast(array.data.ptr, array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, root, at),
            (array,),
        )

    def all_to_all(self, out: Array, array: Array, outs: Sequence[int], parts: Sequence[int]) -> Work:
        size, byte = array.dtype.itemsize, self._nccl.NCCL_UINT8
        places = [[size * n for n in accumulate(sizes, initial=0)] for sizes in (parts, outs)]

        def start(at: int) -> None:
            self._nccl.groupStart()
            for i in range(self.size()):
                self._comm.send(array.data.ptr + places[0][i], size * parts[i], byte, i, at)
                self._comm.recv(out.data.ptr + places[1][i], size * outs[i], byte, i, at)
            self._nccl.groupEnd()

        return self._run(f"all_to_all of {array.dtype}", start, (out, array))

    def send(self, array: Array, to: int, tag: int) -> Work:
        self._comm.send(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, to, self._stream())
        return Work(array)

    def recv(self, array: Array, source: int | None, tag: int) -> Work:
        if source is None:
            raise NotOfferedError("recv on the process group 'nccl': name the rank that sends")
        self._comm.recv(array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, source, self._stream())
        work = Work(array)
        work.source = source
        return work

    def barrier(self) -> Work:
        return self._control.barrier()

    def fail(self, why: str) -> None:
        self._control.fail(why)

    def _run(self, call: str, start: Callable[[int], Any], arrays: tuple, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Compare headers, and put the transfer on the current stream."""
        self._control.agree(call)
        start(self._stream())
        if op is ReduceOp.AVG:
            Device("cuda").kernels.divide(arrays[0], self.size(), out=arrays[0])
        return Work(*arrays)

    def _stream(self) -> int:
        import cupy

        return cupy.cuda.get_current_stream().ptr

    def _op(self, op: ReduceOp) -> int:
        return getattr(self._nccl, f"NCCL_{_OPS[op]}")

    def _kind(self, array: Array) -> int:
        """NCCL's number of a dtype."""
        if array.dtype == dtypes.bool or str(array.dtype) not in _DTYPES:
            raise DTypeError(f"a reduction over ranks of {array.dtype}: convert the tensor to a floating or an integer dtype")
        return getattr(self._nccl, f"NCCL_{_DTYPES[str(array.dtype)]}")
