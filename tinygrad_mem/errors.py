"""Every exception that tinygrad_mem raises by itself.

Each message says what was asked, what was found and what to do. The base classes are PyTorch's, so that code that catches
``RuntimeError`` for a shape, ``IndexError`` for a dimension or ``TypeError`` for a wrong argument keeps working. All derive
from :class:`TinygradMemError`. ``nn`` and the packages above it also raise plain ``TypeError`` and ``ValueError``, as Python
would.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TinygradMemError(Exception):
    """The base of all exceptions of this library."""


class ShapeError(TinygradMemError, RuntimeError, ValueError):
    """Shapes that do not fit an operation."""


class DimensionError(TinygradMemError, IndexError, RuntimeError):
    """A dimension or an index outside the tensor (PyTorch raises the one or the other, by function)."""


class ArgumentError(TinygradMemError, RuntimeError, ValueError):
    """A value that an argument cannot have (PyTorch raises the one or the other, by function)."""


class MissingKeyError(ArgumentError, KeyError):
    """A state dict without a key that it must have (PyTorch raises a KeyError)."""

    __str__ = Exception.__str__  # that of KeyError puts quotes around the sentence


class ReadBetweenBlocksError(ArgumentError, AttributeError):
    """A model reads what is between two blocks of a segment. ``hasattr`` finds nothing there."""


class DivisionError(TinygradMemError, RuntimeError, ZeroDivisionError):
    """Integers divided by 0: no integer is the quotient (PyTorch raises a RuntimeError)."""


class ArgumentTypeError(TinygradMemError, TypeError):
    """An argument of a type that a function does not take."""


class DTypeError(TinygradMemError, RuntimeError, TypeError):
    """A dtype that an operation does not take."""


class DeviceError(TinygradMemError, RuntimeError):
    """Tensors on different devices, or a device that this machine does not have."""


class GraphError(TinygradMemError, RuntimeError):
    """A request that the recorded graph cannot serve: freed, overwritten, not recorded, second order."""


class CheckpointError(TinygradMemError, RuntimeError):
    """A checkpointed function did not do the same when it was run again."""


class RecomputationStoppedError(TinygradMemError, RuntimeError):
    """Ends a recomputation when everything that backward needs was computed. It never leaves the library: do not catch it."""


class BudgetError(TinygradMemError, ValueError):
    """No training step that a plan may choose fits into its budget.

    Its message needs a search of its own, which runs when the message is read.
    """

    def __init__(self, message: str | Callable[[], str]) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        if callable(self.args[0]):
            self.args = (self.args[0](),)
        return str(self.args[0])

    def __reduce__(self) -> tuple:
        return type(self), (str(self),)


class GradcheckError(TinygradMemError, RuntimeError):
    """``gradcheck`` found a gradient that is not the derivative, or that changes from run to run."""


class DataDependenceError(TinygradMemError, RuntimeError):
    """A value was asked of a tensor that has a shape only (device ``meta``)."""


class RankError(TinygradMemError, RuntimeError):
    """Another rank failed, has ended, calls another collective, or did not come in time.

    Attributes:
        rank: the number of that rank among all; ``None`` if it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple:
        return type(self), (self.args[0], self.rank)


class NotOfferedError(TinygradMemError, NotImplementedError):
    """A part of PyTorch's interface that is not offered; the message says what to use instead."""


class StateDictError(TinygradMemError, RuntimeError):
    """A state dict that does not fit the module that it is loaded into."""


class FileFormatError(TinygradMemError, ValueError):
    """A file that is truncated, hostile or of another format."""


