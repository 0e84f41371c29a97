"""A stand-in for ``torch.overrides``: classes and modes of published files may be defined; no function asks them."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import NotOfferedError


def has_torch_function(relevant_args: Any) -> bool:
    """Return False: no argument has a say in what a function does."""
    return False


class TorchFunctionMode:
    """A block in which calls of functions come to the mode first. It may be subclassed, and not entered.

    Raises (when it is entered):
        NotOfferedError: always.
    """

    def __enter__(self) -> NoReturn:
        raise NotOfferedError(f"overrides: {type(self).__name__} would not be called by any function: change the module")

    def __exit__(self, *exc: object) -> None:
        return None
