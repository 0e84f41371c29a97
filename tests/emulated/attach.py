"""Points CuPy at the emulated driver, once a process and before CuPy is imported."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from . import build, sources
from .build import CannotAttachError
from .device import Device
from .nvidia import Source

compiled: Counter[str] = Counter()  # "sources": how many g++ compiled in this process


asked: dict[Source, None] = {}  # what CuPy of this process wanted compiled, in the order in which it asked first


_nothing = tempfile.TemporaryDirectory()  # a cache for CuPy in which nothing is found


def attach(*, dry: bool = False) -> Device:
    """The emulated device, to which CuPy of this process is attached from now on.

    ``dry``: nothing is compiled, and kernels do nothing. All else happens: memory is taken, launches are counted.
    """
    if "cupy" in sys.modules:
        raise CannotAttachError("the emulated CUDA device must be attached before CuPy is imported")
    build.check_wheels()
    folder = build.driver()
    driver = ctypes.CDLL(str(folder / "libcuda.so.1"), ctypes.RTLD_GLOBAL)  # found by its name when CuPy looks for it
    ctypes.CDLL(str(folder / "libcublas.so.12"), ctypes.RTLD_GLOBAL)
    _redirect_runtime(driver, ctypes.CDLL(str(folder / "refusals.so")))
    _import_cupy(_nothing.name if dry else str(build.kernels() / "cupy"), dry)
    _check_arguments(driver)
    return Device(driver)


def _redirect_runtime(driver: ctypes.CDLL, refusals: ctypes.CDLL) -> None:
    """Let each function of the CUDA runtime inside CuPy's module begin with a jump to ours."""
    path = build.runtime_library()
    ctypes.CDLL(str(path))  # mapped once: the import finds it
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path.resolve()))]
    base = min(int(line.split("-")[0], 16) for line in lines)
    libc = ctypes.CDLL(None, use_errno=True)
    for name, offset in build.runtime_functions().items():
        library = driver if hasattr(driver, name) else refusals
        target = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        page = (base + offset) & ~4095
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7):
            raise CannotAttachError(f"the emulated CUDA device cannot write to CuPy's code: {os.strerror(ctypes.get_errno())}")
        jump = b"\x49\xbb" + target.to_bytes(8, "little") + b"\x41\xff\xe3"  # mov r11, target; jmp r11
        ctypes.memmove(base + offset, jump, len(jump))


def _import_cupy(cache: str, dry: bool) -> None:
    """Import CuPy with a cache of its own, and with CUB as on a GPU: NVIDIA's other libraries are not looked for."""
    settings = {"CUPY_CACHE_DIR": cache, "CUPY_CI": "emulated", "CUPY_ACCELERATORS": "cub", "NVCC": "there is one"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        import cupy  # noqa: F401
        from cupy.cuda import compiler
        from cupy_backends.cuda.libs import cublas  # noqa: F401

        compiler._kernel_cache_backend  # noqa: B018  (made now, with the folder that is set)
        library: Any = sys.modules["cupy"].cuda
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
    _refuse(library)
    begin = compiler._compile_with_cache_cuda

    def note(source: str, options: tuple[str, ...], *rest: Any) -> Any:
        made = begin(source, options, *rest)
        asked[Source(source, tuple(o for o in options if o.startswith("-D")))] = None
        return made

    compiler._compile_with_cache_cuda = note
    program = compiler._NVRTCProgram
    accept = program.compile

    def compile_here(self: Any, options: tuple[str, ...] = (), log_stream: Any = None) -> tuple[bytes, Any]:
        """What g++ makes of the source is what runs. NVRTC is asked about all new ones together, at the end of the run."""
        if "__global__" not in self.src:  # CuPy asks for the compiler's version
            return b"emulated", None
        if dry:
            return b"DRY:\0", {}
        names = accept(self, options, log_stream)[1] if self.name_expressions else None
        try:
            library = build.kernel(sources.for_host(self.src), [o for o in options if o.startswith("-D")])
        except CannotAttachError as error:
            raise compiler.CompileException(str(error), self.src, self.name, options) from None
        compiled["sources"] += 1
        return b"EMU:" + str(library).encode() + b"\0", names

    program.compile = compile_here


def _check_arguments(driver: ctypes.CDLL) -> None:
    """Let no kernel in CUDA C be launched with arguments that do not fit its parameters: CuPy does not know these."""
    import cupy

    kernel, module = cupy.RawKernel, cupy.RawModule

    class Kernel:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __call__(self, grid: tuple, block: tuple, arguments: tuple, **options: Any) -> None:
            sizes = [8 if isinstance(a, cupy.ndarray) else np.asarray(a).nbytes for a in arguments]
            if driver.emu_fits(ctypes.c_void_p(self._kernel.kernel.ptr), (ctypes.c_int * len(sizes))(*sizes), len(sizes)):
                self._kernel(grid, block, arguments, **options)

    class Module:
        def __init__(self, code: str) -> None:
            self._module = module(code=code)

        def get_function(self, name: str) -> Kernel:
            return Kernel(self._module.get_function(name))

    replaced: Any = cupy
    replaced.RawKernel, replaced.RawModule = lambda *args, **options: Kernel(kernel(*args, **options)), Module


def _refuse(cuda: Any) -> None:
    """CUB and Thrust are compiled for GPUs, and take memory of which nobody knows how much: no kernel may get there."""
    from cupy._core import _cub_reduction

    where: Any = cuda.cub, cuda.thrust, _cub_reduction
    names = ("cub_reduction", "cub_scan", "cub_histogram"), ("sort", "argsort", "lexsort"), (_BLOCKS,)
    for module, functions in zip(where, names, strict=True):
        for name in functions:
            assert hasattr(module, name), f"CuPy has no {module.__name__}.{name} any more: where does it call the library?"
            setattr(module, name, functools.partial(_refusal, f"{module.__name__}.{name}"))


_BLOCKS = "_SimpleCubReductionKernel_get_cached_function"  # of a reduction that CuPy gives to CUB block by block


def _refusal(name: str, *_: Any, **__: Any) -> None:
    raise RuntimeError(f"{name}: CuPy takes memory for it that nobody asked for; sum, search and sort with kernels of our own")
