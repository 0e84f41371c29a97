"""cuda: CuPy's arrays, CuPy's pool, CuPy's stream. CuPy is imported when a cuda device is first used."""

from __future__ import annotations

import math
import threading
import weakref
from types import MethodType
from typing import Any

import numpy as np

from .. import scope
from ..callbacks import finalizer
from ..dtypes import bfloat16, check_borrowed
from ..errors import ADDRESSES, OutOfMemoryError
from .base import device
from .chunks import Counts
from .pool import Pool


def cuda_problem() -> str | None:
    """A sentence that says why there is no cuda device here; ``None`` if there is one."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install cupy-cuda12x"
    if not cupy.cuda.is_available():
        return "CuPy finds no CUDA driver or no GPU on this machine"
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception:  # of a library that is not there, or is not what it should be
        return "CuPy finds no NVRTC, NVIDIA's library that compiles its kernels: pip install 'cupy-cuda12x[ctk]'"
    from cupy._core import _accelerator  # type: ignore[attr-defined]

    used = (*_accelerator.get_elementwise_accelerators(), *_accelerator.get_routine_accelerators())
    if _accelerator.ACCELERATOR_CUTENSOR in used:
        return "CuPy uses cuTENSOR here, which takes memory that is not counted: remove cutensor from CUPY_ACCELERATORS"
    return None


class CUDA(device, kind="cuda"):
    """``device("cuda")`` is the first GPU, ``device("cuda:1")`` the second."""

    index: int
    like = "cuda"
    lacking = bfloat16  # CuPy has it elementwise; the kernels of products, sums and convolutions here know float16 alone
    remedy = "bfloat16 is on cpu and meta only: on cuda use float16, with a GradScaler"
    _aside: Any = None  # the stream of copies that are made ahead

    @classmethod
    def canonical(cls, index: int | None) -> tuple[str, int | None]:
        return "cuda", 0 if index is None else index

    def _open(self) -> None:
        self.missing = cuda_problem() or ""
        if self.missing:
            return
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        if self.index >= count:
            self.missing = f"this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}"
            return
        from ..kernels import cupy as kernels

        self.kernels, self.xp = kernels, cupy
        self._cupy = cupy
        self._device = cupy.cuda.Device(self.index)
        self._events = PoolEvents(self)
        with self._device:
            self.pool = _Pool(cupy.get_default_memory_pool(), self._device, str(self))

    def __getattr__(self, name: str) -> Any:
        """The attributes that only a present GPU has: kernels, pool, stream."""
        if not name.startswith("__"):
            self.require()
        raise AttributeError(f"device {self} has no attribute {name!r}")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if dtype is self.lacking:
            raise self.refusal()
        size = math.prod(shape, start=dtype.itemsize)
        if size >= ADDRESSES:  # CuPy's 64-bit count could overflow to a small number
            raise self._out_of_memory(size)
        if scope.listeners:
            self._events.stay()
        with self._device:
            try:
                place = self._cupy.cuda.alloc(size)
            except self._cupy.cuda.memory.OutOfMemoryError:
                raise self._out_of_memory(size) from None
            self.pool.notice()
            if isinstance(place.mem, self._cupy.cuda.memory.PooledMemory):
                place = self._events.reporting(place.mem)
            return self._cupy.ndarray(shape, dtype, place)

    def from_dlpack(self, source: Any) -> Any:
        """As :meth:`sharing`, for an object with ``__dlpack__``."""
        if self.owns(source):
            return self.sharing(source)
        with self._device:
            return self.sharing(self._cupy.from_dlpack(source))

    def sharing(self, array: Any) -> Any:
        """An array over the memory of a program's own CuPy array, whose end is reported. If the pool gave it, it is counted.

        Raises:
            DTypeError, ArgumentError: as ``check_borrowed``.
        """
        check_borrowed(array, "cupy")
        if array.dtype == self.lacking:
            raise self.refusal()
        memory = array.data.mem
        place = self._events.reporting(memory) + (array.data.ptr - memory.ptr)
        return self._cupy.ndarray(array.shape, array.dtype, place, strides=array.strides)

    def _out_of_memory(self, size: int) -> OutOfMemoryError:
        pool = self.pool
        pool.settle()
        found = pool.used_bytes(), pool.total_bytes(), pool.get_limit()
        free = found[1] - found[0], None  # CuPy does not report the largest piece
        return OutOfMemoryError(str(self), size, *found, free, scope.ask_autopsy(pool, size))

    def upload(self, source: np.ndarray, out: Any) -> None:
        with self._device:
            if out.flags.c_contiguous:
                out.set(source.astype(out.dtype, copy=False))
                return
            staged = self._staged(out)
            staged.set(source.astype(out.dtype, copy=False))
            self.kernels.copy(staged, out=out)

    def download(self, source: Any, out: np.ndarray) -> None:
        with self._device:
            if not source.flags.c_contiguous:
                staged = self._staged(source)
                self.kernels.copy(source, out=staged)
                source = staged
            out[...] = source.get()

    def _staged(self, array: Any) -> Any:
        """A contiguous buffer for copies between ``array`` and the host."""
        work = self.workspace(self.kernels.staging_workspace(array))
        return self._cupy.ndarray(array.shape, array.dtype, None if work is None else work.data)

    def address(self, array: Any) -> int | None:
        piece = self._piece(array)
        return None if piece is None else piece.ptr

    def _piece(self, array: Any) -> Any:
        """The piece of CuPy's pool in which ``array`` lies; None: it lies in other memory."""
        memory = array.data.mem
        owner = getattr(memory, "_owner", None)
        if isinstance(owner, MethodType):  # of PoolEvents.reporting
            memory = owner.__self__
        return memory if isinstance(memory, self._cupy.cuda.memory.PooledMemory) else None

    def sizes(self, array: Any) -> tuple[int, int]:
        piece = self._piece(array)
        size = 0 if piece is None else piece.size
        return size, size  # CuPy keeps the rounded size only

    def free_memory(self) -> int:
        with self._device:
            return self._cupy.cuda.runtime.memGetInfo()[0] + self.pool.free_bytes()

    def outside(self) -> int:
        with self._device:
            free, total = self._cupy.cuda.runtime.memGetInfo()
        return total - free - self.pool.total_bytes()

    def current(self) -> Any:
        if scope.listeners:
            self._events.stay()
        return self._cupy.cuda.Device(self.index)

    def listening(self) -> Any:
        return self._events

    def block(self, array: Any) -> tuple[Any, int] | None:
        memory = array.data.mem
        if self.address(array) is None:
            return None
        start = self._cupy.cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray((memory.size,), np.uint8, start), array.data.ptr - memory.ptr

    def window(self, block: Any, offset: int, like: Any) -> Any:
        return self._cupy.ndarray(like.shape, like.dtype, block.data + offset, strides=like.strides)

    def host(self, *, pinned: bool = False) -> Any:
        cpu: Any = device("cpu")
        return cpu.over_pool(self.pool.host(pinned=pinned), self)

    def to_host(self, source: Any, out: np.ndarray) -> None:
        with self._device:  # in the order of the stream: the source may be freed at once
            source.get(out=out, blocking=False)

    def from_host(self, source: np.ndarray, out: Any, *, ahead: bool = False) -> Any:
        with self._device:
            now = self._cupy.cuda.get_current_stream()
            if not ahead:
                out.set(source, stream=now)
                return None
            if self._aside is None:
                self._aside = self._cupy.cuda.Stream(non_blocking=True)
            self._aside.wait_event(now.record())  # waits for earlier users of this memory, and for the copy to the host
            out.set(source, stream=self._aside)
            return self._aside.record()

    def wait(self, copy: Any) -> None:
        if copy is not None:
            with self._device:
                self._cupy.cuda.get_current_stream().wait_event(copy)

    def synchronize(self) -> None:
        self._device.synchronize()

    def owns(self, array: Any) -> bool:
        return isinstance(array, self._cupy.ndarray)


