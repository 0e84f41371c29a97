"""A network layer by layer: parameters by formula, bytes saved for backward, bytes of temporaries."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..nn import Module
from ..techniques.quantized import QuantizedLinear
from .attribution import CATEGORIES, NOWHERE, Category
from .record import Record
from .timeline import When

_PASSING = (Category.TEMPORARY, Category.WORKSPACE)


@dataclass
class Layer:
    """One module of a network, without those inside it."""

    name: str  # its path in the network; "" is the network itself
    kind: str  # its class
    output: tuple[int, ...] = ()  # the shape of its first output; () if it never ran or returned no tensor
    formula: str = ""  # the number of its own parameters, from their shapes: "64 x 3 x 3 x 3 + 64"
    parameters: int = 0  # the same as a number
    kept: int = 0  # bytes that its ops save for backward
    # the most bytes of temporaries and workspace of its ops at one time, forward or backward, without blocks that become a
    # gradient or a saved output later
    temporary: int = 0


def watch(model: Module) -> list[Layer]:
    """The layers of ``model``, in order. Their output shapes are filled in when it runs. A shared module is listed once."""
    layers = []
    for name, module in model.named_modules():
        sizes = [tuple(p.shape) for p in module._parameters.values() if p is not None]
        if isinstance(module, QuantizedLinear):  # its codes encode a matrix
            sizes = [(module.out_features, module.in_features), *[tuple(p.shape) for p in (module.bias,) if p is not None]]
        layer = Layer(name, type(module).__name__, (), formula(sizes), sum(map(prod, sizes)))
        module.register_forward_hook(lambda module, inputs, output, layer=layer: _note(layer, output))
        layers.append(layer)
    return layers


def _note(layer: Layer, output: Any) -> None:
    if not layer.output and isinstance(output, Tensor):
        layer.output = tuple(output.shape)


def formula(sizes: list[tuple[int, ...]]) -> str:
    """``[(64, 3, 3, 3), (64,)]`` as ``"64 x 3 x 3 x 3 + 64"``; equal ones are counted: ``"2 x 64"``."""
    terms = [" x ".join(map(str, size)) or "1" for size in sizes]
    return " + ".join(f"{terms.count(t)} x {t}" if terms.count(t) > 1 else t for t in dict.fromkeys(terms))


def account(track: Record, layers: list[Layer], forward: When) -> list[Layer]:
    """Fill in bytes from the track of a run: those saved after the event ``forward``, and the temporaries of the whole run.

    Bytes of modules that are not among the layers, such as a loss, are not counted.
    """
    root = layers[0].kind
    by_path = {f"{root}.{layer.name}" if layer.name else root: layer for layer in layers}
    for block in track.live(forward):
        if block.category is Category.ACTIVATION and block.home in by_path:
            by_path[block.home].kept += block.rounded
    for path, most in _temporary(track).items():
        if path in by_path:
            by_path[path].temporary = most
    return layers


def _temporary(track: Record) -> dict[str, int]:
    """For each module, the most bytes of temporaries and workspace that it asked for, at one time."""
    born, before, after, size = track.timeline().attribution
    passing = np.array([category in _PASSING for category in CATEGORIES] + [False] * (NOWHERE + 1 - len(CATEGORIES)))
    last, held = np.full(len(born) + 1, NOWHERE), after != NOWHERE
    last[born[held]] = after[held]  # the last category of each block, which it had when it was freed
    change = (passing[after].astype(np.int64) - passing[before]) * size
    events = np.flatnonzero((change != 0) & (born >= 0) & passing[last[born]])
    module = track.log.column("module")[born[events]]
    order = np.argsort(module, kind="stable")
    starts = np.flatnonzero(np.diff(module[order], prepend=-1))
    total = np.cumsum(change[events][order])
    most = np.maximum.reduceat(total, starts) if len(starts) else total
    before_it = np.append(0, total)[starts]  # of the modules before it in the order
    return {track.log.texts[code]: int(n) for code, n in zip(module[order][starts], most - before_it, strict=True)}
