"""Copies of those gradients from a user's backward that the engine must not write into."""

from __future__ import annotations

import sys
import weakref

from ..ops.base import root_of
from .core import Node
from .gradients import copy


class Sharing:
    """Finds gradients returned by a user's backward to whose memory other references remain.

    The engine writes into gradients that it owns. A user may return a saved tensor, or keep a gradient on ctx. An array with
    another reference to it, directly or through a view, is copied before the engine gets it.
    """

    def __init__(self, incoming: list) -> None:
        self.grads = incoming  # kept until the end, so that both reference counts include it
        self.incoming = {id(g): g for g in incoming}
        self.roots = {id(r): r for r in map(root_of, incoming)}
        self.before = {key: _references([r]) for key, r in self.roots.items()}
        self.tensors: list[weakref.ref] = []

    def watch(self, tensors: list) -> None:
        """Note tensors that are about to be dropped. If one is alive later, the user keeps it."""
        self.tensors.extend(weakref.ref(t) for t in tensors if t is not None)

    def own(self, result: list, node: Node) -> tuple:
        """The arrays of ``result``, copied if other references to them exist. Empties ``result``."""
        arrays = [None if r is None or edge is None else r.array for r, edge in zip(result, node.edges, strict=True)]
        refs = [None if r is None else weakref.ref(r) for r in result]
        result.clear()
        kept = any(ref() is not None for ref in self.tensors) or self._grew(arrays)
        for i in range(len(arrays)):  # (enumerate's own tuple would count as a reference)
            array = arrays[i]
            if array is None:
                continue
            ref, alone = refs[i], _references([array]) <= _ALONE + 2  # arrays and array
            root = root_of(array)
            if id(root) in self.roots:
                shared = kept
            else:
                shared = not alone or (ref is not None and ref() is not None)
                shared = shared or (root is not array and _references([root]) > _ALONE + 2)  # array.base and root
            del root
            if shared:
                arrays[i] = copy(node.edges[i][0].device, array)
        return tuple(arrays)

    def _grew(self, arrays: list) -> bool:
        """True if there are more references to the incoming gradients than before, without those of ``arrays``."""
        for key, root in self.roots.items():
            mine = {id(a): 1 for a in arrays if a is not None and a.base is root and id(a) not in self.incoming}
            more = len(mine) + sum(a is root for a in arrays)
            if _references([root]) > self.before[key] + more:
                return True
        return False


def _references(one: list) -> int:
    return sys.getrefcount(one[0])


_ALONE = _references([object()])  # the count of an object with one reference, from the list
