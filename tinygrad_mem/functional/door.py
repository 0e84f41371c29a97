"""``@public``: the decorator of every public function. It registers the function's public names and handles its calls.

Before a call it checks whether a region of ``amp.autocast`` casts the function's arguments; that takes 0.1 µs. PyTorch's rules
for casts are per function, not per op: ``dot`` and ``matmul`` may differ, although one op computes both. If a call fails,
``refusal.py`` explains the error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

from ..autograd.tensor import Tensor
from ..errors import clear_frames
from ..scope import local
from .refusal import answers, normalized, refusal

F = TypeVar("F", bound=Callable | property)


class Policy(Enum):
    """The rule for casting a function's floating arguments under autocast. float64 arguments are not cast.

    If a function has a policy, nothing that it calls is cast again. If it has none, dtypes are promoted as usual, and functions
    that it calls may have policies.
    """

    LOWER = "cast to the region's dtype"
    FLOAT32 = "cast to float32"
    FLOAT32_RESULT = "as they are; the result is float32, unless the call names a dtype"
    WIDEST = "cast to the widest dtype among them"
    FIRST = "cast to what the region's dtype and that of the first of them promote to"
    AS_IS = "as they are, also in what the function calls"
    REFUSED = "an error: what the function computes does not fit half precision"


LOWER, FLOAT32, FLOAT32_RESULT, WIDEST, FIRST, AS_IS, REFUSED = Policy

PUBLIC: dict[str, dict[str, Any]] = {"torch": {}, "nn.functional": {}, "linalg": {}, "special": {}}
"""Place -> name -> function. Methods are added to ``Tensor`` itself."""
POLICIES: dict[str, dict[Any, Policy]] = {"cpu": {}, "cuda": {}}
"""Device type -> function -> policy."""


def public(*names: str, cpu: Policy | None = None, cuda: Policy | None = None, through: str = "") -> Callable[[F], F]:
    """Make a function public. A function without a docstring is the in-place form of another.

    Args:
        names: its places in PyTorch (``"torch"``, ``"nn.functional"``, ``"linalg"``, ``"special"``, ``"Tensor"``), and the name
            there if it differs (``"torch.clip"``, ``"Tensor.__add__"``). No names: only layers call it.
        cpu: the policy of autocast on the CPU; ``None``: no cast.
        cuda: the same on a GPU.
        through: what an in-place form takes besides, for its docstring.
    """

    def decorated(function: F) -> F:
        door: Any = _door(function) if isinstance(function, FunctionType) else function
        if door.__doc__ is None and sys.flags.optimize < 2:  # with -OO nothing has a docstring
            door.__doc__ = f"In-place form of :func:`{door.__name__.removesuffix('_')}`{through and f', through {through}'}."
        for name in names:
            place, own = (name, door.__name__) if name == "Tensor" or name in PUBLIC else name.rsplit(".", 1)
            if place == "Tensor":
                setattr(Tensor, own, door if own not in _REFLECTED else _operator(door, function, _REFLECTED[own]))
            else:
                PUBLIC[place][own] = door
        for device, policy in (("cpu", cpu), ("cuda", cuda)):
            if policy is not None:
                POLICIES[device][function] = policy
        return door

    return decorated


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_COMPARISONS = {
    "__lt__": "__gt__",
    "__le__": "__ge__",
    "__gt__": "__lt__",
    "__ge__": "__le__",
    "__eq__": "__eq__",
    "__ne__": "__ne__",
}
_REFLECTED = _COMPARISONS | {f"__{i}{name}__": f"__r{name}__" for name in _ARITHMETIC for i in ("", "i")}
"""Operator -> the method of the other operand that Python calls if the operator returns ``NotImplemented``."""


def _operator(door: Any, function: Any, reflected: str) -> Any:
    """The door of an operator. It returns ``NotImplemented`` for an operand of a type that no op takes."""
    operator = _door(function, reflected)
    operator.__doc__ = door.__doc__
    return operator


def _door(function: Any, reflected: str = "") -> Any:
    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs) if local.autocast is None else _autocast(function, args, kwargs)
        except BaseException as error:
            if reflected and isinstance(error, TypeError) and answers(args, reflected):
                return NotImplemented
            plainly = normalized(function, args, kwargs) if isinstance(error, Exception) else None
            refused = None if plainly else refusal(function, args, kwargs, error)
            if not plainly:
                del args, kwargs
                if refused is None:
                    clear_frames(error)
                    raise
        if plainly:
            return door(*plainly[0], **plainly[1])
        assert refused is not None
        try:
            raise refused
        finally:
            del refused  # the traceback refers to this frame: avoid a cycle, and keep nothing of the failed call

    return door


def _autocast(function: Any, args: tuple, kwargs: dict) -> Any:
    """The call with arguments cast by the region, and no other casts while it runs."""
    region = local.autocast
    cast = region.prepared(function, args, kwargs)
    if cast is None:
        return function(*args, **kwargs)
    local.autocast = None
    try:
        return function(*cast[0], **cast[1])
    finally:
        local.autocast = region
