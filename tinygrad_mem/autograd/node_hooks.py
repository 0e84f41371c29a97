"""Hooks of nodes: hooks of gradients, hooks of saved arrays, and reports of saved arrays to listeners.

A node has :class:`GradientHooks` only if a hook was registered; backward checks once per node. A node without saved-tensor
hooks keeps plain arrays in a dict. While there is a listener, the dict is a :class:`TrackedSaved`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .. import scope
from ..callbacks import callback_depth, finalizer
from ..errors import ArgumentTypeError, DeviceError, DTypeError, GraphError, NotOfferedError, ShapeError
from ..ops.base import RowsGradient
from ..scope import local
from .gradients import SparseTensor
from .hooks import RemovableHandle
from .storage import Storage
from .tensor import Tensor

# --- hooks of gradients ---------------------------------------------------------------------------------------------------


class GradientHooks:
    """The hooks that users registered on one node and on its outputs.

    Attributes:
        of_outputs: output index -> hooks of that output tensor.
        retained: output index -> weak reference to the tensor that retains its gradient.
        before, after: hooks of the node itself, before and after its backward.
    """

    __slots__ = ("after", "before", "of_outputs", "retained")

    def __init__(self) -> None:
        self.of_outputs: dict[int, dict] = {}
        self.retained: dict[int, weakref.ref[Tensor]] = {}
        self.before: dict[int, Callable] = {}
        self.after: dict[int, Callable] = {}

    def arrived(self, node: Any, grads: list, owned: list, accumulate: Callable) -> None:
        """The gradients of all outputs are known: call the outputs' hooks, and set ``grad`` of tensors that retain theirs."""
        for index, grad in enumerate(grads):
            if grad is None:
                continue
            if index in self.of_outputs:
                grads[index], owned[index] = call_hooks(self.of_outputs[index], grad, owned[index], node.device)
            tensor = self.retained[index]() if index in self.retained else None
            if tensor is not None:
                accumulate(tensor, grads[index], owned[index])
                owned[index] = False

    def call(self, hooks: dict, node: Any, grads: Any, *more: tuple) -> list:
        """Call the hooks of a node with all gradients (and ``more``); each may return a tuple that replaces them.

        Raises:
            ArgumentTypeError, GraphError: a hook returned no tuple, or one of another length.
            ShapeError, DTypeError, DeviceError: a gradient of another shape, dtype or device.
        """
        devices = [edge[0].device if edge else node.device for edge in node.edges] if more else [node.device] * len(grads)
        for hook in list(hooks.values()):
            answer = hook(tuple(map(gradient_tensor, grads, devices)), *more)
            if answer is not None:
                _check(node, answer, grads, devices)
                grads = [a.rows if isinstance(a, SparseTensor) else None if a is None else a.array for a in answer]
        return grads


def gradient_tensor(grad: Any, device: Any) -> Any:
    """A gradient array as a tensor, for hooks."""
    return None if grad is None else SparseTensor(grad, device) if type(grad) is RowsGradient else Tensor._wrap(grad, device)


def _want_device(hook: str, answer: Any, device: Any) -> None:
    """Refuse a gradient on another device. Raises: DeviceError."""
    if answer.device is not device:
        raise DeviceError(f"{hook} has changed the device of the gradient: expected {device}, found {answer.device}")


def _check(node: Any, answer: Any, grads: list, devices: list) -> None:
    if not isinstance(answer, tuple):
        raise ArgumentTypeError(f"a hook of {node.name()}: expected tuple, but hook returned {type(answer).__name__!r}")
    if len(answer) != len(grads):
        raise GraphError(
            f"a hook of {node.name()} has returned an incorrect number of values (got {len(answer)}, but expected {len(grads)})"
        )
    for new, old, device in zip(answer, grads, devices, strict=True):
        if new is None:
            continue
        if not isinstance(new, (Tensor, SparseTensor)) or old is None or tuple(new.shape) != tuple(old.shape):
            raise ShapeError(
                f"a hook of {node.name()} has changed the size of value: expected "
                f"{None if old is None else list(old.shape)}, found {new!r}"
            )
        if new.dtype != old.dtype:
            raise DTypeError(f"a hook of {node.name()} has changed the type of value: {old.dtype} became {new.dtype}")
        _want_device(f"a hook of {node.name()}", new, device)


def call_hooks(hooks: dict, grad: Any, owned: bool, device: Any) -> tuple[Any, bool]:
    """Call the hooks of a tensor with its gradient. Each may return a new one, or keep it: the engine does not own it then.

    Raises:
        ShapeError, DTypeError, DeviceError: a hook returned something else than a tensor like the gradient.
    """
    if not hooks:
        return grad, owned
    for hook in list(hooks.values()):
        answer = hook(gradient_tensor(grad, device))
        if answer is None:
            continue
        if isinstance(answer, SparseTensor) and answer.shape == grad.shape and answer.dtype == grad.dtype:
            grad = answer.rows
            continue
        if not isinstance(answer, Tensor) or answer.shape != grad.shape:
            raise ShapeError(f"a tensor hook must return None or a tensor of shape {list(grad.shape)}, found {answer!r}")
        if answer.array.dtype != grad.dtype:
            raise DTypeError(f"a tensor hook has changed the type of the gradient: expected {grad.dtype}, found {answer.dtype}")
        _want_device("a tensor hook", answer, device)
        grad = answer.array
    return grad, False