def is_whole(value: Any, least: int = 1) -> bool:
    """True if ``value`` is a whole number from ``least`` on. A bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


ADDRESSES = 1 << 47
"""The most bytes that a process can address."""


class OutOfMemoryError(TinygradMemError, RuntimeError):
    """A pool cannot serve a request within its limit, or the machine has no more memory.

    Attributes:
        requested: bytes asked for by the caller.
        used: bytes in live blocks of the pool at that moment.
        reserved: bytes that the pool held from the machine.
        limit: the pool's limit in bytes, 0 for none.
        free: bytes that are reserved but unused, and the largest piece of them: the rest is lost to fragmentation.
    """

    def __init__(
        self,
        device: str,
        requested: int,
        used: int,
        reserved: int,
        limit: int,
        free: tuple[int, int | None] = (0, None),
        report: str = "",
    ) -> None:
        self.requested, self.used, self.reserved, self.limit, self.free = requested, used, reserved, limit, free
        bound = f"the pool's limit is {limit:,} bytes" if limit else "the machine has no more"
        raised = ", or raise the limit with set_limit()" if limit else ""
        if requested >= ADDRESSES:
            bound, report = f"{bound}, and no machine has so much", "Check the shape that was asked for."
        largest = "" if free[1] is None else f", the largest piece {free[1]:,}"
        pieces = f", of which {free[0]:,} bytes are free{largest}" if free[0] else ""
        super().__init__(
            f"out of memory on {device}: asked for {requested:,} bytes, {used:,} bytes are in use and {reserved:,} bytes "
            f"are reserved{pieces}; {bound}. " + (report or f"Use a smaller batch, or free tensors{raised}.")
        )

    def __reduce__(self):
        return (_rebuild_out_of_memory, (self.args[0], self.requested, self.used, self.reserved, self.limit, self.free))


def _rebuild_out_of_memory(message: str, *numbers: Any) -> OutOfMemoryError:
    error = OutOfMemoryError("", *numbers)
    error.args = (message,)
    return error


_DISTRIBUTIONS = {"cupy": "cupy-cuda12x", "ml_dtypes": "ml-dtypes", "sklearn": "scikit-learn"}


def missing(library: str, what: str) -> ModuleNotFoundError:
    """The error to raise if ``what`` needs a library that is not installed.

    It names the library, not an extra of ours: that is right for a checkout, a wheel and an editable install.
    """
    return ModuleNotFoundError(f"{what} needs {library}, which is not installed: {install(library)}", name=library)


def install(library: str) -> str:
    """The command that installs a library, given the name that is imported."""
    return f"pip install {_DISTRIBUTIONS.get(library, library)}"


def needs(library: str, what: str) -> None:
    """Import a library that is an extra.

    Raises:
        ModuleNotFoundError: it is not installed; the message says what needs it and how to install it.
    """
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise  # it is installed, but one of its own requirements is not
        raise missing(library, what) from None


def clear_frames(error: BaseException | None) -> None:
    """Clear the local variables of finished frames of this library, NumPy and CuPy in ``error``'s traceback, to free memory.

    A traceback may live long after the error: in an ``except`` block that continues with a smaller batch, or in a notebook's
    ``sys.last_traceback``. Frames of the user's code are not changed.
    """
    while error is not None:
        trace, cleared = error.__traceback__, list[CodeType]()
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_globals.get("__name__", "").startswith(("tinygrad_mem.", "numpy.", "cupy.")):
                with contextlib.suppress(RuntimeError):  # it is still running
                    frame.clear()
                    if frame.f_code in cleared:
                        _empty_cells(frame)
                    cleared += [c for c in frame.f_code.co_consts if isinstance(c, CodeType) and c.co_name in _INSIDE]
            trace = trace.tb_next
        error = error.__context__  # the error that it replaced, shown or not


_INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def _empty_cells(frame: FrameType) -> None:
    """Clear the variables that a finished generator or comprehension shares with the call, also finished, that made it.

    Its function holds them, and the frame holds its function for ever.
    """
    for function in gc.get_referents(frame):
        if isinstance(function, FunctionType) and function.__code__ is frame.f_code:
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):  # it is empty already
                    del cell.cell_contents


def pins_nothing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: an exception that leaves ``function`` keeps neither its arguments nor its local variables alive."""

    @functools.wraps(function)
    def caller(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            clear_frames(error)
            del args, kwargs  # the traceback refers to this frame too
            raise

    return caller
