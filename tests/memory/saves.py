"""What the docstring of an op says that it saves, read and computed.

The sentence is "Saves nothing", or "Saves" and a list of names, each with its bytes where it is neither an argument nor a
result, and with its condition where there is one; it ends at the first ``.``, ``:`` or ``;``::

    Saves x if weight needs a gradient, and weight if x does; the gradient of the bias needs nothing.
    Saves x, target, weight if given, and norm (``max(4, x.itemsize)`` bytes) if ``reduction == "mean"``.

Between double backticks stands Python, over the arguments of ``forward`` and the result (``y``). An argument that is no array
(a number, ``None``) costs nothing.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from tinygrad_mem.ops.base import Op

_CODE = re.compile(r"``(.+?)``", re.S)
_PIECE = re.compile(r"(?:the )?(\w+)(?: \((@\d+) bytes\))?(?: if (@\d+|(\w+) needs a gradient|(\w+) does|given))?")


class Piece(NamedTuple):
    """One array: its name, the formula of its bytes or ``""``, and Python over ``needs`` that says whether it is kept."""

    name: str
    size: str
    condition: str


def pieces(op: type[Op]) -> list[Piece]:
    """The docstring of an op, read.

    Raises:
        ValueError: it does not say what it saves, or not in these words.
    """
    code: list[str] = []

    def hide(found: re.Match) -> str:
        code.append(" ".join(found[1].split()))
        return f"@{len(code) - 1}"

    text = " ".join(_CODE.sub(hide, inspect.cleandoc(op.__doc__ or "")).split())
    sentence = re.search(r"Saves (.+?)(?:[.:;](?: |$))", text)
    if sentence is None:
        raise ValueError(f"{op.__name__}: its docstring has no 'Saves ...' sentence")
    if sentence[1] == "nothing":
        return []
    found = []
    for part in re.split(r", and |, | and ", sentence[1]):
        match = _PIECE.fullmatch(part)
        if match is None:
            raise ValueError(f"{op.__name__}: 'Saves ... {part} ...' is not in the words of tests/memory/saves.py")
        name, size, condition, other, same = match.groups()
        who = other or same
        condition = f"needs[{who!r}]" if who else code[int(condition[1:])] if condition and condition[0] == "@" else "True"
        found.append(Piece(name, code[int(size[1:])] if size else "", condition))
    return found


@dataclass
class Run:
    """One run of an op: its arguments and results by name, whose gradients are wanted, and what it saved."""

    op: type[Op]
    names: dict[str, Any]
    needs: dict[str, bool]
    saved: dict[str, Any] = field(default_factory=dict)

    def expected(self) -> list[tuple[int, Any]]:
        """(bytes, the array itself where it is an argument or a result) of all that the docstring says of such a run."""
        found: list[tuple[int, Any]] = []
        for name, size, condition in pieces(self.op):
            if not eval(condition, {"math": math}, {**self.names, "needs": self.needs}):
                continue
            if size:
                found.append((eval(size, {"math": math}, self.names), None))
                continue
            value = self.names[name]
            arrays = value if isinstance(value, tuple) else (value,)
            found += [(a.nbytes, a) for a in arrays if isinstance(a, np.ndarray)]
        return found


@contextmanager
def recorded() -> Iterator[list[Run]]:
    """Every run of every op inside whose result is recorded for a backward."""
    runs: list[Run] = []
    forwards = {op: op.forward for op in Op.registry.values() if not op.__subclasses__() or inspect.isfunction(op.forward)}
    with pytest.MonkeyPatch.context() as patch:
        for op, forward in forwards.items():
            patch.setattr(op, "forward", staticmethod(_watched(op, forward, runs)))
        yield runs


_signature = cache(inspect.signature)  # of a forward, asked at each of its runs


def _watched(op: type[Op], forward: Any, runs: list[Run]) -> Any:
    def run(ctx: Any, *arrays: Any, **params: Any) -> Any:
        out = forward(ctx, *arrays, **params)
        if op is ctx.op and any(ctx.needs):
            signature = _signature(forward)
            bound = signature.bind(ctx, *arrays, **params)
            bound.apply_defaults()
            names = dict(bound.arguments)
            first, *others = out if isinstance(out, tuple) else (out,)
            names.update(zip(op.outputs, others or [first], strict=False))
            names.setdefault("y", first)
            needs = dict(zip(list(signature.parameters)[1:], ctx.needs, strict=False))
            runs.append(Run(op, names, needs, dict(ctx.saved)))
        return out

    return run
