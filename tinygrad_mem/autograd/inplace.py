"""In-place ops: the result is written into the first input. A write through a view changes the graph of the view's base."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..dtypes import FLOATING, PLAIN, admitted
from ..errors import GraphError
from ..ops.base import Context, Op, address_of, overlaps_itself, refuses_writes, root_of
from ..scope import local
from . import node_hooks
from .core import Node, connect, next_sequence, observed, one_device, remember
from .tensor import Tensor


def apply_(op: type[Op], target: Tensor, *inputs: Any, **params: Any) -> Tensor:
    """Run ``op`` in place: ``target`` is its first input, and gets its result.

    Raises:
        GraphError: ``target`` is a leaf that requires grad (or a view of one) and grad mode is on; its elements share memory.
        ShapeError, DTypeError: the result does not fit ``target``, which keeps its values.
    """
    inputs = (target, *inputs)
    enabled = local.grad_enabled
    if enabled and (target._view is not None or target._requires_grad):
        _refuse_leaf(op, target)
        _refuse_lost_hook(op, target)
    if target._inference and not local.inference:
        raise GraphError(
            f"{op.__name__}: Inplace update to inference tensor outside InferenceMode is not allowed. Write into a clone()."
        )
    device = target.device
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            if x.device is not device:
                inputs = tuple(one_device(op, inputs, target))
                arrays = [x.array if isinstance(x, Tensor) else x for x in inputs]
                break
            arrays.append(x.array)
        else:
            arrays.append(x if type(x) in PLAIN else admitted(x))
    if refuses_writes(target.array):
        raise GraphError(f"{op.__name__}: the tensor's memory is read-only, for example expanded; write into a clone()")
    if not op.same_everywhere and overlaps_itself(target.array):  # of such an element the last write would win
        raise GraphError(f"{op.__name__}: elements of the tensor share memory, as in overlapping windows; write into a clone()")
    memory = root_of(target.array)  # not the storage: that of .data is another
    for x in inputs[1:]:
        if isinstance(x, Tensor) and root_of(x.array) is memory:
            _refuse_overlap(op, target.array, x.array)
    needs = (False,) * len(inputs)
    if enabled and op.differentiable:
        needs = tuple([isinstance(x, Tensor) and x.requires_grad for x in inputs])
    base = target if target._view is None else target._view.base
    if base._twins is not None and enabled:
        _refuse_twins(op, base)
    unrecorded = base._off_the_record
    if enabled and unrecorded and (True in needs or getattr(unrecorded[0](), "_requires_grad", False)):
        raise GraphError(
            f"{op.__name__}: A view was created in no_grad mode and is being modified inplace with grad mode enabled: its base "
            "would not record the write. Make the view and write it in the same mode, or write into a clone()."
        )
    node = Node(device, needs)
    node.op = op
    node.target = target.array
    (observed if scope.listeners or device.index else scope.run)(op.forward, node, *arrays, **params)
    node.target = None
    storage = target.storage
    before = storage.version
    # the hooks pack the new value, and tell it from the old one by its version
    hooked = bool(local.saved_hooks and node_hooks.hooks_here())
    if hooked:
        storage.written(op.__name__)
    recorded = True in needs and target.array.dtype.kind in FLOATING
    if recorded:
        _record(node, inputs, target)
    if not hooked:
        storage.written(op.__name__)
    if recorded:  # arrays of the target that the op saved before its write are valid at the old version, later ones at the new
        node.versions = tuple(
            (name, s, v + 1 if s is storage and v == before and name in op.outputs else v) for name, s, v in node.versions
        )
    return target


def _refuse_leaf(op: type[Op], target: Tensor) -> None:
    """Raises: GraphError: ``target`` is a leaf that requires grad, or a view of one."""
    base = target._former()
    itself = target._node is None and target._requires_grad  # a view of other memory may be a leaf
    if itself or (base.is_leaf and base._requires_grad):
        what = "a leaf Variable" if base is target else "a view of a leaf Variable"
        raise GraphError(
            f"{what} that requires grad is being used in an in-place operation ({op.__name__}). "
            "Do it under no_grad(), or on a clone()."
        )


def _refuse_lost_hook(op: type[Op], target: Tensor) -> None:
    """Raises: GraphError: ``unsqueeze_()`` or the like made it a view of what it was, and it got a hook since.

    The write would be recorded on what it was, and the hook's node would be in no graph.
    """
    hooks = None if target._node is None else target._node.hooks
    if hooks is not None and any(hooks.of_outputs.values()) and target._view is not None and target._view.base._unseen:
        raise GraphError(
            f"{op.__name__}: a hook of this tensor, registered between an in-place change of its shape and this write, "
            "would not be called. Register it after the write, or use the op that makes a new tensor."
        )


def _refuse_twins(op: type[Op], base: Tensor) -> None:
    """Raises: GraphError: the memory is also that of a tensor in use whose graph would not have the write."""
    others = [twin() for twin in base._twins]
    if any(each is not None and each is not base and each._requires_grad for each in others):
        raise GraphError(
            f"{op.__name__}: this memory is also that of another tensor: a custom Function, or a module with backward hooks, "
            "passes its input on. Modified inplace, one of them would have a wrong gradient. Write into a clone()."
        )


def _record(node: Node, inputs: tuple, target: Tensor) -> None:
    """Record a write: the target, or the base of which it is a view, gets a new node."""
    if target._view is not None:
        _record_on_base(node, inputs, target)
        return
    with target._retained_anew():
        connect(node, [x.edge() if need else None for x, need in zip(inputs, node.needs, strict=True)], inputs, (target,))
        target._index = 0  # it may have been another output of the op that made it


def _places(array: Any) -> np.ndarray:
    """A NumPy array with the addresses of ``array``, for comparisons only: its values must not be read."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(_Places(array))


