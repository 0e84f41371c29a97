"""Live blocks, tensors and nodes that were made before a track began, found through the garbage collector.

Other threads go on running. So a dictionary is copied, in one call of C, before it is read.
"""

from __future__ import annotations

from typing import Any

from ..autograd.core import Node
from ..autograd.gradients import parts
from ..autograd.node_hooks import TrackedSaved
from ..autograd.tensor import Tensor
from ..devices.pool import Block
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..optim.optimizer import Optimizer
from ..optim.state import tensors as state_tensors
from ..scope import Listener
from .alive import alive

KINDS: dict[type, tuple[str, ...]] = {
    Tensor: ("array", "device"),
    Node: ("saved", "op"),
    Module: ("_modules", "_buffers"),
    Optimizer: ("state",),
    Block: ("pool",),
}
"""The classes to find, and the attributes that a complete object of each has."""
COLLECTED = (Tensor, Node, Block)  # modules and optimizers are not here: they keep lists of themselves


class Census:
    """All live objects on ``device``.

    Attributes:
        blocks: one array for each of the pool's blocks; on ``cuda`` none, because CuPy does not list them.
        parameters, tensors: tensors that are a :class:`Parameter`, and other tensors.
        gradients: (tensor, gradient) pairs; a sparse gradient has two, for its indices and its values.
        buffers, states: tensors that modules hold as buffers, and optimizers as state.
        nodes: recorded nodes that still have saved arrays.
        roots: modules that no other module contains.
    """

    def __init__(self, device: Any) -> None:
        tensors, nodes, modules, optimizers, blocks = _found()
        self.blocks = [b for b in blocks if b.pool is device.pool]
        here = [t for t in tensors if t.device is device]
        self.parameters = [t for t in here if isinstance(t, Parameter)]
        self.tensors = [t for t in here if not isinstance(t, Parameter)]
        self.gradients = [(t, part) for t in here if t._grad is not None for part in parts(t._grad)]
        self.buffers = [b for m in modules for b in m._buffers.copy().values() if b is not None and b.device is device]
        states = [v for o in optimizers for entries in o.state.copy().values() for _, v in state_tensors(entries.copy())]
        self.states = [v for v in states if v.device is device]
        self.nodes = [
            n for n in nodes if n.device is device and n.remembers
        ]  # others report themselves when they have saved all
        children = {id(child) for m in modules for child in m._modules.copy().values()}
        self.roots = [m for m in modules if id(m) not in children]

    def report(self, listener: Listener) -> None:
        """Report each role to ``listener`` as if it had just begun, and each network as if it were about to run."""
        for role, tensors in (("PARAMETER", self.parameters), ("BUFFER", self.buffers), ("OPTIMIZER_STATE", self.states)):
            for tensor in tensors:
                listener.role(tensor.array, role, tensor)
        for tensor, part in self.gradients:
            listener.role(part.array, "GRADIENT", tensor if part is tensor._grad else part, tensor)
        for node in self.nodes:
            TrackedSaved.of(node)
            for name, array in node.kept():
                listener.saved(node, name, array)
        for root in self.roots:
            listener.called(root)


def _found() -> tuple[list, ...]:
    """The complete live objects of each class."""
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
