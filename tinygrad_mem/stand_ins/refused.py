"""Functions and classes that may be imported, and that refuse to run."""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError


class Refused:
    """A function or class of PyTorch's that is not offered; ``instead`` says what to do.

    Raises (when it is called):
        NotOfferedError: always.
    """

    def __init__(self, place: str, name: str, instead: str) -> None:
        self.__name__ = name
        self._sentence = f"{place}.{name}: {instead}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(self._sentence)

    with_args = __call__


def refused(place: str, names: str, instead: str) -> dict[str, Refused]:
    """Return name -> an object that refuses to run, for names separated by spaces."""
    return {name: Refused(place, name, instead) for name in names.split()}