class _Places:
    def __init__(self, array: Any) -> None:
        where = {"data": (address_of(array), True), "strides": array.strides, "typestr": array.dtype.str}
        self.__array_interface__ = {"version": 3, "shape": array.shape, **where}


def _refuse_overlap(op: type[Op], target: Any, other: Any) -> None:
    """Refuse inputs that overlap the written tensor, except the same elements, if the op reads each before it writes it."""
    same = other.shape == target.shape and other.strides == target.strides and address_of(other) == address_of(target)
    if same and not op.places:
        return
    if target.size and other.size:
        try:
            overlap = np.shares_memory(_places(target), _places(other), max_work=1000)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return
        if overlap:
            raise GraphError(
                f"{op.__name__}: unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _record_on_base(node: Node, inputs: tuple, target: Tensor) -> None:
    """Record a write through a view: the base gets a node that changes the written part of its gradient."""
    view = target._view
    assert view is not None
    target.edge()  # the view may be stale
    base = view.base._former()
    outer = Node(target.device, (base._requires_grad, *node.needs[1:]))
    outer.op = CopySlices
    if base._requires_grad:
        node.needs = (True, *node.needs[1:])
    base_edge = base.edge() if base._requires_grad else None
    edges = [None if not need else x.edge() for x, need in zip(inputs[1:], node.needs[1:], strict=True)]
    node.edges = ()
    node.shapes = ((target.array.shape, target.array.dtype),)
    if node.saved or local.saved_hooks:
        remember(node, inputs, (target,))
    outer.inner, outer.chain = node, view.chain()  # type: ignore[attr-defined]
    outer.edges = (base_edge, *edges)
    outer.sequence = next_sequence()
    outer.shapes = ((base.array.shape, base.array.dtype),)
    with base._retained_anew():
        base._node, base._index, base._requires_grad = outer, 0, True
    target._requires_grad = True  # its node is made from the base again when it is needed


class CopySlices(Op):
    """Backward of a write through a view: the written part of the base's gradient goes through the op. Saves nothing itself."""

    @staticmethod
    def backward(ctx: Any, gy: Any) -> Any:
        inner: Node = ctx.inner
        grad = gy if ctx.owns_grad and gy.flags.c_contiguous else ctx.empty_like(gy)
        if grad is not gy:
            ctx.kernels.copy(gy, out=grad)
        part = grad
        for op, others, params in ctx.chain:
            arrays = [x.array if isinstance(x, Tensor) else x for x in others]
            part = op.forward(Context(ctx.device, (False,)), part, *arrays, **params)
        copy = ctx.empty_like(part)
        ctx.kernels.copy(part, out=copy)
        inner.open(ctx.keeps_graph)
        grads = inner.run_backward(copy, owned=True)
        if not ctx.keeps_graph:
            inner.close()
        if ctx.needs[0]:
            if grads[0] is None:
                ctx.kernels.fill(0, out=part)
            else:
                ctx.kernels.copy(grads[0], out=part)
        return (grad if ctx.needs[0] else None, *grads[1:])