class PoolEvents:
    """Reports the events of CuPy's pool to ``scope.listeners``. CuPy's hooks are per thread: each thread must enter it.

    It may be entered several times in a thread; the last exit removes the hook.
    """

    def __init__(self, device: Any) -> None:
        self._device, self._hook, self._here = device, _hook(device), threading.local()
        self._owners: dict[int, weakref.ref[Any]] = {}

    def __enter__(self) -> None:
        depth = getattr(self._here, "depth", 0)
        if depth == 0:
            self._hook.__enter__()
        self._device.pool.settle()  # segments taken without listeners are not reported
        self._here.depth = depth + 1

    def __exit__(self, *exc: object) -> None:
        depth = getattr(self._here, "depth", 0)
        if depth == 1:
            self._hook.__exit__()
        self._here.depth = max(depth - 1, 0)

    def stay(self) -> None:
        """Report this thread's mallocs and frees from now on: it runs an op, allocates or frees while there are listeners."""
        if not getattr(self._here, "depth", 0):
            self.__enter__()

    def reporting(self, piece: Any) -> Any:
        """A pointer to a piece of CuPy's pool that is reported when it is freed, also in a thread that runs no op.

        A thread may drop the last reference to a tensor, or collect garbage, and do nothing else with this library. A piece
        cannot have weak references, so a bound method holds it. An object of a class in Python could do that too, but where
        many objects free each other the interpreter defers those of such classes: frees would have another order than on meta.
        """
        cuda, owner = self._device._cupy.cuda, MethodType(id, piece)
        reference = weakref.ref(owner, self._freeing)
        self._owners[id(reference)] = reference
        return cuda.MemoryPointer(cuda.UnownedMemory(piece.ptr, piece.size, owner, self._device.index), 0)

    @finalizer
    def _freeing(self, reference: weakref.ref[Any]) -> None:
        self._owners.pop(id(reference), None)
        if scope.listeners:
            self.stay()


