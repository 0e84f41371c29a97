"""What registering a hook gives back."""

from __future__ import annotations


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, and so does leaving it as a context."""

    __slots__ = ("_hooks", "key")
    _next = 0

    def __init__(self, hooks: dict) -> None:
        self._hooks = hooks
        self.key = RemovableHandle._next
        RemovableHandle._next += 1

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks.pop(self.key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
