"""dtypes are NumPy's own objects. Only promotion differs from NumPy: it is PyTorch's.

PyTorch promotes by category (bool < integer < floating): an integer tensor times a float32 tensor is float32, an integer
tensor divided by an integer tensor is the default dtype, and neither Python numbers nor 0-d tensors widen a tensor of
their own category.

NumPy has no bfloat16: it comes from the package ``ml_dtypes``. If that is not installed, a dtype of the same size replaces
it. This is enough for device ``meta``: a step in bfloat16 can be predicted, and is refused elsewhere.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import math
from functools import cache
from numbers import Real
from typing import Any

import numpy as np

from .errors import ArgumentError, ArgumentTypeError, DTypeError
from .scope import local

__all__ = (
    "bfloat16", "bool", "cdouble", "cfloat", "complex64", "complex128", "double", "dtype", "finfo", "float", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float16", "float32", "float64", "get_default_dtype", "half", "iinfo",
    "int", "int8", "int16", "int32", "int64", "long", "promote_types", "set_default_dtype", "short", "uint8", "uint16",
    "uint32", "uint64",
)  # fmt: skip

dtype = np.dtype
"""The class of all of them, for annotations and ``isinstance``."""
float16 = half = np.dtype(np.float16)
try:
    import ml_dtypes as _ml

    bfloat16, LACKING = np.dtype(_ml.bfloat16), None
    float8_e4m3fn, float8_e5m2 = np.dtype(_ml.float8_e4m3fn), np.dtype(_ml.float8_e5m2)
    float8_e4m3fnuz, float8_e5m2fnuz = np.dtype(_ml.float8_e4m3fnuz), np.dtype(_ml.float8_e5m2fnuz)
except ModuleNotFoundError:

    class bfloat(np.void):
        """Two bytes without a meaning for NumPy; its name and size make the name of the dtype."""

    bfloat16 = LACKING = np.dtype((bfloat, 2))
    float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz = (np.dtype((np.void, 1)) for _ in range(4))
float32 = float = np.dtype(np.float32)
float64 = double = np.dtype(np.float64)
int8 = np.dtype(np.int8)
int16 = short = np.dtype(np.int16)
int32 = int = np.dtype(np.int32)
int64 = long = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
bool = np.dtype(np.bool_)
uint16, uint32, uint64 = np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)
complex64 = cfloat = np.dtype(np.complex64)
complex128 = cdouble = np.dtype(np.complex128)
"""These names exist for tables and comparisons. No tensor can have these dtypes, nor the 8-bit ones."""

ALL = (float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, bool)
_NAMES = {dtype.name: dtype for dtype in ALL}
HALVES = frozenset({float16, bfloat16})
"""Half precision is for storage only; arithmetic is in float32, rounded once."""
FLOATING = "fV"
"""The kinds of floating dtypes: of bfloat16, NumPy says ``V``."""
_BOOL, _INTEGER, _FLOATING = range(3)
_CATEGORY = {dtype: _FLOATING if dtype.kind in FLOATING else _BOOL if dtype.kind == "b" else _INTEGER for dtype in ALL}
_default = float32


def get_default_dtype() -> np.dtype:
    """The dtype of tensors made of Python floats: float32 unless changed. A prediction has one of its own."""
    return _default if local.dry is None else local.dry.default_dtype


def set_default_dtype(dtype: np.dtype) -> None:
    """Set the dtype of tensors made of Python floats, for all threads, as PyTorch does; in a prediction, for it alone.

    Raises:
        DTypeError: ``dtype`` is not floating.
    """
    global _default
    found = as_dtype(dtype)
    if not is_floating(found):
        raise DTypeError(f"set_default_dtype: only floating dtypes can be the default, found {dtype}")
    if local.dry is None:
        _default = found
    else:
        local.dry.default_dtype = found


def as_dtype(dtype: Any) -> np.dtype:
    """``dtype`` as one of ours, from a NumPy dtype, a Python type or a name.

    Raises:
        DTypeError: it is not one of the offered dtypes, or a name that is another dtype in NumPy than in PyTorch.
    """
    if isinstance(dtype, str) and dtype in ("float", "int", "byte"):
        raise DTypeError(f"dtype: {dtype!r} is {np.dtype(dtype)} in NumPy and not in PyTorch; give the name with its bits")
    try:
        name = dtype if isinstance(dtype, str) and dtype in _NAMES else np.dtype(dtype).name
    except TypeError:
        name = None
    if dtype is None or name not in _NAMES:
        raise DTypeError(f"dtype: expected one of {', '.join(_NAMES)}, found {dtype!r}")
    return _NAMES[name]


class finfo:
    """The limits of a floating dtype, the default one unless named, as Python numbers: ``max``, ``eps``, ``tiny``, ...

    Raises:
        DTypeError: it is not floating.
    """

    def __init__(self, type: Any = None) -> None:
        listed = isinstance(type, np.dtype) and type in _LIMITS
        found = type if listed else as_dtype(get_default_dtype() if type is None else type)
        self.dtype, self.bits = found.name, 8 * found.itemsize
        if found in _LIMITS:
            self.max, self.tiny, self.eps, self.resolution = _LIMITS[found]
        elif not is_floating(found):
            raise DTypeError(f"finfo: expected a floating dtype, found {found}; iinfo has the limits of integers")
        else:
            limits = np.finfo(found)
            self.max, self.tiny, self.eps = (_number(each) for each in (limits.max, limits.tiny, limits.eps))
            self.resolution = 10.0**-limits.precision
        self.min, self.smallest_normal = -self.max, self.tiny

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in names)}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer dtype: ``max``, ``min``, ``bits``. Raises: DTypeError: it is not one of integers."""

    def __init__(self, type: Any) -> None:
        found = as_dtype(type)
        if category(found) != _INTEGER:
            raise DTypeError(f"iinfo: expected an integer dtype, found {found}; finfo has the limits of floating dtypes")
        self.dtype, limits = found.name, np.iinfo(found)
        self.bits, self.max, self.min = limits.bits, limits.max, limits.min

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def category(dtype: np.dtype) -> Any:
    """0 of bool, 1 of integers, 2 of floating dtypes: a result never falls below its operands'."""
    return _CATEGORY[dtype]


