"""Functions of PyTorch that are replaced in the thread of a prediction, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import get_ident
from typing import Any

import torch

from ...errors import NotOfferedError
from ...interrupts import context

Change = tuple[Any, dict[str, Any]]
"""A module or a class, and by name what replaces its functions."""
_INHERITED = object()


def _lacking(*args: Any, **kwargs: Any) -> None:
    raise AttributeError("this build of PyTorch has no CUDA")


@context
def patched(*changes: Change) -> Iterator[None]:
    """Replace functions of modules and classes in this thread; other threads get their own."""
    mine, own = get_ident(), []
    try:
        for owner, name, answer in [(owner, *each) for owner, answers in changes for each in answers.items()]:
            if hasattr(owner, name) or owner in (torch._C, torch.cuda):  # a build without CUDA lacks some of them
                found: Any = getattr(owner, name, _lacking)
                own.append((owner, name, vars(owner).get(name, _INHERITED)))
                both: Any = _either_type if isinstance(found, type) else _EitherItems if isinstance(found, tuple) else _either
                setattr(owner, name, both(mine, answer, found))
        yield
    finally:
        for owner, name, function in reversed(own):
            if function is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, function)


def handled(watch: Any, owner: Any, **handlers: Callable[..., Any]) -> Change:
    """A change for :func:`patched`: handlers get ``watch`` and the owner's own function before their arguments."""
    return owner, {name: partial(handler, watch, getattr(owner, name)) for name, handler in handlers.items()}


def holders(owner: Any, names: Iterable[str]) -> list[tuple[Any, str]]:
    """All modules that hold a function of ``owner`` by its name: the one that defines it, and those that import it."""
    own = {name: getattr(owner, name) for name in names}
    members = [(each, getattr(each, "__dict__", {})) for each in [*sys.modules.values()]]
    found = [(each, kept) for each, kept in members if not kept.keys().isdisjoint(own)]  # a few of thousands
    return [(each, name) for each, kept in found for name, function in own.items() if kept.get(name) is function]


def refused(why: str) -> Callable[..., Any]:
    """A function that raises an error when it is called."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(why)

    return refuse


def _either(thread: int, answer: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (answer if get_ident() == thread else own)(*args, **kwargs)

    return call


def _either_type(thread: int, answer: Any, own: Any) -> Any:
    """A type that makes ``answer`` objects in one thread and ``own`` in others; both are instances of it."""

    class Either(type):  # not ``type(own)``: pybind11's would keep each type that is made, and all that the type refers to
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return (answer if get_ident() == thread else own)(*args, **kwargs)

        def __instancecheck__(self, value: object) -> bool:
            return isinstance(value, (own, answer) if isinstance(answer, type) else own)

        def __subclasscheck__(self, kind: type) -> bool:
            return issubclass(kind, (own, answer) if isinstance(answer, type) else own)

    return Either(own.__name__, (), {})


class _EitherItems(Sequence):
    """The items of ``answer()`` in one thread, and those of ``own`` in others."""

    def __init__(self, thread: int, answer: Callable[[], Sequence], own: Sequence) -> None:
        self._thread, self._answer, self._own = thread, answer(), own

    def _sequence(self) -> Sequence:
        return self._answer if get_ident() == self._thread else self._own

    def __getitem__(self, index: Any) -> Any:
        return self._sequence()[index]

    def __len__(self) -> int:
        return len(self._sequence())