def _hook(device: Any) -> Any:
    """A CuPy memory hook that reports the events of the pool of ``device`` to ``scope.listeners``."""
    import cupy

    hooks: Any = cupy.cuda.memory_hook

    class Hook(hooks.MemoryHook):
        name = f"tinygrad_mem {device} {id(device)}"

        def alloc_postprocess(self, device_id: int, mem_size: int, mem_ptr: int) -> None:
            if device_id == device.index and mem_ptr:
                device.pool.settle(mem_ptr, mem_size)

        def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            if device_id == device.index and mem_ptr:  # 0: out of memory, or an empty request
                for listener in scope.listeners_of(device.pool):
                    listener.malloc(str(device), mem_ptr, size, mem_size)

        def free_preprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            if device_id == device.index and mem_size:
                for listener in scope.listeners_of(device.pool):
                    listener.free(str(device), mem_ptr, mem_size)

    return Hook()


class PinnedPool(Pool):
    """Pinned host memory: copies between it and a GPU can overlap other work."""

    def _segment(self, size: int) -> Any:
        import cupy

        return cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(size), 0)  # of this size: CuPy's pool would double it


class _Pool:
    """CuPy's pool of one GPU. Its methods use the current device, so each call makes this GPU current."""

    def __init__(self, pool: Any, gpu: Any, device: str) -> None:
        self._pool, self._gpu, self.device = pool, gpu, device
        self.peak_used = self.peak_total = 0  # CuPy keeps no peaks: they are updated after each allocation of ours
        self._reported = 0  # bytes taken from the machine, as last reported to listeners
        self._host: dict[bool, Pool] = {}

    def host(self, *, pinned: bool = False) -> Pool:
        """As ``Pool.host``: pinned memory, which the GPU can read and write directly, or ordinary memory."""
        if pinned not in self._host:
            self._host[pinned] = PinnedPool("host") if pinned else Pool("host")
        return self._host[pinned]

    def notice(self) -> None:
        """Keep the peaks up to date; the GPU is current."""
        self.peak_used = max(self.peak_used, self._pool.used_bytes())
        self.peak_total = max(self.peak_total, self._pool.total_bytes())

    def counts(self) -> Counts:
        """As ``Pool.counts``. CuPy reports one number at a time: with several threads they may be of different moments."""
        with self._gpu:
            self.notice()  # of what a program took with CuPy alone
            used, total = self._pool.used_bytes(), self._pool.total_bytes()
        total = max(used, total)
        return Counts(used, total, max(used, self.peak_used), max(total, self.peak_total))

    def free_all_blocks(self) -> None:
        """As ``Pool.free_all_blocks``. CuPy does not report which segments were freed."""
        with self._gpu:
            self._pool.free_all_blocks()
        self.settle()

    def settle(self, address: int = 0, size: int = 0) -> None:
        """Report to listeners the bytes that CuPy has given back, then a segment that it has just taken.

        CuPy also gives segments back by itself, at a limit or if the driver has no memory left, without reporting it.
        """
        with self._gpu:
            total = self._pool.total_bytes()
        released, self._reported = self._reported + size - total, total
        for listener in scope.listeners_of(self):
            if released > 0:
                listener.segment(self.device, 0, -released)
            if size:
                listener.segment(self.device, address, size)

    def reset_peak(self) -> None:
        """As ``Pool.reset_peak``."""
        self.peak_used = self.peak_total = 0
        with self._gpu:
            self.notice()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._pool, name)

        def on_this_gpu(*args: Any, **kwargs: Any) -> Any:
            with self._gpu:
                return method(*args, **kwargs)

        return on_this_gpu

    def set_limit(self, size: int = 0) -> None:
        """As ``Pool.set_limit``: 0 takes the limit away."""
        if size < 0:
            raise ValueError(f"set_limit: size is {size}; give a number of bytes, or 0 for no limit")
        with self._gpu:
            self._pool.set_limit(size=size)
