"""Stand-ins for ``torch.jit``, so that published files import and run: operations run as they are written."""

from __future__ import annotations

from typing import Any, Final, TypeVar
from typing import Optional as Optional

from ..nn.module import Module

F = TypeVar("F")
Final = Final
List, Dict, Tuple = list, dict, tuple
BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list  # a number, or so many of them: ``BroadcastingList2[int]``


class ScriptModule(Module):
    """A module: its methods run as they are written."""


def is_scripting() -> bool:
    """Return False: TorchScript compiles nothing, and traces no calls."""
    return False


is_tracing = is_scripting


def script(obj: F, *args: Any, **kwargs: Any) -> F:
    """Return the function or module itself: it runs as it is written."""
    return obj


def unused(fn: F) -> F:
    """Return the function itself."""
    return fn


export = script_method = script_if_tracing = _overload = _overload_method = _script_if_tracing = unused


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Return the function itself, as ``@ignore`` and as ``@ignore(drop=True)``."""
    return drop if callable(drop) else lambda fn: fn


def annotate(the_type: Any, the_value: F) -> F:
    """Return the value itself."""
    return the_value


def _assert(condition: Any, message: str) -> None:
    """``assert condition, message``, in a form that PyTorch can trace. Raises: AssertionError: the condition does not hold."""
    if not condition:
        raise AssertionError(message)
