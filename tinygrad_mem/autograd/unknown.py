"""Unknown numbers: ``.item()`` returns them in a dry run and in a prediction of a PyTorch program, where no values exist.

The whole rule:

- What is computed from an unknown number is unknown: by Python's operators, by ``math``, by NumPy (``np.mean(losses)``), and by
  ops on tensors, whose results then have no known values. It keeps its kind: ``bool``, ``int``, ``float`` or ``complex``, since
  the dtype of a result depends on it. It is printed as ``unknown``, also in JSON.
- No program decides by it: its truth, a comparison, ``int(x)``, an index, a size and a key of a dict are refused. There are
  exceptions, which the prediction says: it is finite; a fraction is not equal to a number (``0 if total == 0 else x / total``);
  and :mod:`.questions` has two more.
- The largest of numbers of which one is unknown is unknown, too (``max(1, x)``, ``best = min(best, x)``).
- Code that needs a plain number gets 1, and the prediction says at which line, since a branch on it would not be noticed:
  ``float(x)``, an element of a NumPy array of numbers, C code of other libraries. Where ``%`` puts a number into a text, it is
  only printed, and nothing is said.

So an unknown number is no ``float``: C code reads a ``float`` without asking. But ``isinstance(x, float)`` is true, as programs
assert.
"""

from __future__ import annotations

import builtins
import json
import math
import operator
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache, reduce, wraps
from itertools import islice
from numbers import Integral, Number, Real
from types import FrameType, GeneratorType
from typing import Any, NoReturn

import numpy as np

from ..errors import DataDependenceError
from ..interrupts import cleanup, context, uninterrupted
from ..source import is_engine
from .questions import assumed, forget_answers, is_kept, prints, reader

DECIDE = (
    "For a decision, let the function take an argument `dry`, which is True in the dry run, and give it there the answer that "
    "takes more memory: `if dry or loss.item() < best:`. The least of several losses is torch.stack(losses).min()"
)
"""What a program writes where it would branch on a value."""
FINITE = "if the program asked whether a number is finite, the answer was yes"
UNEQUAL = "a fraction was assumed not to be equal to a number: values are not known"
INDEX = "an index or a size"
_PLAIN = (
    "a plain number is needed, and 1 was taken for one that is not known: a branch on it, or a size that is computed from it, "
    "would not be noticed. The result of tensor.item() stays unknown, and so does what operators, math and np.mean make of it"
)


def _computed(function: Callable[..., Any]) -> Any:
    """A method whose result is unknown, of the kind that ``function`` gives for numbers of these kinds."""

    def method(self: Unknown, *others: Any) -> Any:
        if not all(each is None or isinstance(each, Number) for each in others):
            return NotImplemented
        return self.another(_one_like(function(self.stated, *[each if each is None else _one_like(each) for each in others])))

    return method


def _part(name: str) -> Any:
    return property(_computed(operator.attrgetter(name)))


def _refusing(what: str) -> Any:
    def method(self: Unknown, *others: Any) -> Any:
        return self.refuse(what) if all(isinstance(each, Number) for each in others) else NotImplemented

    return method


def _checked(what: str) -> Any:
    """As :func:`_refusing`, but a check passes."""

    def method(self: Unknown, *others: Any) -> Any:
        if not all(isinstance(each, Number) for each in others):
            return NotImplemented
        frame = reader()
        if others and is_kept(frame):
            return self.another(True)
        answer, why = assumed(frame) or (None, "")
        if answer is None:
            self.refuse(what)
        self.say(why, frame)
        return answer

    return method


def _equal(answer: bool) -> Any:
    """As :func:`_checked`; where no check asks, a fraction is not equal to a number."""
    refuse = _checked("a comparison")

    def method(self: Unknown, other: Any) -> Any:
        frame = reader()
        number = type(self.stated) is float and isinstance(other, Number) and not isinstance(other, Unknown)
        if not number or is_kept(frame) or assumed(frame):
            return refuse(self, other)
        self.say(UNEQUAL, frame)
        return answer

    return method


def _one_like(number: Any) -> Any:
    """1 of the kind of ``number``."""
    if isinstance(number, (bool, np.bool_)):
        return True
    return 1 if isinstance(number, Integral) else 1.0 if isinstance(number, Real) else 1 + 0j


