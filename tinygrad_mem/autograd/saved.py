"""Saved arrays as users and trackers see them: packed by saved-tensor hooks, and reported when a node lets go of them.

A node without hooks keeps plain arrays in a dict, and nothing here runs. While somebody listens, the dict is a
:class:`TrackedSaved`.
"""

from __future__ import annotations

from typing import Any

from .. import scope
from ..errors import GraphError
from ..scope import local
from .storage import Storage
from .tensor import Tensor


def tell_saved(node: Any) -> None:
    """Tell listeners what ``node`` keeps; they will hear when it is let go."""
    TrackedSaved.of(node)
    for name, array in node.kept():
        for listener in scope.listeners:
            listener.saved(node, name, array)


class TrackedSaved(dict):
    """The saved arrays of a node while somebody listens: it reports when they are released."""

    __slots__ = ("line", "module", "op")
    op: str

    @staticmethod
    def of(node: Any) -> None:
        """Let ``node`` keep what it saved in one of these."""
        if type(node.saved) is not TrackedSaved:
            node.saved = TrackedSaved(node.saved)
            node.saved.op, node.saved.module, node.saved.line = node.op.__name__, node.module, node.line

    def pop(self, name: str) -> Any:
        value = dict.pop(self, name)
        self._report_released(name, value)
        return value

    def _report_released(self, name: str, value: Any) -> None:
        if scope.listeners:
            for array in contents(value):
                for listener in scope.listeners:
                    listener.released(self, name, array)

    def __del__(self) -> None:
        for name, value in self.items():
            self._report_released(name, value)


def contents(value: Any) -> list:
    """The arrays that a saved entry keeps alive: itself, or the tensors that a hook made of it."""
    if not isinstance(value, PackedArray):
        return [value]
    content = value.content
    return [t.array for t in (content if isinstance(content, (tuple, list)) else (content,)) if isinstance(t, Tensor)]


class PackedArray:
    """The result of a saved-tensor hook's ``pack``, and the hook that makes an array of it again."""

    __slots__ = ("content", "device", "dtype", "shape", "unpack")

    def __init__(self, content: Any, unpack: Any, array: Any, device: Any) -> None:
        self.content, self.unpack = content, unpack
        self.shape, self.dtype, self.device = array.shape, array.dtype, device

    def array(self) -> Any:
        """Unpack.

        Raises:
            TypeError: the hook did not return a tensor.
            GraphError: it returned a tensor of another shape, dtype or device.
        """
        before, local.saved_hooks = local.saved_hooks, ()
        try:
            tensor = self.unpack(self.content)
        finally:
            local.saved_hooks = before
        if not isinstance(tensor, Tensor):
            raise TypeError(f"saved_tensors_hooks: unpack must return a tensor, found {type(tensor).__name__}")
        array = tensor.array
        if array.shape != self.shape or array.dtype != self.dtype or tensor.device is not self.device:
            raise GraphError(
                f"saved_tensors_hooks: pack was given shape {list(self.shape)}, {self.dtype} on {self.device}; unpack must "
                f"return the same, found shape {list(array.shape)}, {array.dtype} on {tensor.device}"
            )
        return array


def shown(owner: Any, mine: bool, array: Any, device: Any) -> Any:
    """The tensor that a pack hook is given: a leaf, or a view of one, as it is; for any other the same storage, detached.

    Args:
        owner: the tensor whose array is saved; ``None`` for a buffer that the op made for itself.
        mine: the owner is an output of the node that saves it; to keep it would be a cycle.
    """
    if owner is None:
        return Tensor._wrap(array, device)
    Storage.of(owner)  # by which a hook knows it again, and tells it from a buffer that an op made for itself
    root = owner if owner._view is None else owner._view.base
    return owner if root.is_leaf and not mine else owner.detach()


def pack(hooks: tuple, saving: tuple, tensor: Any) -> PackedArray:
    """Let a pack hook make of ``tensor`` what it likes; ``saving``: the node that saves it, its name there, and which input."""
    pack_hook, unpack_hook = hooks
    before = local.saved_hooks, local.saving
    local.saved_hooks, local.saving = (), saving  # a hook's own ops are not packed again
    try:
        return PackedArray(pack_hook(tensor), unpack_hook, tensor.array, tensor.device)
    finally:
        local.saved_hooks, local.saving = before


def unpack(node: Any) -> None:
    """Let ``node`` have arrays in the place of what hooks packed.

    Where the graph is not kept, each packed thing is let go as soon as it is an array again, so that the op's backward holds
    the arrays alone, and lets go of each when it needs it no longer.
    """
    kept, node.saved = node.saved, {}
    try:
        for name in list(kept):
            value = kept[name]
            node.saved[name] = value.array() if isinstance(value, PackedArray) else value
            if not node.keeps_graph:
                kept.pop(name)
            del value
    except BaseException:
        node.saved.update(kept)  # nothing is lost: backward may be tried again
        raise
    if scope.listeners:
        tell_saved(node)
