"""Living blocks, tensors and nodes, found without having listened: the garbage collector knows each.

Other threads go on meanwhile: their dictionaries are looked at in copies, which are made in one call of C.
"""

from __future__ import annotations

from typing import Any

from ..autograd.core import Node
from ..autograd.tensor import Tensor
from ..devices.pool import Block
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..optim.optimizer import Optimizer
from .alive import alive

KINDS: dict[type, tuple[str, ...]] = {
    Tensor: ("array", "device"),
    Node: ("saved", "op"),
    Module: ("_modules", "_buffers"),
    Optimizer: ("state",),
    Block: ("pool",),
}
"""What is looked for: the class, and attributes that say that one was made completely."""
COLLECTED = (Tensor, Node, Block)  # of which there are many, and few classes: modules and optimizers are known by themselves


class Census:
    """Everything that lives on ``device``.

    Attributes:
        blocks: arrays over the pool's blocks, one each; on ``cuda`` CuPy does not let them be found, and there are none.
        parameters, tensors: tensors there that are a :class:`Parameter`, and those that are not.
        buffers, states: tensors there that modules and optimizers hold.
        nodes: recorded nodes that still keep what they saved.
        roots: modules that are nobody's child.
    """

    def __init__(self, device: Any) -> None:
        tensors, nodes, modules, optimizers, blocks = _found()
        self.blocks = [b for b in blocks if b.pool is device.pool]
        here = [t for t in tensors if t.device is device]
        self.parameters = [t for t in here if isinstance(t, Parameter)]
        self.tensors = [t for t in here if not isinstance(t, Parameter)]
        self.buffers = [b for m in modules for b in m._buffers.copy().values() if b is not None and b.device is device]
        states = [v for o in optimizers for entries in o.state.copy().values() for v in entries.copy().values()]
        self.states = [v for v in states if isinstance(v, Tensor) and v.device is device]
        self.nodes = [n for n in nodes if n.device is device]
        children = {id(child) for m in modules for child in m._modules.copy().values()}
        self.roots = [m for m in modules if id(m) not in children]


def _found() -> tuple[list, ...]:
    """The living objects of each class, of those that were made completely."""
    collected = alive({kind for base in COLLECTED for kind in _subclasses(base)})
    things = [*collected, *Module._living.all(), *Optimizer._living.all()]
    found: dict[type, list] = {base: [] for base in KINDS}
    bases = {kind: next(base for base in KINDS if issubclass(kind, base)) for kind in {*map(type, things)}}
    for thing in things:
        base = bases[type(thing)]
        if all(hasattr(thing, sign) for sign in KINDS[base]):
            found[base].append(thing)
    return tuple(found.values())


def _subclasses(base: type) -> list[type]:
    return [base, *(kind for each in base.__subclasses__() for kind in _subclasses(each))]