def is_floating(dtype: np.dtype) -> Any:
    """True if ``dtype`` is floating: only such tensors can require gradients."""
    return dtype.kind in FLOATING


def is_half(dtype: np.dtype) -> Any:
    """True if ``dtype`` is of half precision, stored and nothing else: its arithmetic is made in :func:`arithmetic`."""
    return dtype in HALVES


def arithmetic(dtype: np.dtype) -> np.dtype:
    """The dtype that numbers of ``dtype`` are added up and computed in: float32 for half precision, else itself."""
    return float32 if dtype in HALVES else dtype


def refuse_complex(*values: Any) -> None:
    """Raises: DTypeError: one of ``values`` is a complex number, of which a real array would take the first part alone."""
    for value in values:
        if isinstance(value, (complex, np.complexfloating)):
            raise DTypeError(f"complex numbers are not offered: found {value}; compute with its real and imaginary parts")


_ALL_HOLD = 65504  # the largest float16: finfo takes microseconds


def want_fitting(dtype: np.dtype, *numbers: Any) -> None:
    """Check that the arithmetic of a floating dtype holds numbers. Raises: ArgumentError: as :func:`fitting`."""
    for number in numbers:
        if not -_ALL_HOLD <= number <= _ALL_HOLD:
            fitting(number, arithmetic(dtype))


