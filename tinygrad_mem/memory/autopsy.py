"""The part of an ``OutOfMemoryError`` beyond numbers: the biggest owners, and what would help.

A track that is running knows the owners. Without one the census finds them: the garbage collector knows every tensor,
module, node and optimizer, if not who asked for what.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .. import scope
from ..autograd.sparse import parts
from ..devices import opened
from ..scope import local
from ..text import visible
from .attribution import Category
from .census import Census
from .sizes import bytes_text
from .track import running_on

_OWNERS = 5
_HELP = {
    Category.ACTIVATION: "a smaller batch (memory.find_batch_size finds the largest), gradients accumulated over several "
    "small batches, no_grad() where no backward follows",
    Category.GRADIENT: "zero_grad(set_to_none=True) before the forward instead of after it",
    Category.OPTIMIZER_STATE: "an optimizer that keeps less: SGD with momentum one array a parameter, Adam two",
    Category.PARAMETER: "a smaller network, or half()",
    Category.INPUT: "a smaller batch, and one batch at a time on the device",
    Category.TEMPORARY: "a smaller batch; `del` of results that are not needed, and .item() where losses are summed",
}


def owners(device: Any) -> list[tuple[str, Category, int]]:
    """The owners of the device's pool with their bytes, and as what, largest first."""
    totals: Counter[tuple[str, Category]] = Counter()
    track = running_on(device)
    if track is not None:
        for block in track.live("end"):
            totals[block.owner, block.category] += block.rounded
    else:
        with scope.looking():
            for owner, category, size in _counted(device):
                totals[owner, category] += size
    return [(owner, category, size) for (owner, category), size in totals.most_common()]


def _counted(device: Any) -> list[tuple[str, Category, int]]:
    """The same without a track: every block, by the first of those that hold it."""
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
    for t in (*found.parameters, *found.tensors):
        if t._grad is not None:
            for part in parts(t._grad):
                hold(part.array, f"gradient of {names.get(id(t), 'a tensor')}", Category.GRADIENT)
    for node in found.nodes:
        for name, array in node.kept():
            hold(array, f"{node.op.__name__}, which keeps {name} for backward", Category.ACTIVATION)
    for t in found.tensors:
        hold(t.array, f"a tensor {list(t.shape)}", Category.TEMPORARY)
    nobody = "an op that runs", Category.TEMPORARY
    return [(*held.get(block.chunk.address, nobody), block.chunk.size) for block in found.blocks]


def report(pool: Any, requested: int) -> str:
    """The biggest owners of a device's memory, and what would help, in lines; nothing of a pool that is no device's."""
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
        hints.append("enough is free but in pieces: make large tensors before the small ones that stay")
    return "\n".join([*(lines if rows else []), *(f"What would help: {hint}." for hint in hints[:3])])


scope.autopsy = report
