"""What Python asks of the emulated driver: modes, limits, problems, and the pieces that CuPy's pool gives."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, NamedTuple

ORDERS = {"forward": 0, "backward": 1, "mixed": 2}  # of threads, warps and blocks; mixed: some launches each way
# late: work runs when it is waited for; late_main: that of side streams at once; idle: never, only memory is given
LATENESS = {"eager": 0, "late": 1, "late_main": 2, "idle": 3}
CAPACITY = 1 << 32


class Seen(ctypes.Structure):
    """What was exercised since the last call: the fields of ``Seen`` in the driver."""

    _fields_ = [(name, ctypes.c_long) for name in ("launches", "with_fibers", "order_matters", "side_streams")]
    launches: int
    with_fibers: int
    order_matters: int
    side_streams: int


class Launched(NamedTuple):
    """How often a kernel was launched, and how many threads its largest block had."""

    times: int
    threads: int


@dataclass(frozen=True)
class Mode:
    """How work runs: the order of threads, and when streams execute."""

    order: str = "forward"
    late: str = "eager"

    def __str__(self) -> str:
        return f"{self.order} {self.late}"


class Device:
    """The emulated device of this process."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self.driver = driver
        for name in ("emu_piece_given", "emu_piece_freed"):
            getattr(driver, name).argtypes = _PIECES[name]
        driver.emu_set_capacity.argtypes = [ctypes.c_size_t]
        driver.emu_refuse_after.argtypes = [ctypes.c_long]
        driver.emu_launched.restype = ctypes.c_size_t
        driver.emu_launched.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._hook = _hook(self)
        self._hooked: local | None = None
        self.current = Mode()
        self.chosen = 0  # how often somebody has asked for a mode

    def show(self) -> None:
        """Let CuPy find the device, and watch what its pool gives."""
        import cupy

        self.driver.emu_set_visible(1)
        cupy.cuda._available = None
        if self._hooked is None:
            self._hooked = local()
            replaced: Any = cupy
            replaced._default_memory_pool = _watched_pool(self._hook, self._hooked)()
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        self._hooked.yes = True
        self._hook.__enter__()

    def hide(self) -> None:
        """Let this be a machine without a GPU."""
        import cupy

        self._hook.__exit__()
        assert self._hooked is not None
        self._hooked.yes = False
        self.driver.emu_set_visible(0)
        cupy.cuda._available = None

    def set_mode(self, mode: Mode) -> None:
        """How work runs from now on; what was given before is finished first."""
        self.current = mode
        self.chosen += 1
        self.driver.emu_set_mode(LATENESS[mode.late], ORDERS[mode.order])

    @contextmanager
    def mode(self, order: str = "forward", late: str = "eager") -> Iterator[None]:
        """Run work so, inside."""
        before = self.current
        self.set_mode(Mode(order, late))
        try:
            yield
        finally:
            self.set_mode(before)

    @contextmanager
    def comparing_subnormals(self) -> Iterator[None]:
        """Kernels whose comparisons see the subnormal numbers that are read, inside: NVIDIA's assembler makes some so."""
        self.driver.emu_compare_subnormals(1)
        try:
            yield
        finally:
            self.driver.emu_compare_subnormals(0)

    @contextmanager
    def capacity(self, size: int) -> Iterator[None]:
        """A device with so many bytes, inside."""
        self.driver.emu_set_capacity(size)
        try:
            yield
        finally:
            self.driver.emu_set_capacity(CAPACITY)

    @contextmanager
    def refusing(self, after: int = 0) -> Iterator[None]:
        """A driver that refuses memory, inside: ``after`` so many more calls of cudaMalloc."""
        self.driver.emu_refuse_after(after)
        try:
            yield
        finally:
            self.driver.emu_refuse_after(-1)

    def seen(self) -> Seen:
        """What was exercised since the last call."""
        seen = Seen()
        self.driver.emu_take_seen(ctypes.byref(seen))
        return seen

    def problems(self) -> list[str]:
        """The mistakes of programs since the last call, when all work is done."""
        self.driver.cudaDeviceSynchronize()
        text = ctypes.create_string_buffer(1 << 16)
        self.driver.emu_take_problems(text, len(text))
        return text.value.decode(errors="replace").splitlines()

    def launched(self) -> dict[str, Launched]:
        """The kernels that were launched in this process."""
        text = ctypes.create_string_buffer(self.driver.emu_launched(None, 0))
        self.driver.emu_launched(text, len(text))
        lines = (line.rsplit(" ", 2) for line in text.value.decode().splitlines())
        return {name: Launched(int(times), int(threads)) for name, times, threads in lines}


_PIECES = {
    "emu_piece_given": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p],
    "emu_piece_freed": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
}


def _watched_pool(hook: Any, hooked: local) -> Any:
    """A class of pools, with the hook in each thread that asks one: CuPy's hooks are a thread's own."""
    import cupy

    class WatchedPool(cupy.cuda.MemoryPool):
        def malloc(self, size: int) -> Any:
            if not getattr(hooked, "yes", False):
                hooked.yes = True
                hook.__enter__()
            return super().malloc(size)

    return WatchedPool


def _hook(device: Device) -> Any:
    from cupy.cuda import get_current_stream, memory_hook

    class Pieces(memory_hook.MemoryHook):
        """What any pool of CuPy gives and takes back in the thread of the tests: the driver is told."""

        name = "emulated device"

        def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            if mem_ptr:
                device.driver.emu_piece_given(mem_ptr, size, mem_size, get_current_stream().ptr)

        def free_preprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            device.driver.emu_piece_freed(mem_ptr, mem_size, get_current_stream().ptr)

    return Pieces()
