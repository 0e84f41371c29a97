"""A network layer by layer: parameters by formula, bytes saved for backward, bytes of temporaries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..nn import Module
from ..techniques.quantized import QuantizedLinear
from .attribution import Category
from .moments import When

if TYPE_CHECKING:
    from .blocks import Block
    from .track import Track

_PASSING = (Category.TEMPORARY, Category.WORKSPACE)


@dataclass
class Layer:
    """One module of a network, without those inside it.

    Attributes:
        name: its path in the network; ``""`` is the network itself.
        kind: its class.
        output: the shape of its first output; ``()`` if it never ran or returned no tensor.
        formula: the number of its own parameters, from their shapes: ``"64 x 3 x 3 x 3 + 64"``.
        parameters: the number of its own parameters.
        kept: bytes that its ops save for backward.
        transient: the most bytes of temporaries and workspace of its ops at one time, forward or backward. A block that
            becomes a gradient or a saved output later does not count.
    """

    name: str
    kind: str
    output: tuple[int, ...] = ()
    formula: str = ""
    parameters: int = 0
    kept: int = 0
    transient: int = 0


def watch(model: Module) -> list[Layer]:
    """The layers of ``model``, in order. Their output shapes are filled in when it runs. A shared module is listed once."""
    layers = []
    for name, module in model.named_modules():
        sizes = [tuple(p.shape) for p in module._parameters.values() if p is not None]
        if isinstance(module, QuantizedLinear):  # its codes stand for a matrix
            sizes = [(module.out_features, module.in_features), *[tuple(p.shape) for p in (module.bias,) if p is not None]]
        layer = Layer(name, type(module).__name__, (), formula(sizes), sum(_count(size) for size in sizes))
        module.register_forward_hook(lambda module, inputs, output, layer=layer: _note(layer, output))
        layers.append(layer)
    return layers


def _note(layer: Layer, output: Any) -> None:
    if not layer.output and hasattr(output, "shape"):
        layer.output = tuple(output.shape)


def _count(size: tuple[int, ...]) -> int:
    total = 1
    for n in size:
        total *= n
    return total


def formula(sizes: list[tuple[int, ...]]) -> str:
    """``[(64, 3, 3, 3), (64,)]`` as ``"64 x 3 x 3 x 3 + 64"``; equal ones are counted: ``"2 x 64"``."""
    terms = [" x ".join(map(str, size)) or "1" for size in sizes]
    return " + ".join(f"{terms.count(t)} x {t}" if terms.count(t) > 1 else t for t in dict.fromkeys(terms))


def account(track: Track, layers: list[Layer], forward: When) -> list[Layer]:
    """Fill in bytes from the track of a run: those saved after the event ``forward``, and the temporaries of the whole run.

    Bytes of modules that are not among the layers, such as a loss, are not counted.
    """
    root = layers[0].kind
    by_path = {f"{root}.{layer.name}" if layer.name else root: layer for layer in layers}
    for block in track.live(forward):
        if block.category is Category.ACTIVATION and block.home in by_path:
            by_path[block.home].kept += block.rounded
    passing: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    events = len(track.log)
    for block in track.blocks():
        if block.module in by_path and block.category in _PASSING:
            passing[block.module].extend(_passing(block, events))
    for path, changes in passing.items():
        by_path[path].transient = _most(changes)
    return layers


def _passing(block: Block, events: int) -> list[tuple[int, int]]:
    """(event, change in bytes) for each time at which the block became a temporary or workspace, or stopped being one."""
    ends = [*(at for at, _ in block.categories[1:]), block.died if block.died is not None else events]
    changes = []
    for (start, category), end in zip(block.categories, ends, strict=True):
        if category in _PASSING:
            changes += [(start, block.rounded), (end, -block.rounded)]
    return changes


def _most(changes: list[tuple[int, int]]) -> int:
    """The highest running sum of the changes, in the order of their events. At one event, frees come before mallocs."""
    total = most = 0
    for _, change in sorted(changes):
        total += change
        most = max(most, total)
    return most
