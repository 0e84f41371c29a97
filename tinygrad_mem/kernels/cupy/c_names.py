"""CUDA C's names of dtypes."""

from __future__ import annotations

_PLAIN = {"f": "float", "d": "double", "?": "bool", "b": "signed char", "B": "unsigned char", "h": "short", "i": "int"}
_PLAIN |= {"l": "long long", "q": "long long"}
TYPES = {"e": ("__half", "float")} | {kind: (name, name) for kind, name in _PLAIN.items()}
"""A dtype's character -> its type in memory, and the type of its arithmetic."""
NAMES = {kind: name for kind, (name, _) in TYPES.items()}
"""A dtype's character -> its type in memory."""
