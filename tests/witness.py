"""An independent witness: NumPy's own allocation handler (NEP 49), set through ctypes, sees every array that NumPy allocates.

The pool's memory never comes through it, so what it reports inside an op is what a kernel allocated behind the pool's back.
The callbacks and the capsule live for ever: an array may be freed through them long after the witness was taken away.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

from numpy._core import _multiarray_umath

from tinygrad_mem import scope

_SIZE = ctypes.c_size_t
_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _SIZE)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _SIZE, _SIZE)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SIZE)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, _SIZE)


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


_libc = ctypes.CDLL(None)
for _name, _arguments in (("malloc", [_SIZE]), ("calloc", [_SIZE, _SIZE]), ("realloc", [ctypes.c_void_p, _SIZE])):
    getattr(_libc, _name).restype = ctypes.c_void_p
    getattr(_libc, _name).argtypes = _arguments
_libc.free.argtypes = [ctypes.c_void_p]
_sizes: list[int] = []


def _malloc(context: int, size: int) -> int | None:
    _sizes.append(size)
    return _libc.malloc(size)


def _calloc(context: int, count: int, size: int) -> int | None:
    _sizes.append(count * size)
    return _libc.calloc(count, size)


def _realloc(context: int, pointer: int, size: int) -> int | None:
    _sizes.append(size)
    return _libc.realloc(pointer, size)


def _free(context: int, pointer: int, size: int) -> None:
    _libc.free(pointer)


_handler = _Handler(b"witness", 1, None, _MALLOC(_malloc), _CALLOC(_calloc), _REALLOC(_realloc), _FREE(_free))
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_table = ctypes.cast(_get_pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_table[304])
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"mem_handler"  # a capsule keeps a pointer to its name, not a copy
_capsule = _new_capsule(ctypes.addressof(_handler), _NAME, None)


@contextlib.contextmanager
def numpy_allocations() -> Iterator[list[int]]:
    """The sizes in bytes of all NumPy allocations of this thread, while the context is open."""
    _sizes.clear()
    before = _set_handler(_capsule), scope.local.run(_set_handler, _capsule)  # ops run in a context of their own
    try:
        yield _sizes
    finally:
        _set_handler(before[0])
        scope.local.run(_set_handler, before[1])


@contextlib.contextmanager
def cupy_allocations() -> Iterator[list[tuple[int, str]]]:
    """What CuPy's pool gave in this thread to others than ``device.empty``, while the context is open: bytes, and who asked."""
    import cupy

    from tinygrad_mem.devices.cuda import CUDA

    hooks: Any = cupy.cuda.memory_hook
    found: list[tuple[int, str]] = []

    class Hidden(hooks.MemoryHook):
        name = "tinygrad_mem witness"

        def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            if mem_size and mem_ptr and not _asked(CUDA.empty.__code__):
                found.append((size, _place()))

    with Hidden():
        yield found


def _asked(door: Any) -> bool:
    """Whether the innermost code of the library that is running is this function."""
    frame = sys._getframe(2)
    while frame is not None and "/tinygrad_mem/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and frame.f_code is door


def _place() -> str:
    """The innermost line of the library that is running, and who called it."""
    frame, lines = sys._getframe(2), []
    while frame is not None and len(lines) < 3:
        if "/tinygrad_mem/" in frame.f_code.co_filename:
            lines.append(f"{frame.f_code.co_filename.split('/tinygrad_mem/')[-1]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)
