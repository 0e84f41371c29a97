"""The common part of offload and compression: which saved tensors are left alone, and that each is packed once."""

from __future__ import annotations

import weakref
from typing import Any

from ..autograd.storage import Storage
from ..autograd.tensor import Tensor
from ..errors import GraphError
from ..nn.parameter import Parameter


def stays(tensor: Tensor) -> bool:
    """True if ``tensor`` stays alive anyway: a parameter, a leaf that requires a gradient, or a view of one.

    A packed copy would only add to it.
    """
    root = tensor if tensor._view is None else tensor._view.base
    return root.is_leaf and (root.requires_grad or isinstance(root, Parameter))


class UnpackedTensor(list):
    """A tensor that is not packed, with its version when saved. Listeners look for tensors in lists, so it is a list."""

    __slots__ = ("version",)

    def __init__(self, tensor: Tensor) -> None:
        super().__init__([tensor])
        self.version = tensor._version

    def get(self) -> Tensor:
        """The tensor. Raises: GraphError: it was written in place since."""
        (tensor,) = self
        storage = tensor.storage
        if storage.version != self.version:
            raise GraphError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
                f"shape {list(tensor.shape)} was saved at version {self.version}; {storage.writer} has written to it since, "
                f"it is at version {storage.version} now. Write into a clone(), or use the op that makes a new tensor."
            )
        return tensor


class Once:
    """Remembers the packed copy of a storage while the copy lives: two nodes that save one tensor share one copy."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Storage, tuple] = weakref.WeakKeyDictionary()

    def find(self, tensor: Tensor, part: Any = None) -> Any:
        """The copy for this version of ``tensor``'s storage (and this ``part`` of it), or ``None``."""
        version, made = self._made.get(tensor.storage, (None, {}))
        reference = made.get(part) if version == tensor._version else None
        return None if reference is None else reference()

    def note(self, tensor: Tensor, made: Any, part: Any = None) -> None:
        """Remember that ``made`` is the copy of ``tensor``'s storage, or of a ``part`` of it."""
        version, present = self._made.get(tensor.storage, (None, {}))
        if version != tensor._version:
            present = {}
        present[part] = weakref.ref(made)
        self._made[tensor.storage] = (tensor._version, present)
