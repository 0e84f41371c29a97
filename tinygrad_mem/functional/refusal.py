"""Explains a failed call: it names the wrong argument, in PyTorch's words.

Functions do not check everything: Python and NumPy raise for the rest, in words that mean nothing to the caller (``'str' object
has no attribute 'ndim'``, ``ufunc 'add' did not contain a loop``). So the arguments of a failed call are compared with the
function's annotations, and the error names the first that does not match. If all match, our own errors pass through; any other
error is replaced by a description of the arguments.

NumPy's argument names (``axis``, ``keepdims``), NumPy's numbers, and sizes given by name (``size=(2, 3)``) are accepted:
:func:`normalized` translates the call.
"""

from __future__ import annotations

import inspect
import numbers
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..dtypes import FLOATING, bfloat16, plain
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    DataDependenceError,
    DimensionError,
    DTypeError,
    GraphError,
    NotOfferedError,
    OutOfMemoryError,
    ShapeError,
    TinygradMemError,
)

_HOMES = (str(Path(__file__).parents[1]), str(Path(np.__file__).parent))
_DOOR = str(Path(__file__).with_name("door.py"))
_UNDERSTOOD = (NotOfferedError, OutOfMemoryError, DataDependenceError, GraphError)  # the arguments were taken
_ACCIDENTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError)  # of Python's and NumPy's

_NUMPYS_NAMES = {
    "split_size": "split_size_or_sections",
    "axis": "dim",
    "keepdims": "keepdim",
    "a": "input",
    "x": "input",
    "x1": "input",
    "x2": "other",
}


def normalized(function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """The call with PyTorch's argument names and Python's numbers; ``None`` if nothing changes."""
    parameters = inspect.signature(function).parameters
    meant = {key: _NUMPYS_NAMES[key] for key in kwargs if key not in parameters and _NUMPYS_NAMES.get(key) in parameters}
    packed = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), None)
    if kwargs.get("layout") == Tensor.layout and "layout" not in parameters:  # the only layout: the argument changes nothing
        return args, {key: value for key, value in kwargs.items() if key != "layout"}
    if packed in kwargs:  # zeros(size=(2, 3)), permute(x, dims=(1, 0)): a sequence by its name
        return (*args, kwargs[packed]), {key: value for key, value in kwargs.items() if key != packed}
    if not set(meant.values()).isdisjoint(kwargs):
        meant = {}
    named = {meant.get(key, key): value for key, value in kwargs.items()}
    known = _beside_bfloat16 if any(getattr(x, "dtype", None) == bfloat16 for x in (*args, *kwargs.values())) else _plain
    plain_args = tuple(map(known, args))
    plain_named = {key: known(value) for key, value in named.items()}
    given = zip((*args, *named.values()), (*plain_args, *plain_named.values()), strict=True)
    return (plain_args, plain_named) if meant or any(before is not after for before, after in given) else None


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, also in a list or a tuple."""
    if type(value) in (list, tuple) and any(isinstance(each, np.generic) for each in value):
        return type(value)(map(plain, value))
    return plain(value)


def _beside_bfloat16(value: Any) -> Any:
    """A number as :func:`_plain` has it; an integer of more than 63 bits as a float: bfloat16's ufuncs take no such integer."""
    value = _plain(value)
    return float(value) if type(value) is int and 1 << 63 <= abs(value) < 1 << 1023 else value


def refusal(function: Any, args: tuple, kwargs: dict, error: BaseException) -> Exception | None:
    """The error to raise instead of ``error``; ``None`` to keep ``error``, also if it comes from other code than ours."""
    meant = isinstance(error, TinygradMemError)
    if isinstance(error, _UNDERSTOOD) or not (meant or isinstance(error, _ACCIDENTS)):
        return None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return None  # a kernel is missing: whoever writes an op reads its name
    here = _file_of(error)
    if not meant and (here == _DOOR or not _fits(function, args, kwargs)):  # the signature does not have these arguments
        return ArgumentTypeError(str(error).replace(f"{function.__qualname__}()", f"{function.__name__}()"))
    if not here.startswith(_homes()) and not here.endswith((".pyx", ".pxd", ".pxi", "stringsource>")):  # Cython's
        return None
    misfit = _misfit(function, args, kwargs)
    if misfit is not None:
        return ArgumentTypeError(misfit)
    if meant:
        return None
    if isinstance(error, OverflowError) and ("out of bounds for" in str(error) or _beyond_int64(args)):
        return ArgumentError(f"{function.__name__}(): {error}; convert the tensor to a dtype that holds it")
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    listed = ", ".join(f"{name} {_describe(value)}" for name, value in given.items())
    kind = DimensionError if isinstance(error, IndexError) else ShapeError
    if max(_sizes(list(given.values())), default=0) >= _ENDLESS:
        return kind(f"{function.__name__}(): sizes and bytes of an array end below 2**63: found {listed}; choose smaller sizes")
    if isinstance(error, MemoryError) or "array is too big" in str(error):
        return kind(
            f"{function.__name__}(): NumPy has no memory for an array of this size: found {listed}; choose smaller sizes"
        )
    what = "these shapes and values"
    if type(error).__module__ == "numpy._core._exceptions" or "dtype" in str(error):
        kind, what = DTypeError, "these dtypes"
    return kind(f"{function.__name__}(): not possible with {what}: found {listed}")


