"""CUDA C's names of dtypes."""

from __future__ import annotations

_INTEGERS = {"b": "signed char", "B": "unsigned char", "h": "short", "i": "int", "l": "long long", "q": "long long"}
FLOATS = {"e": ("__half", "float"), "f": ("float", "float"), "d": ("double", "double")}
"""A floating dtype's character -> its type in memory, and the type of its arithmetic."""
NUMBERS = FLOATS | {kind: (name, name) for kind, name in _INTEGERS.items()}
TYPES = NUMBERS | {"?": ("bool", "bool")}
NAMES = {kind: name for kind, (name, _) in TYPES.items()}
"""A dtype's character -> its type in memory."""
