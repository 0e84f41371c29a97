"""The log: facts in the order in which they happened, and nothing that could be computed from them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..scope import local


class Event(NamedTuple):
    """One fact.

    Attributes:
        kind: ``malloc``, ``free``, ``saved`` (an op kept the block for backward) or ``role`` (the block became ``role``).
        address: pool address of the block.
        requested, rounded: bytes asked for, and bytes taken from the pool; 0 where the kind has none.
        phase, module, op: what the thread was doing.
        role: the category that a ``role`` event names.
    """

    kind: str
    address: int
    requested: int
    rounded: int
    phase: str
    module: str
    op: str
    role: str


class Log:
    """A listener that writes the events of one device down, from whichever thread."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.events: list[Event] = []
        self._name = str(device)

    def malloc(self, device: Any, address: int, requested: int, rounded: int) -> None:
        if device == self._name:
            self._write("malloc", address, requested, rounded)

    def free(self, device: Any, address: int, rounded: int) -> None:
        if device == self._name:
            self._write("free", address, 0, rounded)

    def saved(self, node: Any, name: str, array: Any) -> None:
        self._note("saved", array, node.op.__name__)

    def role(self, array: Any, role: str) -> None:
        self._note("role", array, role)

    def _note(self, kind: str, array: Any, role: str) -> None:
        address = self.device.address(array) if self.device.owns(array) else None
        if address is not None:
            self._write(kind, address, 0, 0, role)

    def _write(self, kind: str, address: int, requested: int, rounded: int, role: str = "") -> None:
        # a free can run inside any other statement of this thread, also inside this one: append alone is atomic
        self.events.append(Event(kind, address, requested, rounded, local.phase, local.module, local.op, role))
