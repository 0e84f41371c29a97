"""What registering a hook gives back."""

from __future__ import annotations

from ..interrupts import counter

_next_key = counter(0)


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, and so does leaving it as a context."""

    __slots__ = ("_hooks", "key")

    def __init__(self, hooks: dict) -> None:
        self._hooks = hooks
        self.key = _next_key()

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks.pop(self.key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
