"""The second part of an ``OutOfMemoryError``'s text: the owners with most bytes, and what would help.

A running track knows the owners. Without one, a census finds the live tensors, modules, nodes and optimizers. It does not
know which op allocated a block.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .. import scope
from ..devices import opened
from ..scope import local
from ..text import visible
from .attribution import Category
from .census import Census
from .listener import Recorder
from .sizes import bytes_text
from .track import Track

_OWNERS = 5
_HELP = {
    Category.ACTIVATION: "a smaller batch (memory.find_batch_size finds the largest), gradients accumulated over several "
    "small batches, no_grad() where no backward follows",
    Category.GRADIENT: "zero_grad(set_to_none=True) before the forward instead of after it",
    Category.OPTIMIZER_STATE: "an optimizer with less state: SGD with momentum keeps one array for each parameter, Adam two",
    Category.PARAMETER: "a smaller network, or half()",
    Category.INPUT: "a smaller batch, and one batch at a time on the device",
    Category.TEMPORARY: "a smaller batch, `del` of results that are no longer needed, and .item() for losses that are summed",
}


def owners(device: Any) -> list[tuple[str, Category, int]]:
    """The owners of the pool's bytes, with their bytes and category, largest first."""
    totals: Counter[tuple[str, Category]] = Counter()
    logs = [each.log for each in scope.listeners if isinstance(each, Recorder) and each.device is device]
    if logs:
        for block in Track.of(logs[-1]).live("end"):  # the innermost track's
            totals[block.owner, block.category] += block.rounded
    else:
        with scope.scanning():
            for owner, category, size in _counted(device):
                totals[owner, category] += size
    return [(owner, category, size) for (owner, category), size in totals.most_common()]


def _counted(device: Any) -> list[tuple[str, Category, int]]:
    """The same without a track: each block, with its first holder."""
    found, names = Census(device), {}
    for root in found.roots:
        for tensors in (root.named_parameters, root.named_buffers):
            names.update({id(tensor): f"{root._root_name()}.{path}" for path, tensor in tensors()})
    held: dict[int, tuple[str, Category]] = {}

    def hold(array: Any, owner: str, category: Category) -> None:
        address = device.address(array)
        if address is not None:
            held.setdefault(address, (owner, category))

    for p in found.parameters:
        hold(p.array, names.get(id(p), "a parameter"), Category.PARAMETER)
    for b in found.buffers:
        hold(b.array, names.get(id(b), "a buffer"), Category.BUFFER)
    for s in found.states:
        hold(s.array, "an optimizer", Category.OPTIMIZER_STATE)
    for t, gradient in found.gradients:
        hold(gradient.array, f"gradient of {names.get(id(t), 'a tensor')}", Category.GRADIENT)
    for node in found.nodes:
        for name, array in node.kept():
            hold(array, f"{node.op.__name__}, which keeps {name} for backward", Category.ACTIVATION)
    for t in found.tensors:
        hold(t.array, f"a tensor {list(t.shape)}", Category.TEMPORARY)
    unknown = "the running op", Category.TEMPORARY
    return [(*held.get(block.chunk.address, unknown), block.chunk.size) for block in found.blocks]


def report(pool: Any, requested: int) -> str:
    """Lines with the owners of most of a device's memory, and what would help; ``""`` for a pool without a device."""
    where = next((device for device in (*opened(), local.dry) if device is not None and device.pool is pool), None)
    if where is None:
        return ""
    rows = owners(where)
    lines = ["The biggest owners:"]
    lines += [f"  {bytes_text(size):>12}  {visible(owner)} ({category})" for owner, category, size in rows[:_OWNERS]]
    kinds: Counter[Category] = Counter()
    for _, category, size in rows:
        kinds[category] += size
    hints = [
        f"{category} are {bytes_text(size)}: {_HELP[category]}" for category, size in kinds.most_common(2) if category in _HELP
    ]
    if pool.total_bytes() - pool.used_bytes() >= requested:
        hints.append("enough memory is free, but in separate pieces: allocate large tensors before small ones that stay")
    return "\n".join([*(lines if rows else []), *(f"What would help: {hint}." for hint in hints[:3])])


scope.autopsy = report
