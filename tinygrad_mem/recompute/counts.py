"""Counts of the ops that ran forward, and of those that ran again in backward."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .. import scope
from ..scope import local
from .frame import Checkpoint


class count_ops(scope.Listener):
    """``with count_ops() as ops:`` counts the ops that this thread runs inside, by name.

    ``memory.print_saved`` shows what is kept instead; there, a checkpoint has one row for each input.

    Attributes:
        forward: ops that ran in the forward.
        recomputed: ops that ran again in backward.

    >>> with count_ops() as ops:
    ...     model(x).sum().backward()
    >>> print(ops)
    """

    def __init__(self) -> None:
        self.forward: Counter[str] = Counter()
        self.recomputed: Counter[str] = Counter()

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        if node.op is not Checkpoint and scope.program() == self._program:
            if local.phase == "recompute":
                self.recomputed[node.op.__name__] += 1
            elif local.phase in ("user", "forward"):
                self.forward[node.op.__name__] += 1

    def skipped(self, node: Any) -> None:
        if scope.program() == self._program:
            self.recomputed[node.op.__name__] -= 1

    def __enter__(self) -> count_ops:
        self._program = scope.program()
        scope.listen(self)
        return self

    def __exit__(self, *exc: object) -> None:
        scope.unlisten(self)

    def __str__(self) -> str:
        width = max(map(len, (*self.forward, *self.recomputed, "all ops")))
        rows = [(name, self.forward[name], self.recomputed[name]) for name in {**self.forward, **self.recomputed}]
        rows.append(("all ops", self.forward.total(), self.recomputed.total()))
        lines = [f"{name:{width}} {ran:>9,} {again:>9,}" for name, ran, again in rows]
        return "\n".join([f"{'op':{width}} {'forward':>9} {'again':>9}", *lines])
