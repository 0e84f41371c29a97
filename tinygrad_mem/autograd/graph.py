"""Hooks on the tensors that the recorded graph saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..callbacks import callback_depth as _callback_depth
from ..interrupts import signal_safe
from ..scope import local
from .core import Node as Node
from .tensor import Tensor

if TYPE_CHECKING:  # defined in a higher room, which sets it here
    from ..techniques.offload import save_on_cpu as save_on_cpu


class saved_tensors_hooks:
    """Inside, each tensor saved for backward goes through ``pack`` at once, and through ``unpack`` when backward needs it.

    ``pack`` gets a tensor (a leaf or a view of a leaf itself; any other tensor detached, with the same storage and version) and
    returns any object: a file name, a compressed array. ``unpack`` returns a tensor of the same shape, dtype and device. Memory
    that ``pack`` did not keep is freed as soon as nothing else uses it. Blocks nest: the innermost applies. Hooks run in the
    caller's grad mode; the tensors that their ops save are not packed again.

    Raises:
        TypeError: on entry, a hook that cannot be called; in backward, ``unpack`` did not return a tensor.
        GraphError: in backward, ``unpack`` returned another shape, dtype or device.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        if not callable(pack_hook) or not callable(unpack_hook):
            raise TypeError("saved_tensors_hooks: pack_hook and unpack_hook must be callable")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        local.saved_hooks = (*local.saved_hooks, (self.pack_hook, self.unpack_hook, _callback_depth()))

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.saved_hooks = local.saved_hooks[:-1]


def leaves(tensor: Tensor) -> list[Tensor]:
    """The leaves to which gradients of ``tensor`` go."""
    edge = tensor.edge() if tensor.requires_grad else None
    found: dict[int, Any] = {}
    stack = [] if edge is None else [edge[0]]
    while stack:
        target = stack.pop()
        if id(target) not in found:
            found[id(target)] = target
            stack.extend(edge[0] for edge in getattr(target, "edges", ()) if edge is not None)
    return [target for target in found.values() if isinstance(target, Tensor)]
