"""``no_grad`` and related switches: they turn recording of ops on and off for the running thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..interrupts import signal_safe
from ..scope import local

__all__ = ("enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "set_grad_enabled")

F = TypeVar("F", bound=Callable[..., Any])


def _set(mode: bool) -> None:
    local.grad_enabled = mode and not local.inference
    if local.inference:  # nothing is recorded there, but is_grad_enabled() answers what was asked for
        local.inference = "grad" if mode else "no grad"


class _GradMode:
    """Sets grad mode on entry and restores it on exit. It also decorates functions and generators."""

    mode: bool

    def __init__(self) -> None:
        self._before: list[tuple[bool, str]] = []

    def __new__(cls, mode: Any = None) -> Any:
        self = object.__new__(cls)
        if not callable(mode):
            return self
        self.__init__()  # @no_grad, without parentheses
        return self(mode)

    def _clone(self) -> _GradMode:
        return type(self)()

    def __enter__(self) -> None:
        self._before.append((local.grad_enabled, local.inference))
        _set(self.mode)

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            before = self._before
        finally:
            local.grad_enabled, local.inference = self._before[-1]
        before.pop()

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                with self._clone():
                    source = function(*args, **kwargs)
                advance, what = source.send, None
                while True:  # the mode is on only while the generator's code runs, also after send() and throw()
                    try:
                        with self._clone():
                            item = advance(what)
                    except StopIteration as stop:
                        return stop.value
                    try:
                        advance, what = source.send, (yield item)
                    except GeneratorExit:
                        with self._clone():
                            source.close()
                        raise
                    except BaseException as error:
                        advance, what = source.throw, error

            return generator  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._clone():
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class no_grad(_GradMode):
    """Inside, ops are not recorded and nothing is saved for backward. ``with no_grad():`` or ``@no_grad()``."""

    mode = False


class enable_grad(_GradMode):
    """Inside, ops are recorded, also within a :class:`no_grad`; but not within an :class:`inference_mode`, as in PyTorch."""

    mode = True


class set_grad_enabled(_GradMode):
    """Sets grad mode at once, as in PyTorch; as a context it also restores it."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = bool(mode)
        self._initial = (local.grad_enabled, local.inference)
        _set(self.mode)

    def _clone(self) -> _GradMode:
        return enable_grad() if self.mode else no_grad()

    def __enter__(self) -> None:
        self._before.append(self._initial)
        _set(self.mode)

    def __call__(self, function: F) -> F:
        local.grad_enabled, local.inference = self._initial  # as a decorator: the mode is set in the function only
        return super().__call__(function)


class inference_mode(_GradMode):
    """As :class:`no_grad`. Tensors made inside can never be part of a recorded graph.

    ``inference_mode(False)`` leaves inference mode and records again.
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.enabled = bool(mode)
        self.mode = not self.enabled

    def _clone(self) -> _GradMode:
        return inference_mode(self.enabled)

    def __enter__(self) -> None:
        self._before.append((local.grad_enabled, local.inference))
        local.grad_enabled, local.inference = self.mode, "no grad" if self.enabled else ""


def is_grad_enabled() -> bool:
    """True if ops of this thread are recorded; in inference mode, if :class:`enable_grad` was entered there."""
    return local.grad_enabled or local.inference == "grad"


def is_inference_mode_enabled() -> bool:
    """True if this thread is in :class:`inference_mode`."""
    return bool(local.inference)
