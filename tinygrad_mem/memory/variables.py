"""The variables of the user's running code that refer to a tensor's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..autograd.tensor import Tensor
from ..source import is_engine

_FUNCTION = 0x1  # CO_OPTIMIZED: its locals are a copy that Python makes on request
_MANY = 1000  # the most entries of a list that are searched


def variables(device: Any, address: int) -> list[str]:
    """The variables of the running user code that refer to the block at ``address``: ``x``, ``outputs[3]``."""
    names: dict[str, None] = {}
    frame = sys._getframe(1)
    while frame is not None:
        if not is_engine(frame.f_code):
            seen = frame.f_locals
            for name, value in list(seen.items()):
                if not name.startswith("_"):
                    for path, tensor in _tensors(name, value):
                        if tensor.device is device and device.address(tensor.array) == address:
                            names[path] = None
            value = tensor = None
            if type(seen) is dict and frame.f_code.co_flags & _FUNCTION:
                seen.clear()  # the frame would keep the copy, and its tensors, until the function returns
        frame = frame.f_back
    return list(names)


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a variable: itself, or the entries of a list, a dict or an object, one level down."""
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, (list, tuple)):
        entries = [(f"{name}[{i}]", each) for i, each in enumerate(value[:_MANY])]
    elif isinstance(value, dict):
        entries = [(f"{name}[{key!r}]", each) for key, each in list(value.items())[:_MANY]]
    else:
        found = getattr(value, "__dict__", None)
        entries = [(f"{name}.{key}", each) for key, each in list(found.items())] if type(found) is dict else []
    yield from ((path, each) for path, each in entries if isinstance(each, Tensor))
