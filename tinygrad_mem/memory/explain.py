"""A sentence that says why a tensor's memory is alive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..source import is_engine
from ..text import visible
from .attribution import NOWHERE, Category
from .blocks import Block
from .log import Event, Kind
from .record import Record

_FUNCTION = 0x1  # CO_OPTIMIZED: its locals are a copy that Python makes on request
_MANY = 1000  # the most entries of a list that are searched
_OLDER = "allocated before the track began"
_IS = {
    "PARAMETER": "it is a parameter",
    "MASTER_WEIGHT": "it is a parameter's float32 master copy",
    "BUFFER": "a module holds it as a buffer",
    "OPTIMIZER_STATE": "the optimizer keeps it as state",
    "GRADIENT": "it is a gradient",
    "WEIGHT_CAST": "it is autocast's copy of a weight",
    "WORKSPACE": "a kernel uses it as workspace",
}


def explain(self: Record, tensor: Tensor | Block) -> str:
    """A sentence that says who holds the tensor's memory, and why. For a block of this track: its life, and its roles.

    Raises:
        ValueError: the track has ended, the tensor is on another device, or its memory does not come from the pool.
    """
    if isinstance(tensor, Block):
        return _life(self, tensor)
    if self._device is None:
        raise ValueError("explain: this track was read from a file; it has no tensors of this process")
    if not self.running:
        raise ValueError("explain: the track has ended, and its addresses may have been reused; call explain while it runs")
    address = self._device.address(tensor.array) if tensor.device is self._device else None
    if address is None:
        raise ValueError(
            f"explain: the track records {self.device}, the tensor {list(tensor.shape)} is on {tensor.device}"
            f"{', in memory of another pool' if str(tensor.device) == self.device else ''}"
        )
    found = [block for block in self.live("end") if block.address == address]
    if not found:
        raise ValueError("explain: this memory is older than the track, which has no record of it; begin the track earlier")
    return _sentence(found[0], _variables(self._device, address))


def _life(track: Record, block: Block) -> str:
    """The text about ``block``: where it was allocated and freed, as far as the track knows now."""
    changes = track.timeline().attribution
    ended = np.flatnonzero((changes.block == block.born) & (changes.after == NOWHERE))
    what = "" if block.category is Category.UNKNOWN else f" of {block.category}"
    birth = _OLDER if track.log[block.born].kind is Kind.OLDER else _birth(block)
    end = "it is there at the end"
    if len(ended):
        event = track.log[int(ended[0])]
        end = " ".join(("it was freed", *_where(event.line, event.phase))) + f", {ended[0] - block.born:,} events later"
    reasons = [_reason(holder) for holder in block.holders] or ([f"its category is {block.deduced}"] if block.deduced else [])
    said = f"{block.name or 'It'} is {_size(block)}{what}, {birth}; {end}"
    return visible("; ".join([said, *dict.fromkeys(reasons)]) + ".")


def _where(line: str, phase: str) -> list[str]:
    """The place of an event in words, as far as it is known."""
    return [*([f"at {line}"] if line else []), *([] if phase == "unknown" else [f"({phase})"])]


def _size(block: Block) -> str:
    return f"{block.requested:,} bytes" + (f" ({block.rounded:,} in the pool)" if block.rounded != block.requested else "")


def _sentence(block: Block, names: list[str]) -> str:
    """A sentence about ``block``; ``names`` are the variables that refer to it."""
    reasons = list(dict.fromkeys(_reason(holder) for holder in block.holders))
    if names:
        reasons.append(f"{_list([f'`{name}`' for name in names])} in your code refer{'s' if len(names) == 1 else ''} to it")
    if not reasons:
        reasons = ["something holds it that this track cannot name"]
    older = block.category is Category.UNTRACKED or (not block.line and not block.op)
    birth = _OLDER if older else _birth(block)
    said = f"{block.name or 'It'} is {_size(block)} of {block.category}, {birth}; it is alive because {_list(reasons)}."
    return visible(said)


def _birth(block: Block) -> str:
    by = f"made by {block.op}" if block.op else "made"
    return " ".join([by, *([f"in {block.module}"] if block.module else []), *_where(block.line, block.phase)])


def _reason(holder: Event) -> str:
    if holder.role == "ACTIVATION":
        where = holder.module and f" in {holder.module}"
        at = holder.line and f" at {holder.line}"
        return f"{holder.op}{where} keeps it as {holder.note!r} for its backward{at}"
    if holder.role == "GRADIENT" and holder.note:
        return f"it is the gradient of {holder.note}"
    if holder.role == "OPTIMIZER_STATE" and holder.note:
        return f"the optimizer keeps it as state of {holder.note}"
    if holder.role == "WEIGHT_CAST" and holder.note:
        return f"it is autocast's copy of {holder.note}"
    return _IS.get(holder.role, f"it is {holder.role}")


def _list(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _variables(device: Any, address: int) -> list[str]:
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