class Unknown:
    """One element of a tensor without values; the rule is at the top of this file.

    Args:
        stated: a number of the same kind that stands for it, where a plain one is needed: 1, which has a logarithm and an
            inverse.
    """

    __slots__ = ("stated",)

    def __init__(self, stated: Any = 1.0) -> None:
        self.stated = stated

    @classmethod
    def of(cls, kind: str, *args: Any) -> Unknown:
        """A number of a tensor whose dtype is of this kind, as NumPy names it; ``args``: of a subclass."""
        return cls(1 if kind in "iu" else {"b": True, "c": 1 + 0j}.get(kind, 1.0), *args)

    def another(self, stated: Any) -> Unknown:
        """A number that is computed from this one."""
        return Unknown(stated)

    def say(self, text: str, frame: FrameType) -> None:
        """Say what was assumed where ``frame`` reads the number."""
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)

    def plain(self, frame: FrameType) -> Any:
        """A plain number, for a ``frame`` that needs one."""
        if not prints(frame):
            self.say(_PLAIN, frame)
        return self.stated

    def finite(self, frame: FrameType) -> bool:
        """Answer ``frame``, which asks if the number is finite."""
        if not is_engine(frame.f_code):  # functions of this library check their arguments
            self.say(FINITE, frame)
        return True

    def refuse(self, what: str) -> NoReturn:
        """Raise the error of a decision."""
        raise DataDependenceError(
            f"{what} of a value that is not known in a dry run: the program would branch on it. It may be logged, summed and "
            f"printed. {DECIDE}"
        )

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return type(self.stated)

    def __reduce__(self) -> Any:
        return Unknown, (self.stated,)

    def __deepcopy__(self, memo: dict) -> Unknown:
        return self

    def __copy__(self) -> Unknown:
        return self

    def __repr__(self) -> str:
        return "unknown"

    hex = __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "unknown"

    def __float__(self) -> float:
        return float(self.plain(reader()))

    def __complex__(self) -> complex:
        return complex(self.plain(reader()))

    def __int__(self) -> int:
        return int(self.stated) if prints(reader()) else self.refuse("a whole number")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """A function of NumPy's, element by element with Python's operators."""
        if function in (np.isfinite, np.isnan, np.isinf):
            return self.finite(sys._getframe(1)) is (function is np.isfinite)
        one: Callable[[Any], Any] = float if "out" in options else lambda number: np.array(number, object)
        inputs = tuple(one(each) if isinstance(each, Unknown) else each for each in inputs)
        return getattr(function, method)(*inputs, **options)

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if isinstance(other, Number) else NotImplemented

    __rdivmod__ = __divmod__
    __add__ = __radd__ = _computed(operator.add)
    __sub__ = __rsub__ = _computed(operator.sub)
    __mul__ = __rmul__ = _computed(operator.mul)
    __truediv__ = __rtruediv__ = _computed(operator.truediv)
    __floordiv__ = __rfloordiv__ = _computed(operator.floordiv)
    __mod__ = __rmod__ = _computed(operator.mod)
    __pow__ = __rpow__ = _computed(operator.pow)
    __and__ = __rand__ = _computed(operator.and_)
    __or__ = __ror__ = _computed(operator.or_)
    __xor__ = __rxor__ = _computed(operator.xor)
    __lshift__ = __rlshift__ = _computed(operator.lshift)
    __rshift__ = __rrshift__ = _computed(operator.rshift)
    __neg__, __pos__, __invert__ = map(_computed, (operator.neg, operator.pos, operator.invert))
    __abs__, __round__, __floor__, __ceil__, __trunc__ = map(_computed, (abs, round, math.floor, math.ceil, math.trunc))
    conjugate, real, imag = _computed(operator.pos), _part("real"), _part("imag")
    # of an array of objects, NumPy calls these methods
    sqrt = cbrt = exp = exp2 = expm1 = log = log2 = log10 = log1p = rint = fabs = _computed(float)
    sin = cos = tan = sinh = cosh = tanh = arcsin = arccos = arctan = arcsinh = arccosh = arctanh = _computed(float)
    degrees = radians = deg2rad = rad2deg = _computed(float)

    __lt__, __le__, __gt__, __ge__ = (_checked("a comparison") for _ in range(4))
    __eq__, __ne__ = _equal(False), _equal(True)
    __bool__, __index__ = _checked("the truth"), _refusing(INDEX)
    __hash__ = _refusing("a key of a dict")  # type: ignore[assignment]
    is_integer, as_integer_ratio = _refusing("a comparison"), _refusing("a fraction")


