"""CuPy's pool of one GPU, as device ``cuda`` uses it: counts, peaks, and the events that CuPy's hooks report."""

from __future__ import annotations

import ctypes
import threading
import weakref
from types import MethodType
from typing import Any

from .. import scope
from ..callbacks import finalizer
from ..interrupts import lock
from .chunks import Counts
from .pool import Pool


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
            if mem_ptr:
                taken.segment = mem_ptr, mem_size  # of which pool, the piece says that is cut from it next

        def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            segment, taken.segment = getattr(taken, "segment", None), None
            if mem_ptr and _mark_of(pmem_id) is device.pool.mark:  # 0: out of memory, or an empty request
                if segment is not None:
                    device.pool.settle(*segment)
                for listener in scope.listeners_of(device.pool):
                    listener.malloc(str(device), mem_ptr, size, mem_size)

        def free_preprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            if mem_size and _mark_of(pmem_id) is device.pool.mark:
                for listener in scope.listeners_of(device.pool):
                    listener.free(str(device), mem_ptr, mem_size)

    taken = threading.local()
    return Hook()


def _mark_of(identity: int) -> Any:
    """The mark of the pool that gave the piece with this ``id``. CuPy calls hooks while the piece is alive, or just ends.

    No variable may hold the piece: the traceback of an interrupt would keep what is about to be freed.
    """
    return ctypes.cast(identity, ctypes.py_object).value.pool


def _current_stream() -> Any:
    import cupy

    return cupy.cuda.get_current_stream()


class PinnedPool(Pool):
    """Pinned host memory: copies between it and a GPU can overlap other work."""

    def _segment(self, size: int) -> Any:
        import cupy

        return cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(size), 0)  # of this size: CuPy's pool would double it


class CuPyPool:
    """CuPy's pool of one GPU. Its methods use the current device, so each call makes this GPU current.

    A program may have other pools, and let CuPy's own arrays come from them. Tensors come from this one, and they are counted.
    """

    def __init__(self, pool: Any, gpu: Any, device: str) -> None:
        self._pool, self._gpu, self.device = pool, gpu, device
        self.malloc = pool.malloc  # on the current GPU
        self.mark = self._found_mark()
        self.peak_used = self.peak_total = 0  # CuPy keeps no peaks: they are updated after each allocation of ours
        self._reported = 0  # bytes taken from the machine, as last reported to listeners
        self._host: dict[bool, Pool] = {}

    def host(self, *, pinned: bool = False) -> Pool:
        """As ``Pool.host``: pinned memory, which the GPU can read and write directly, or ordinary memory."""
        if pinned not in self._host:
            self._host[pinned] = PinnedPool("host") if pinned else Pool("host")
        return self._host[pinned]

    def _found_mark(self) -> Any:
        """The mark of the pool on its pieces of this GPU. CuPy shows it on a piece only: one is taken and given back."""
        with self._gpu:
            before = self._pool.total_bytes()
            mark = self._pool.malloc(1).mem.pool
            if self._pool.total_bytes() > before:
                self._pool.free_all_blocks(stream=_current_stream())  # where nothing else is free, or it would have been that
            return mark

    def notice(self) -> None:
        """Keep the peaks up to date; the GPU is current."""
        with lock:  # or a thread could overwrite a higher peak that another has seen meanwhile
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
        """Report to listeners by how much CuPy's reserved bytes have changed, then the segment that it has just taken, if any.

        CuPy also gives segments back without reporting it, at a limit or if the driver has no memory left. And it counts a
        segment before the driver gives it. A thread that asks in between reports the growth without an address. Then the thread
        that takes the segment reports this growth as given back, and the segment with its address.
        """
        with self._gpu, lock:
            total = self._pool.total_bytes()
            grown, self._reported = total - size - self._reported, total
            for listener in scope.listeners_of(self):
                if grown:
                    listener.segment(self.device, 0, grown)
                if size:
                    listener.segment(self.device, address, size)

    def total_bytes(self) -> int:
        """As ``Pool.total_bytes``. Listeners were told about all of it."""
        with lock:
            self.settle()
            return self._reported

    def reset_peak(self) -> None:
        """As ``Pool.reset_peak``."""
        with self._gpu, lock:
            self.peak_used = self.peak_total = 0
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
