"""One change to a valid call, and what two libraries make of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm
from tests.sturdy.calls import Call, Of
from tinygrad_mem.errors import TinygradMemError

HUGE = 1 << 62


@dataclass(frozen=True)
class Meta:
    """The tensor, on device meta."""

    of: Of


@dataclass(frozen=True)
class Misuse:
    """A call with one thing changed, and what that was."""

    call: Call
    what: str

    def __str__(self) -> str:
        return f"{self.call.name} {self.what}"


def _of_tensor(x: Of, several: bool) -> Iterator[tuple[str, Any]]:
    s = x.shape
    for kind in {"f", "i", "b"} - {x.kind}:
        yield f"dtype {kind}", replace(x, kind=kind, low=0.1, high=0.9 if kind == "f" else 3)
    yield "rank + 1", replace(x, shape=(2, *s))
    yield "0-d", replace(x, shape=())
    if s:
        yield "rank - 1", replace(x, shape=s[1:])
        yield "first + 1", replace(x, shape=(s[0] + 1, *s[1:]))
        yield "last + 1", replace(x, shape=(*s[:-1], s[-1] + 1))
        yield "no first", replace(x, shape=(0, *s[1:]))
        yield "no last", replace(x, shape=(*s[:-1], 0))
    if x.kind == "i":
        yield "values 99", replace(x, low=99)
        yield "values -99", replace(x, low=-99)
    if several:
        yield "on meta", Meta(x)
    for wrong in (None, "text", [1.0, 2.0]):
        yield repr(wrong), wrong


def _of_value(x: Any) -> Iterator[tuple[str, Any]]:
    others: list[Any] = []
    if isinstance(x, bool):
        others = ["text", None]
    elif isinstance(x, int):
        others = [-1, -9, 0, 9, HUGE, 1 << 70, 1.5, None, "text", (1, 1)]
    elif isinstance(x, float):
        others = [-1.0, 2, 1 << 70, math.nan, None, "text", (1.0,)]
    elif isinstance(x, str):
        others = ["nonsense", "", 3, None]
    elif x is None:
        others = ["text"]
    elif isinstance(x, (tuple, list)) and x and all(isinstance(n, int) for n in x):
        kind: Any = type(x)
        others = [kind(y) for y in ((), (x[0], *x), (9, *x[1:]), (-9, *x[1:]), (-1, *x[1:]), (0, *x[1:]), x[1:], (1.5, *x[1:]))]
        others += [kind((HUGE, *x[1:])), kind((None, *x[1:])), None, "text", 1.5]
    for y in others:
        yield repr(y), y


def _changed(value: Any, several: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Of):
        yield from _of_tensor(value, several)
        return
    yield from _of_value(value)
    if isinstance(value, (tuple, list)) and any(isinstance(v, (Of, tuple, list)) for v in value):
        yield "()", type(value)()
        yield "None", None
        for n, part in enumerate(value):
            for what, new in _changed(part, several):
                yield f"[{n}] {what}", type(value)((*value[:n], new, *value[n + 1 :]))


def _tensors(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_tensors, value))
    return isinstance(value, Of)


def misuses(call: Call) -> Iterator[Misuse]:
    """The call itself, then with each of its arguments changed, left out, or one too many."""
    several = _tensors((*call.args, *call.kwargs.values())) > 1
    yield Misuse(call, "as it is")
    for n, value in enumerate(call.args):
        for what, new in _changed(value, several):
            yield Misuse(replace(call, args=(*call.args[:n], new, *call.args[n + 1 :])), f"argument {n}: {what}")
    for key, value in call.kwargs.items():
        for what, new in _changed(value, several):
            yield Misuse(replace(call, kwargs={**call.kwargs, key: new}), f"{key}: {what}")
    if call.args:
        yield Misuse(replace(call, args=call.args[:-1]), "one argument less")
    yield Misuse(replace(call, args=(*call.args, *[1] * 9)), "nine arguments more")
    yield Misuse(replace(call, kwargs={**call.kwargs, "nonsense": 1}), "an unknown keyword")


# --- running it ---------------------------------------------------------------------------------------------------------


def made(value: Any, framework: Any, device: str, rng: np.random.Generator) -> Any:
    """The argument with the framework's tensors in it."""
    if isinstance(value, Meta):
        return framework.tensor(value.of.array(rng), device="meta")
    if isinstance(value, Of):
        array = value.array(rng)
        if value.kind == "i" and abs(value.low) == 99:
            array = array * 0 + int(value.low)
        return framework.tensor(array, device=device)
    if isinstance(value, (tuple, list)):
        return type(value)([made(v, framework, device, rng) for v in value])
    if isinstance(value, str) and value in ("float64", "int64"):
        return getattr(framework, value)
    return value


