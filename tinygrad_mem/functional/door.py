"""The door of every public function: a call that fails by accident is refused in words.

A function checks what its arithmetic depends on and leaves the rest to Python and NumPy. What these raise (``'str' object
has no attribute 'ndim'``, ``ufunc 'add' did not contain a loop``) says nothing to the caller. Here a failed call is looked at
once more, against the annotations of the function. The first argument that does not match them is named, as PyTorch names
it. If all match, our own errors pass through; any other error is replaced by a description of the arguments. NumPy's names
of arguments (``axis``, ``keepdims``) and its numbers, which PyTorch takes too, are understood here, and so are sizes that are
given by name (``size=(2, 3)``). A call that succeeds pays 0.1 µs.

Here too is the one place that asks whether a region of ``amp.autocast`` wants a function to run in another dtype: PyTorch's
lists are of functions, so that ``dot`` and ``matmul`` may differ though one op computes both.
"""

from __future__ import annotations

import functools
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
from ..dtypes import FLOATING
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
    clear_frames,
)
from ..scope import local

_HOMES = (str(Path(__file__).parents[1]), str(Path(np.__file__).parent))
_UNDERSTOOD = (NotOfferedError, OutOfMemoryError, DataDependenceError, GraphError)  # the arguments were taken
_ACCIDENTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError)  # of Python's and NumPy's


def guard(*modules: ModuleType) -> None:
    """Put a door before every public function that ``modules`` define, wherever they name it."""
    doors: dict[int, Any] = {}
    for module in modules:
        own = [(n, f) for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
        for name, function in own:
            if not name.startswith("_") and id(function) not in doors:
                doors[id(function)] = _guarded(function)
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in doors:
                setattr(module, name, doors[id(value)])


def _guarded(function: Any) -> Any:
    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs) if local.autocast is None else _autocast(function, args, kwargs)
        except BaseException as error:
            plainly = _normalized(function, args, kwargs) if isinstance(error, Exception) else None
            refusal = None if plainly else _refusal(function, args, kwargs, error)
            if not plainly:
                del args, kwargs
                if refusal is None:
                    clear_frames(error)
                    raise
        if plainly:
            return door(*plainly[0], **plainly[1])
        assert refusal is not None
        try:
            raise refusal
        finally:
            del refusal  # its traceback holds this frame: no cycle, and nothing of the failed call is kept

    return door


def _autocast(function: Any, args: tuple, kwargs: dict) -> Any:
    """The call as the region wants it: cast arguments, and nothing else cast while it runs."""
    region = local.autocast
    cast = region.prepared(function, args, kwargs)
    if cast is None:
        return function(*args, **kwargs)
    local.autocast = None
    try:
        return function(*cast[0], **cast[1])
    finally:
        local.autocast = region


_NUMPYS_NAMES = {
    "split_size": "split_size_or_sections",
    "axis": "dim",
    "keepdims": "keepdim",
    "a": "input",
    "x": "input",
    "x1": "input",
    "x2": "other",
}


def _normalized(function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """The call in PyTorch's names of arguments and in Python's numbers; ``None`` where it is put so already."""
    parameters = inspect.signature(function).parameters
    meant = {key: _NUMPYS_NAMES[key] for key in kwargs if key not in parameters and _NUMPYS_NAMES.get(key) in parameters}
    packed = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), None)
    if packed in kwargs:  # zeros(size=(2, 3)), permute(x, dims=(1, 0)): a sequence by its name
        return (*args, kwargs[packed]), {key: value for key, value in kwargs.items() if key != packed}
    if not set(meant.values()).isdisjoint(kwargs):
        meant = {}
    named = {meant.get(key, key): value for key, value in kwargs.items()}
    plain_args = tuple(map(_plain, args))
    plain_named = {key: _plain(value) for key, value in named.items()}
    given = zip((*args, *named.values()), (*plain_args, *plain_named.values()), strict=True)
    return (plain_args, plain_named) if meant or any(before is not after for before, after in given) else None


