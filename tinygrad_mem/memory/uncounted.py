"""NumPy's own allocations inside ops, outside of the pool: heard through its allocation handler (NEP 49), set by ctypes.

The pool's memory never goes through it, and neither does what the user's own code makes with NumPy: the handler is set in
the context in which ops run, of the thread that begins the track. Only taking is heard. Giving back stays NumPy's own
function in C: an array may be freed while an exception is on its way, and Python code that ran then would swallow it.

Source: NumPy's C API, ``PyDataMem_SetHandler`` and ``PyDataMem_GetHandler``, entries 304 and 305 of its table.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from ..interrupts import lock
from ..scope import run

_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p
# PYFUNCTYPE: NumPy's own functions are called with the interpreter's lock, as NumPy calls them (they let it go themselves)
_MALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE)
_CALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE, _SIZE)
_REALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _POINTER, _SIZE)
_NAME = b"mem_handler"  # a capsule keeps a pointer to its name, not a copy


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", _POINTER),
        ("malloc", _POINTER),
        ("calloc", _POINTER),
        ("realloc", _POINTER),
        ("free", _POINTER),
    )


class Ears:
    """``hear(bytes)`` of every subscriber is called when NumPy takes memory inside an op of a thread that listens."""

    late: ClassVar[list[BaseException]] = []  # to be raised by whoever runs next where it may
    _hearing: tuple[Callable[[int], None], ...] = ()
    _mine = threading.local()  # how many listen in this thread, and the handler that stood before the first

    @classmethod
    def open(cls, hear: Callable[[int], None]) -> None:
        """Listen in this thread too."""
        depth = getattr(cls._mine, "depth", 0)
        if depth == 0:
            cls._mine.before = run(_listen)
        cls._mine.depth = depth + 1
        with lock:
            cls._hearing = (*cls._hearing, hear)

    @classmethod
    def close(cls, hear: Callable[[int], None]) -> None:
        """``hear`` hears no more, if it did; the last one of a thread puts back the handler that stood there."""
        if hear not in cls._hearing:
            return
        with lock:
            cls._hearing = tuple(each for each in cls._hearing if each != hear)
        depth = getattr(cls._mine, "depth", 0)
        if depth == 1:
            set_handler, _ = _numpy()
            run(set_handler, cls._mine.before)
        cls._mine.depth = max(depth - 1, 0)

    @classmethod
    def forget(cls) -> None:
        """Nobody listens any more: in a forked child."""
        cls._hearing = ()

    @classmethod
    def tell(cls, size: int) -> None:
        """NumPy takes ``size`` bytes. What is raised (Ctrl-C) waits in :attr:`late`: it cannot come through NumPy."""
        try:
            for hear in cls._hearing:
                hear(size)
        except BaseException as error:
            cls.late.append(error)

    @classmethod
    def say(cls) -> None:
        """Raise what is late, one at a time."""
        if cls.late:
            with suppress(IndexError):  # another thread has just taken it
                raise cls.late.pop()


def _listen() -> Any:
    """Put our handler above the one that stands in the running context, which is returned."""
    set_handler, get_handler = _numpy()
    before = get_handler()
    set_handler(_above(ctypes.pythonapi.PyCapsule_GetPointer(before, _NAME)))
    return before


@functools.cache
def _above(address: int) -> Any:
    """A capsule of a handler that tells us and asks the one at ``address``; it and its parts live as long as the process."""
    below = _Handler.from_address(address)
    malloc, calloc, realloc = _MALLOC(below.malloc), _CALLOC(below.calloc), _REALLOC(below.realloc)
    malloc.errcheck, calloc.errcheck, realloc.errcheck = _telling(_last), _telling(_product), _telling(_last)
    calls = _MALLOC(malloc), _CALLOC(calloc), _REALLOC(realloc)
    handler = _Handler(b"tinygrad_mem", 1, below.context, *(ctypes.cast(call, _POINTER) for call in calls), below.free)
    _alive.extend((malloc, calloc, realloc, calls, handler))
    return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(handler), _NAME, None)


class _Teller:
    """``teller[arguments]`` tells of a call with them; of anything else it says that it is not there."""

    def __init__(self, size: Callable[[tuple], int]) -> None:
        self.size, self.tell = size, Ears.tell

    def __getitem__(self, arguments: Any) -> None:
        if type(arguments) is not tuple:
            raise KeyError
        self.tell(self.size(arguments))


def _telling(size: Callable[[tuple], int]) -> Any:
    """The function that ctypes calls with ``(result, function, arguments)`` after each call; the result stays what it is.

    NumPy has asked for memory and takes what it gets for a pointer: nothing that is raised here may come through, neither
    ours nor Ctrl-C, which Python hears at the first line of any function. So no function of Python's is called but from
    ``PyMapping_HasKey``, which forgets what is raised: 1 for the arguments, told of; else 0. The largest of the three is
    the arguments, by which ctypes knows that all is well, or the first of equals: the result.
    """
    has_key = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(("PyMapping_HasKey", ctypes.pythonapi))
    return functools.partial(max, key=functools.partial(has_key, _Teller(size)))


def _last(arguments: tuple) -> int:
    return arguments[-1]


def _product(arguments: tuple) -> int:
    return arguments[-2] * arguments[-1]


_alive: list[Any] = []


@functools.cache
def _numpy() -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """NumPy's functions that set and get the handler of the running context, as capsules."""
    from numpy._core import _multiarray_umath  # type: ignore[import-not-found]

    pointer, capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]
    capsule.restype, capsule.argtypes = ctypes.py_object, [_POINTER, ctypes.c_char_p, _POINTER]
    table = ctypes.cast(pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(_POINTER))
    setter, getter = table[304], table[305]
    assert setter is not None
    assert getter is not None
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(setter), ctypes.PYFUNCTYPE(ctypes.py_object)(getter)
