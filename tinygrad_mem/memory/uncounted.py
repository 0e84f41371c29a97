"""What NumPy allocates behind the pool's back, counted while it happens: its allocation handler (NEP 49), set through ctypes.

The pool's memory never goes through it. The handler holds in the thread that sets it, and in the context in which ops run
there; kernels' worker threads keep NumPy's own. Callbacks and capsule live as long as the process, because an array may be
freed through them long after the count has ended.

Source: NumPy's C API, ``PyDataMem_SetHandler``, entry 304 of its table.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from ..scope import local

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p
_MALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE)
_CALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE, _SIZE)
_REALLOC = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, _SIZE)
_FREE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _SIZE)


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


class NumpyBytes:
    """``hear(bytes)`` is called with what NumPy holds of its own, whenever that changes, between ``start`` and ``stop``.

    What counts was allocated under some count of this process; what NumPy had before is not known.
    """

    held = 0
    _ears: tuple[Callable[[int], None], ...] = ()
    _sizes: dict[int, int] = {}  # noqa: RUF012 (of all counts together)
    _mine = threading.local()  # how many counts run in this thread, and the handlers that stood before the first

    def __init__(self, hear: Callable[[int], None]) -> None:
        self._hear = hear

    def start(self) -> None:
        """Count, in this thread."""
        NumpyBytes._ears = (*NumpyBytes._ears, self._hear)
        depth = getattr(self._mine, "depth", 0)
        if depth == 0:
            set_handler, capsule = _numpy()
            self._mine.before = set_handler(capsule), local.run(set_handler, capsule)
        self._mine.depth = depth + 1

    def stop(self) -> None:
        """Count no longer; the last one puts back the handlers that stood before, in the thread that set them."""
        NumpyBytes._ears = tuple(ear for ear in NumpyBytes._ears if ear != self._hear)
        self._mine.depth = depth = getattr(self._mine, "depth", 1) - 1
        if depth == 0 and hasattr(self._mine, "before"):
            set_handler, _ = _numpy()
            set_handler(self._mine.before[0])
            local.run(set_handler, self._mine.before[1])
            del self._mine.before

    @classmethod
    def forget(cls) -> None:
        """Nobody counts any more: in a forked child."""
        cls._ears = ()

    @classmethod
    def took(cls, pointer: int | None, size: int) -> int | None:
        """NumPy has got ``size`` bytes at ``pointer``."""
        if pointer:
            cls._sizes[pointer] = size
            cls._changed(size)
        return pointer

    @classmethod
    def gave(cls, pointer: int) -> None:
        """NumPy gives back what it has at ``pointer``."""
        cls._changed(-cls._sizes.pop(pointer, 0))

    @classmethod
    def _changed(cls, size: int) -> None:
        cls.held += size
        for ear in cls._ears:
            ear(cls.held)


@functools.cache
def _numpy() -> tuple[Callable[[Any], Any], Any]:
    """The function that sets a handler, and ours in the capsule that it takes."""
    from numpy._core import _multiarray_umath  # type: ignore[import-not-found]

    python = ctypes.pythonapi
    pointer, capsule = python.PyCapsule_GetPointer, python.PyCapsule_New
    pointer.restype, pointer.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]
    capsule.restype, capsule.argtypes = ctypes.py_object, [_POINTER, ctypes.c_char_p, _POINTER]
    table = ctypes.cast(pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(_POINTER))
    handler = _Handler(b"tinygrad_mem", 1, None, *_callbacks())
    name = ctypes.create_string_buffer(b"mem_handler")  # a capsule keeps a pointer to its name, not a copy
    _alive.extend((handler, name))
    address = table[304]
    assert address is not None
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)
    return set_handler, capsule(ctypes.addressof(handler), ctypes.cast(name, ctypes.c_char_p), None)


_alive: list[Any] = []


def _callbacks() -> tuple[Any, ...]:
    libc = ctypes.CDLL(None)
    for name, arguments in (("malloc", [_SIZE]), ("calloc", [_SIZE, _SIZE]), ("realloc", [_POINTER, _SIZE])):
        getattr(libc, name).restype, getattr(libc, name).argtypes = _POINTER, arguments
    libc.free.argtypes = [_POINTER]
    took, gave = NumpyBytes.took, NumpyBytes.gave

    def malloc(context: Any, size: int) -> int | None:
        return took(libc.malloc(size), size)

    def calloc(context: Any, count: int, size: int) -> int | None:
        return took(libc.calloc(count, size), count * size)

    def realloc(context: Any, pointer: int, size: int) -> int | None:
        gave(pointer)
        return took(libc.realloc(pointer, size), size)

    def free(context: Any, pointer: int, size: int) -> None:
        gave(pointer)
        libc.free(pointer)

    return _MALLOC(malloc), _CALLOC(calloc), _REALLOC(realloc), _FREE(free)