def want_held(dtype: np.dtype, *numbers: Any) -> None:
    """Check that an integer dtype holds the integers among ``numbers``. Raises: OverflowError, as NumPy: one is too large."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for number in numbers:
            if type(plain(number)) is _builtin_int and not limits.min <= number <= limits.max:
                raise OverflowError(f"Python integer {number} out of bounds for {dtype}")


def rounded(value: Any, dtype: np.dtype) -> Any:
    """A Python number as an array of half precision holds it: kernels compute with wider ones, and compare with those."""
    plain = type(value) is _builtin_float or type(value) is _builtin_int
    return _builtin_float(dtype.type(value)) if plain and dtype.itemsize == 2 and is_floating(dtype) else value


def fitting(value: Any, dtype: np.dtype) -> Any:
    """A Python number as an array of ``dtype`` takes it: an integer below 0 wraps round in an unsigned one, as PyTorch's does.

    Raises:
        ArgumentError: it is too large; inf and nan are in floating dtypes alone.
        DTypeError: it is complex.
    """
    refuse_complex(value)
    if dtype.kind == "b":
        return value != 0 if type(value) is _builtin_int else value
    if is_floating(dtype):
        plain = type(value) is _builtin_float or type(value) is _builtin_int
        known = value if plain else getattr(value, "stated", value)  # of a number that a dry run does not know: 1
        if -_ALL_HOLD <= known <= _ALL_HOLD:
            return value
        if abs(known) > finfo(dtype).max and not math.isinf(known):
            raise _overflow(value, dtype)
        return value
    limits = np.iinfo(dtype)
    least = limits.min or (0 if isinstance(value, _builtin_float) else -limits.max)
    if not least <= value <= limits.max:
        raise _overflow(value, dtype)
    return _builtin_int(value) % (limits.max + 1) if dtype.kind == "u" else _builtin_int(value)


def _overflow(value: Any, dtype: np.dtype) -> ArgumentError:
    return ArgumentError(
        f"value cannot be converted to type {dtype} without overflow: found {value!r}; choose a dtype that holds it"
    )


@cache
def promote_types(first: np.dtype, second: np.dtype) -> np.dtype:
    """The smallest dtype of the higher category that both fit in, by PyTorch's table.

    >>> promote_types(int64, float16)
    dtype('float16')
    """
    if first not in _CATEGORY or second not in _CATEGORY:
        raise DTypeError(f"promote_types: expected two dtypes, found {first!r} and {second!r}")
    a, b = _CATEGORY[first], _CATEGORY[second]
    if a == b and first != second and bfloat16 in (first, second):
        return promote_types(float32, second if first == bfloat16 else first)  # neither half holds the other
    if a == b or _FLOATING not in (a, b):
        return np.promote_types(first, second)
    return first if a == _FLOATING else second


@cache
def result_type_of(operands: tuple) -> np.dtype:
    """PyTorch's result dtype of operands as ``(dtype, rank)``: rank 2 with dimensions, 1 for 0-d, 0 for a Python number."""
    best: list[np.dtype | None] = [None, None, None]
    for dtype, rank in operands:
        best[rank] = dtype if best[rank] is None else promote_types(best[rank], dtype)
    result = best[2]
    for lower in (best[1], best[0]):
        if lower is None:
            continue
        if result is None:
            result = lower
        elif _CATEGORY[lower] > _CATEGORY[result]:
            result = promote_types(result, lower)
    assert result is not None
    return result


_np_int64, _np_bool = int64, bool
_builtin_bool, _builtin_int, _builtin_float = builtins.bool, builtins.int, builtins.float
_LIMITS = {
    bfloat16: (2.0**127 * (2 - 2.0**-7), 2.0**-126, 2.0**-7, 0.01),  # float32's exponents, with 7 bits of its 23
    float8_e4m3fn: (448.0, 2.0**-6, 0.125, 1.0),
    float8_e5m2: (57344.0, 2.0**-14, 0.25, 1.0),
    float8_e4m3fnuz: (240.0, 2.0**-7, 0.125, 1.0),
    float8_e5m2fnuz: (57344.0, 2.0**-15, 0.125, 1.0),
}
"""dtype -> its max, tiny, eps and resolution. 8-bit ones are here for files that ask before they compute in something else."""
_number = builtins.float  # a Python number: NumPy's would overflow at twice the maximum


