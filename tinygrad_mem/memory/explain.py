"""Why a tensor's memory is alive: who holds it, in a sentence."""

from __future__ import annotations

from ..text import visible
from .attribution import Category
from .blocks import Block
from .log import Event

_IS = {
    "PARAMETER": "it is a parameter",
    "MASTER_WEIGHT": "it is a parameter's float32 master copy",
    "BUFFER": "a module holds it as a buffer",
    "OPTIMIZER_STATE": "the optimizer keeps it as state",
    "GRADIENT": "it is a gradient",
    "WEIGHT_CAST": "it is autocast's copy of a weight",
    "WORKSPACE": "a kernel works in it",
}


def sentence(block: Block, names: list[str]) -> str:
    """``block`` in a sentence; ``names`` are the variables that show it."""
    size = f"{block.requested:,} bytes" + (f" ({block.rounded:,} in the pool)" if block.rounded != block.requested else "")
    reasons = list(dict.fromkeys(_reason(holder) for holder in block.holders))
    if names:
        reasons.append(f"{_list([f'`{name}`' for name in names])} in your code show{'s' if len(names) == 1 else ''} it")
    if not reasons:
        reasons = ["something that this track cannot name holds it"]
    said = f"{block.name or 'It'} is {size} of {block.category}, {_birth(block)}; it is alive because {_list(reasons)}."
    return visible(said)


def _birth(block: Block) -> str:
    if block.category is Category.UNTRACKED or (not block.line and not block.op):
        return "there since before the track began"
    by = f"made by {block.op}" if block.op else "made"
    parts = (by, block.module and f"in {block.module}", block.line and f"at {block.line}", f"({block.phase})")
    return " ".join(part for part in parts if part)


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
