"""The result of ``.item()`` in a dry run: an unknown number. It can be summed and printed, but no program can branch on it."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import DataDependenceError

DECIDE = (
    "For a decision, let the function take an argument `dry`, which is True in the dry run, and give it there the answer that "
    "takes more memory: `if dry or loss.item() < best:`. The least of several losses is torch.stack(losses).min()"
)
"""What a program writes where it would branch on a value."""


def _refuse(what: str) -> Any:
    def method(self: Unknown, *args: Any) -> NoReturn:
        raise DataDependenceError(
            f"{what} of a value that is not known in a dry run: the program would branch on it. It may be logged, summed and "
            f"printed. {DECIDE}"
        )

    return method


def _unknown(self: Unknown, *args: Any) -> Unknown:
    return self


class Unknown(float):
    """One element of a tensor without values. As a plain ``float`` it is 1.0, which has a logarithm and an inverse."""

    __slots__ = ()

    def __new__(cls) -> Unknown:
        return super().__new__(cls, 1.0)

    def __repr__(self) -> str:
        return "unknown"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "unknown"

    __bool__, __int__, __index__, __trunc__ = map(_refuse, ("the truth", "a whole number", "an index", "a whole number"))
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = (_refuse("a comparison") for _ in range(6))
    __hash__ = float.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _unknown
    __neg__ = __pos__ = __abs__ = _unknown
    __round__ = __floor__ = __ceil__ = _unknown  # type: ignore[assignment] (they are whole numbers elsewhere)