def result_type(*operands: Any) -> np.dtype:
    """PyTorch's result dtype of arrays and Python numbers."""
    key = []
    for x in operands:
        if hasattr(x, "dtype"):
            key.append((x.dtype, 2 if x.ndim else 1))
        elif isinstance(x, _builtin_bool):
            key.append((_np_bool, 0))
        elif isinstance(x, _builtin_int):
            key.append((_np_int64, 0))
        elif x is None or isinstance(x, (str, bytes, list, tuple)):  # NumPy takes a sequence for an array, PyTorch does not
            raise ArgumentTypeError(f"expected a tensor or a number, found {type(x).__name__}")
        else:
            key.append((get_default_dtype(), 0))
    return result_type_of(tuple(key))


def _add_dtype_attributes() -> None:
    """Add attributes of PyTorch's dtypes to ``numpy.dtype``: ``is_floating_point``, ``is_complex``, ``is_signed``.

    The class is written in C and refuses ``setattr``, but the dict behind its proxy accepts names, and NumPy has none of these.
    If that dict is not accessible, dtypes lack the attributes, and reading one raises NumPy's AttributeError.
    """
    try:
        tell = ctypes.pythonapi.PyType_Modified  # else Python may remember that the names were not there
        (names,) = gc.get_referents(np.dtype.__dict__)
    except (AttributeError, ValueError):
        return
    if type(names) is not dict:
        return
    names.setdefault("is_floating_point", property(is_floating, doc="Whether its numbers are floating."))
    names.setdefault("is_complex", property(lambda dtype: dtype.kind == "c", doc="Whether its numbers are complex."))
    names.setdefault("is_signed", property(lambda dtype: dtype.kind in "if" + FLOATING, doc="Whether it has negative numbers."))
    tell(ctypes.py_object(np.dtype))


_add_dtype_attributes()


def borrowed(array: np.ndarray) -> np.ndarray:
    """Another library's array as a plain NumPy array, whose memory a tensor may share. Raises: as :func:`check_borrowed`."""
    check_borrowed(array, "numpy")
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def check_borrowed(array: Any, whose: str) -> None:
    """Check that a tensor may share the memory of another library's array.

    Raises:
        DTypeError: its dtype is not offered.
        ArgumentError: its byte order is not this machine's; a stride is negative, or not a multiple of the element size.
    """
    dtype = as_dtype(array.dtype)
    if not array.dtype.isnative:
        raise ArgumentError(
            f"given {whose} array has byte order different from the native byte order: {array.dtype.str!r}. "
            f"Use tensor(array), which converts its copy, or array.astype({dtype.name!r})."
        )
    if any(stride < 0 for stride in array.strides):
        raise ArgumentError(
            f"At least one stride in the given {whose} array is negative, and tensors with negative strides are not currently "
            "supported. Make a copy of your array with array.copy()."
        )
    if any(stride % dtype.itemsize for stride in array.strides):
        raise ArgumentError(
            f"given {whose} array strides not a multiple of the element byte size ({dtype.itemsize}): found {array.strides}. "
            "Make a copy of your array with array.copy()."
        )


def plain(value: Any) -> Any:
    """A number of NumPy's as Python's; anything else as it is."""
    if not isinstance(value, np.generic):
        return value
    number = value.item()
    return _builtin_float(number) if isinstance(number, np.generic) else number  # a long double is its own item


def size_or_data(value: Any) -> Any:
    """An argument of ``Tensor(...)``: as in PyTorch NumPy's whole number, or its array without dimensions, is a size."""
    whole = isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "iu"
    return value.item() if whole else plain(value)


PLAIN = frozenset({builtins.float, builtins.int, builtins.bool, type(None)})
"""The types of operands that an op takes as they are."""


def admitted(value: Any) -> Any:
    """An operand that is neither a tensor nor one of :data:`PLAIN`, as an op takes it.

    Raises:
        As :func:`borrowed`; DTypeError: a complex number; ArgumentTypeError: no number.
    """
    refuse_complex(value)
    if isinstance(value, np.ndarray):
        return borrowed(value)
    if hasattr(value, "__cuda_array_interface__"):  # the op finds out whether it is on its device
        return value
    value = plain(value)
    if isinstance(value, (builtins.int, builtins.float)):
        return value
    if isinstance(value, Real):  # a fraction
        return _builtin_float(value)
    raise ArgumentTypeError(f"expected a tensor or a number, found {type(value).__name__}")
