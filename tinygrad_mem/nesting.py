"""Values inside tuples, lists and dicts, as modules take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any


def rebuilt(value: Any, each: Callable[[Any], Any]) -> Any:
    """A tuple, list or dict like ``value`` with ``each(item)`` in place of its items; any other value itself.

    The result has the class of ``value``: a named tuple stays one, and a defaultdict keeps its factory.
    """
    if isinstance(value, dict):
        made = copy(value)
        made.update({key: each(item) for key, item in value.items()})
        return made
    if isinstance(value, (tuple, list)):
        items = [each(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``change(value)``; of a tuple, list or dict one like it, with ``change(leaf)`` for each leaf in it."""
    return rebuilt(value, partial(mapped, change=change)) if isinstance(value, (tuple, list, dict)) else change(value)


def leaves(value: Any) -> Iterator[Any]:
    """All that is in tuples, lists and dicts, however deep; any other value itself."""
    if isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(item)
    else:
        yield value