class Inspectable:
    """The public part of a node, with PyTorch's names: its neighbours and its hooks."""

    edges: tuple
    hooks: GradientHooks | None = None

    @property
    def next_functions(self) -> tuple:
        """``edges`` as PyTorch shows them: each leaf behind an :class:`AccumulateGrad`."""
        ways: Any = [edge or (None, 0) for edge in self.edges]
        return tuple([(AccumulateGrad(way[0]), 0) if isinstance(way[0], Tensor) else way for way in ways])

    def own_hooks(self) -> GradientHooks:
        """The node's hooks, made at the first use."""
        if self.hooks is None:
            self.hooks = GradientHooks()
        return self.hooks

    def register_prehook(self, hook: Callable[[tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before this node's backward, with a tensor or ``None`` for each output.

        The hook may return a tuple that replaces them, with the same length, shapes and dtypes.
        """
        return RemovableHandle(self.own_hooks().before, hook)

    def register_hook(self, hook: Callable[[tuple, tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after this node's backward, with a tensor or ``None`` for each input.

        The hook may return a tuple that replaces ``grad_inputs``, with the same length, shapes and dtypes. Inputs are those of
        the op (``op``), in its order. The engine does not write into gradients that a hook has seen.
        """
        return RemovableHandle(self.own_hooks().after, hook)


class AccumulateGrad:
    """PyTorch's node in front of a leaf. It is made on request only: edges of the tape refer to the leaf itself."""

    __slots__ = ("variable",)
    next_functions = ()

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable

    def name(self) -> str:
        """PyTorch's name of the node."""
        return "AccumulateGrad"

    def register_hook(self, hook: Any) -> Any:
        """Not offered: this object is made on request, so it cannot hold the hook.

        Raises:
            NotOfferedError: always, with what to use instead.
        """
        raise NotOfferedError(
            "AccumulateGrad: its hooks are not offered; use the leaf's register_hook() before its gradient is added, or its "
            "register_post_accumulate_grad_hook() afterwards"
        )

    register_prehook = register_hook


# --- saved arrays: packed by hooks, reported to listeners -----------------------------------------------------------------


def tell_saved(node: Any) -> None:
    """Report the saved arrays of ``node`` to listeners, now and when they are released."""
    TrackedSaved.of(node)
    for name, array in node.kept():
        for listener in scope.listeners:
            listener.saved(node, name, array)


class TrackedSaved(dict):
    """The saved arrays of a node, as a dict that reports their release to listeners."""

    __slots__ = ("line", "module", "op")
    op: str

    @staticmethod
    def of(node: Any) -> None:
        """Replace the saved arrays of ``node`` by a ``TrackedSaved``. The node's own thread may go on meanwhile."""
        if type(node.saved) is not TrackedSaved:
            saved = TrackedSaved(node.saved)
            saved.op, saved.module, saved.line = node.op.__name__, node.module, node.line
            node.saved = saved
            if node.freed:  # its backward has ended since
                node.saved = {}

    def pop(self, name: str) -> Any:
        value = dict.pop(self, name)
        self._report_released(name, value)
        return value

    def _report_released(self, name: str, value: Any) -> None:
        if scope.listeners:
            for array in contents(value):
                for listener in scope.listeners:
                    listener.released(self, name, array)

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "line"):  # else Ctrl-C came while it was made
            for name, value in self.items():
                self._report_released(name, value)


def contents(value: Any) -> list:
    """The arrays that a saved entry keeps alive: itself, or the tensors that a pack hook returned."""
    if not isinstance(value, PackedArray):
        return [value]
    content = value.content
    return [t.array for t in (content if isinstance(content, (tuple, list)) else (content,)) if isinstance(t, Tensor)]


class PackedArray:
    """The result of a ``pack`` hook, and the ``unpack`` hook that turns it into an array again."""

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


def tensor_to_pack(owner: Any, mine: bool, array: Any, device: Any) -> Any:
    """The tensor that a pack hook gets: a leaf or a view of a leaf itself; any other tensor detached, with the same storage.

    Args:
        owner: the tensor whose array is saved; ``None`` for a buffer that the op made for itself.
        mine: the owner is an output of the node that saves it; a reference to it would be a cycle.
    """
    if owner is None:
        return Tensor._wrap(array, device)
    Storage.of(owner)  # a hook recognizes the tensor by it; a buffer that an op made has none
    root = owner if owner._view is None else owner._view.base
    return owner if root.is_leaf and not mine else owner.detach()


def hooks_here() -> tuple:
    """The innermost saved-tensor hooks; none in a signal handler or finalizer that interrupted their block."""
    hooks = local.saved_hooks
    return hooks[-1] if hooks and hooks[-1][2] == callback_depth() else ()


def pack(hooks: tuple, saving: tuple, tensor: Any) -> PackedArray:
    """Call a pack hook with ``tensor``. ``saving``: the node that saves it, its name there, and the number of the input."""
    pack_hook, unpack_hook, _ = hooks
    before = local.saved_hooks, local.saving
    version = _version(tensor)
    local.saved_hooks, local.saving = (), saving  # a hook's own ops are not packed again
    try:
        content = pack_hook(tensor)
    finally:
        local.saved_hooks, local.saving = before
    if _version(tensor) != version:  # the values that the op's caller gets would be others
        raise GraphError("A saved tensor pack hook is modifying its input in place: pack a clone() of it")
    return PackedArray(content, unpack_hook, tensor.array, tensor.device)


def _version(tensor: Any) -> int:
    """The number of writes to the memory; a tensor without a storage had none, and gets no storage here."""
    return 0 if tensor._storage is None else tensor._storage.version


def unpack(node: Any) -> None:
    """Replace packed objects by arrays.

    If the graph is not kept, each packed object is dropped as soon as it is unpacked. Then the op's backward has the only
    reference to each array, and can free it early.
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
        node.saved.update(kept)  # keep the packed objects: backward may be called again
        raise
    if scope.listeners:
        tell_saved(node)