def _plain(value: Any) -> Any:
    """NumPy's numbers, also in a list or a tuple, as Python's."""
    if isinstance(value, np.generic):
        plain = value.item()
        return float(plain) if isinstance(plain, np.generic) else plain  # a long double is its own item
    if type(value) in (list, tuple) and any(isinstance(each, np.generic) for each in value):
        return type(value)(map(_plain, value))
    return value


def _refusal(function: Any, args: tuple, kwargs: dict, error: BaseException) -> Exception | None:
    """The error to raise instead; ``None`` where ``error`` says it best, or came out of code of others."""
    meant = isinstance(error, TinygradMemError)
    if isinstance(error, _UNDERSTOOD) or not (meant or isinstance(error, _ACCIDENTS)):
        return None
    here = _file_of(error)
    if not meant and (here == __file__ or not _fits(function, args, kwargs)):  # the signature does not have these arguments
        return ArgumentTypeError(str(error).replace(f"{function.__qualname__}()", f"{function.__name__}()"))
    if not here.startswith(_homes()) and not here.endswith((".pyx", ".pxd", ".pxi", "stringsource>")):  # Cython's
        return None
    misfit = _misfit(function, args, kwargs)
    if misfit is not None:
        return ArgumentTypeError(misfit)
    if meant:
        return None
    if isinstance(error, OverflowError) and _narrow(error, args):  # PyTorch computes with another number then
        return ArgumentError(f"{function.__name__}(): {error}; convert the tensor to a dtype that holds it")
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    listed = ", ".join(f"{name} {_described(value)}" for name, value in given.items())
    kind = DimensionError if isinstance(error, IndexError) else ShapeError
    if max(_sizes(list(given.values())), default=0) >= _ENDLESS:
        return kind(f"{function.__name__}(): sizes and bytes of an array end below 2**63: found {listed}; choose smaller sizes")
    what = "these shapes and values"
    if type(error).__module__ == "numpy._core._exceptions" or "dtype" in str(error):
        kind, what = DTypeError, "these dtypes"
    return kind(f"{function.__name__}(): not possible with {what}: found {listed}")


_ENDLESS = 1 << 55  # elements: no machine has as many bytes, and with a few more of a kind there are 2**63


def _sizes(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _sizes(value)
        elif isinstance(value, (int, float)) and value == value:
            yield abs(value)


def _narrow(error: OverflowError, args: tuple) -> bool:
    """Whether it says of a number that it is out of the bounds of a tensor's dtype."""
    found = [f"out of bounds for {x.dtype}" for x in args if isinstance(x, Tensor)]
    return any(words in str(error) for words in found)


def _fits(function: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the signature has these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _homes() -> tuple[str, ...]:
    """The folders of ours, of NumPy and, where it is loaded, of CuPy: nothing here loads it."""
    cupy = sys.modules.get("cupy")
    return _HOMES if cupy is None else (*_HOMES, str(Path(str(cupy.__file__)).parent))


def _file_of(error: BaseException) -> str:
    """The file whose code raised the error."""
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
    """The first argument that is not what its annotation says, in PyTorch's words."""
    signature = inspect.signature(function)
    for position, (name, parameter) in enumerate(signature.parameters.items(), 1):
        packed = parameter.kind is parameter.VAR_POSITIONAL
        given = args[position - 1 :] if packed else args[position - 1 : position] or ((kwargs[name],) if name in kwargs else ())
        kinds = _alternatives(parameter.annotation, function.__globals__)
        for value in given:
            if not all(kind in _KINDS for kind in kinds) or any(_KINDS[kind](value) for kind in kinds):
                continue
            wanted = " or ".join(_WORDS.get(kind, kind) for kind in kinds)
            place = f" (position {position})" if position <= len(args) else ""
            return f"{function.__name__}(): argument '{name}'{place} must be {wanted}, not {_kind_of(value)}"
    return None


def _alternatives(annotation: Any, names: dict[str, Any]) -> list[str]:
    """``"int | Sequence[int] | None"`` as a list; aliases of the module are looked up."""
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
    return type(value).__name__


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_described, value))})"
    return f"{value!r:.80}"