_ENDLESS = 1 << 55  # elements: no machine has as many bytes


def _sizes(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _sizes(value)
        elif isinstance(value, (int, float)) and value == value:
            yield abs(value)


def _beyond_int64(args: tuple) -> bool:
    """True if a number that stands beside a tensor is beyond int64: it is no size."""
    tensors = any(isinstance(x, Tensor) for x in args)
    return tensors and any(isinstance(x, int) and not -(1 << 63) <= x < 1 << 63 for x in args)


def answers(args: tuple, method: str) -> bool:
    """True if the second operand is of a type that no op takes, and has the method that Python calls next."""
    if len(args) != 2 or isinstance(args[1], (Tensor, numbers.Number, np.ndarray, list, tuple)) or hint_for(args[1]):
        return False
    return hasattr(args[1], method) and not hasattr(args[1], "__cuda_array_interface__")


def _fits(function: Any, args: tuple, kwargs: dict) -> bool:
    """True if the signature has these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _homes() -> tuple[str, ...]:
    """The folders of this library, of NumPy and, if it is loaded, of CuPy."""
    cupy = sys.modules.get("cupy")
    return _HOMES if cupy is None else (*_HOMES, str(Path(str(cupy.__file__)).parent))


def _file_of(error: BaseException) -> str:
    """The file in which the error was raised."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename


# --- annotations as the contract ------------------------------------------------------------------------------------------

_KINDS: dict[str, Any] = {
    "Tensor": lambda v: isinstance(v, Tensor),
    "Number": lambda v: isinstance(v, numbers.Number),
    "float": lambda v: isinstance(v, numbers.Real) or _is_number(v),
    "int": lambda v: isinstance(v, numbers.Integral) or _is_number(v, "iub"),
    "bool": lambda v: isinstance(v, (bool, np.bool_, numbers.Integral)),
    "str": lambda v: isinstance(v, str),
    "None": lambda v: v is None,
    "Sequence[int]": lambda v: isinstance(v, (Sequence, Tensor)) and all(map(_KINDS["int"], v)) and not isinstance(v, str),
    "Sequence[Tensor]": lambda v: isinstance(v, Sequence) and all(isinstance(t, Tensor) for t in v),
}
_WORDS = {"Sequence[int]": "tuple of ints", "Sequence[Tensor]": "tuple of Tensors", "tuple[int, ...]": "tuple of ints"}


def _is_number(value: Any, kinds: str = "iub" + FLOATING) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.dtype.kind in kinds


def _misfit(function: Any, args: tuple, kwargs: dict) -> str | None:
    """The error for the first argument that does not match its annotation, in PyTorch's words."""
    signature = inspect.signature(function)
    for position, (name, parameter) in enumerate(signature.parameters.items(), 1):
        packed = parameter.kind is parameter.VAR_POSITIONAL
        here = () if parameter.kind is parameter.KEYWORD_ONLY else args[position - 1 : position]
        given = args[position - 1 :] if packed else here or ((kwargs[name],) if name in kwargs else ())
        kinds = _alternatives(parameter.annotation, function.__globals__)
        for value in given:
            if not all(kind in _KINDS for kind in kinds) or any(_KINDS[kind](value) for kind in kinds):
                continue
            wanted = " or ".join(_WORDS.get(kind, kind) for kind in kinds)
            place = f" (position {position})" if packed or here else ""
            return f"{function.__name__}(): argument '{name}'{place} must be {wanted}, not {_kind_of(value)}"
    return None


def _alternatives(annotation: Any, names: dict[str, Any]) -> list[str]:
    """The alternatives of an annotation such as ``"int | Sequence[int] | None"``; aliases of the module are resolved."""
    found: list[str] = []
    for part in map(str.strip, str(annotation).split("|")):
        alias = names.get(part)
        if part not in _KINDS and alias is not None and "|" in str(alias):
            found += _alternatives(re.sub(r"(\w+\.)+", "", str(alias)), names)
        else:
            found.append(part)
    return found


def _kind_of(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"{type(value).__name__} of {', '.join(sorted({type(v).__name__ for v in value}))}"
    return type(value).__name__ + hint_for(value)


def hint_for(value: Any) -> str:
    """Words that say how one of PyTorch's tensors or networks becomes ours; "" for other values."""
    if type(value).__module__.partition(".")[0] != "torch":
        return ""
    return (
        " of PyTorch's: convert a network with from_torch(network), inside the function that predict() runs, and a tensor with "
        "tensor(values.numpy())"
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_describe, value))})"
    return f"{value!r:.80}"