def stated(value: Any) -> Any:
    """A value, or nested lists, with plain numbers in place of unknown ones; for C code that reads such numbers."""
    if type(value) in (list, tuple):
        return type(value)([stated(each) for each in value])
    return value.stated if isinstance(value, Unknown) else value


def has_unknown(value: Any) -> bool:
    """True if an unknown number is in ``value``, or in nested lists."""
    return any(map(has_unknown, value)) if isinstance(value, (list, tuple)) else isinstance(value, Unknown)


# --- math, json, max and min ----------------------------------------------------------------------------------------------

_ASKED = {"isfinite": True, "isnan": False, "isinf": False}
_BY_METHODS = {"floor", "ceil", "trunc", "prod", "factorial", "gcd", "lcm", "comb", "perm", "isqrt"}
"""Functions that use the methods of a number by themselves."""
_PAIRS = ("modf", "frexp")
_lock = threading.Lock()
_own: list[tuple[Any, str, Any]] = []
_runs = 0


@context
def followed() -> Iterator[None]:
    """Let functions of ``math`` return unknown numbers for unknown ones, and let ``json`` write them."""
    begun: list[bool] = []
    forget_answers()
    try:
        uninterrupted(_begin, begun)
        yield
    finally:
        if begun:
            cleanup(_end)


def _begin(begun: list[bool]) -> None:
    global _runs
    with _lock:
        if not _runs:
            _replace()
        _runs += 1
        begun.append(True)


def _end() -> None:
    global _runs
    with _lock:
        _runs -= 1
        while _own and not _runs:
            setattr(*_own.pop())


def _replace() -> None:
    changes: list[tuple[Any, str, Callable[..., Any]]] = [(json.JSONEncoder, "iterencode", _encoding_in_words)]
    functions = {name for name, function in vars(math).items() if callable(function) and name[0] != "_"}
    changes += [(math, name, _of_math) for name in functions - _BY_METHODS]
    changes += [(builtins, name, _of_several) for name in ("max", "min")]
    for owner, name, change in changes:
        own = getattr(owner, name)
        _own.append((owner, name, own))
        setattr(owner, name, change(own))


@cache
def _encoding_in_words(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def iterencode(self: Any, o: Any, *args: Any, **kwargs: Any) -> Any:
        return own(self, _in_words(o), *args, **kwargs)

    return iterencode


def _in_words(value: Any) -> Any:
    """A value for JSON, with texts in place of unknown numbers."""
    if isinstance(value, Unknown):
        return repr(value)
    if isinstance(value, dict):
        return {key: _in_words(each) for key, each in value.items()}
    return [_in_words(each) for each in value] if isinstance(value, (list, tuple)) else value


@cache
def _of_math(own: Callable[..., Any]) -> Callable[..., Any]:
    name = own.__name__

    @wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = [each for arg in args for each in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        number = next((each for each in given if isinstance(each, Unknown)), None)
        if number is None:
            return own(*args, **kwargs)
        if name in _ASKED:
            return number.finite(sys._getframe(1)) is _ASKED[name]
        if name == "isclose":
            return number.refuse("a comparison")
        return (number.another(1.0), number.another(1.0)) if name in _PAIRS else number.another(1.0)

    return function


@cache
def _of_several(own: Callable[..., Any]) -> Callable[..., Any]:
    """``max`` or ``min``: unknown, if it may be an unknown number."""

    @wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], GeneratorType) and not kwargs:  # not as a list: that would hold all
            found = list(islice(args[0], 1))
            return reduce(function, args[0], found.pop()) if found else own(found)
        given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        number = next((each for each in given if isinstance(each, Unknown)), None)
        if number is None or kwargs or not all(isinstance(each, Number) for each in given):
            return own(*args, **kwargs)
        return number.another(_one_like(sum(map(_one_like, given))))

    return function
