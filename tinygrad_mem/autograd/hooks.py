"""The handle of a registered hook."""

from __future__ import annotations

from typing import Any

from ..interrupts import counter

_next_key = counter(0)


class RemovableHandle:
    """Registers ``hook`` in ``hooks``. ``remove()`` removes it; so does the end of a ``with`` block of the handle."""

    __slots__ = ("_hooks", "key")

    def __init__(self, hooks: dict, hook: Any) -> None:
        self._hooks = hooks
        self.key = _next_key()
        hooks[self.key] = hook

    def remove(self) -> None:
        """Remove the hook. A second call does nothing."""
        self._hooks.pop(self.key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
