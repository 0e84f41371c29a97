"""The identity of memory that tensors share."""

from __future__ import annotations

from typing import Any

from ..interrupts import lock


class Storage:
    """A piece of memory that tensors share: how often it was written in place, and by which op.

    Whoever writes in place counts it here, so that a write through a view is seen as well.
    """

    version = 0
    writer = ""
    constant: Any = None  # in a dry run, what the program wrote here itself: the version it holds for, address, bytes

    def written(self, by: str) -> None:
        """Somebody wrote the memory."""
        with lock:  # a signal's handler may write too
            self.version += 1
            self.writer = by

    @staticmethod
    def of(tensor: Any) -> Storage:
        """The tensor's, which is made when somebody first asks: one, though two threads ask at once."""
        if tensor._storage is None:
            with lock:
                if tensor._storage is None:
                    tensor._storage = Storage()
        return tensor._storage