def function(framework: Any, name: str) -> Any:
    """What the framework calls by that name."""
    prefix, _, rest = name.rpartition(".")
    where = {"": framework, "F": framework.nn.functional, "T": framework.Tensor}[prefix]
    return getattr(where, rest)


@dataclass
class Outcome:
    """What came of a call: a result or an error."""

    result: Any
    error: BaseException | None


def arguments(misuse: Misuse, framework: Any, device: str = "cpu") -> tuple[list, dict]:
    """The call's arguments, with the framework's tensors; the same values every time."""
    rng = np.random.default_rng(0)
    args = [made(value, framework, device, rng) for value in misuse.call.args]
    return args, {key: made(value, framework, device, rng) for key, value in misuse.call.kwargs.items()}


def attempt(misuse: Misuse, framework: Any, args: list, kwargs: dict) -> Outcome:
    """Make the call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Outcome(function(framework, misuse.call.name)(*args, **kwargs), None)
        except Exception as error:
            return Outcome(None, error)


def raised_on_purpose(error: BaseException) -> bool:
    """Whether it is one of our own errors."""
    return isinstance(error, TinygradMemError)


_THEIR_ACCIDENTS = (AttributeError, ZeroDivisionError, AssertionError, UnboundLocalError)
_LOOSE = ("Overflow when unpacking", "has no len()", "tuple index out of range", "unsupported operand", "not supported between")


def same_class(ours: BaseException, theirs: BaseException) -> bool:
    """Whether ``except`` clauses written for PyTorch's error catch ours; what PyTorch raises by accident binds nobody."""
    if isinstance(theirs, _THEIR_ACCIDENTS) or any(words in str(theirs) for words in _LOOSE):
        return True
    if isinstance(theirs, NotImplementedError):
        return isinstance(ours, RuntimeError)  # its words for "not for this dtype"
    return isinstance(ours, (type(theirs), NotImplementedError))


def plain(result: Any) -> Any:
    """A result as NumPy arrays and Python values."""
    if isinstance(result, (tuple, list)) and not isinstance(result, (torch.Size, tm.Size)):
        return [plain(r) for r in result]
    if isinstance(result, (torch.Tensor, tm.Tensor)):
        return (tuple(result.shape), str(result.dtype)) if result.device.type == "meta" else result.detach().cpu().numpy()
    return tuple(result) if isinstance(result, tuple) else result


def agree(ours: Any, theirs: Any, values: bool = True) -> bool:
    """The same structure, shapes and dtypes, and, unless they are random, values."""
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(agree, ours, theirs, [values] * len(theirs)))
    if isinstance(theirs, np.ndarray):
        if not isinstance(ours, np.ndarray) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        return not values or np.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(theirs, float):
        return isinstance(ours, float) and (math.isclose(ours, theirs, rel_tol=1e-5) or (ours != ours and theirs != theirs))
    if isinstance(theirs, tuple) and len(theirs) == 2 and isinstance(theirs[1], str):
        return ours[0] == theirs[0] and ours[1] == theirs[1].removeprefix("torch.")
    return ours == theirs or str(ours) == str(theirs).removeprefix("torch.")
