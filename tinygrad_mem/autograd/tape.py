"""The tape: nodes, how an op is run and recorded, views and in-place writes.

A node keeps what its op saved and where gradients go next; it never refers to the tensors that it produced, so nothing
here forms a reference cycle, and memory falls when the last reference goes.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import scope
from ..errors import DeviceError, GraphError, let_go
from ..ops.base import Context, Op

if TYPE_CHECKING:
    from .tensor import Tensor

_new = object.__new__
_sequence = itertools.count(1).__next__
local = scope.local


class Storage:
    """The identity of a piece of memory that tensors share: how often it was written in place, and by which op."""

    version = 0
    writer = ""

    def written(self, by: str) -> None:
        """Somebody wrote the memory."""
        self.version += 1
        self.writer = by


class Node(Context):
    """One recorded run of an op: the context of its forward, kept for its backward.

    Attributes:
        op: the op's class.
        edges: for each input where its gradient goes, ``(node, output index)`` or ``(leaf tensor, 0)``; ``None`` for none.
        shapes: (shape, dtype) of each output, by which gradients are checked and reduced.
        sequence: position on the tape; the engine walks from high to low.
    """

    op: Any
    edges: tuple
    shapes: tuple
    sequence = 0
    versions: Any = ()
    packed = False
    remembers = False  # whether forward saved anything: what saved nothing can be walked again, as in PyTorch
    freed = False
    hooks: dict[int, list] | None = None
    module = line = ""  # where it ran forward, known only while somebody listens

    def name(self) -> str:
        """The name that PyTorch would give it, such as ``MulBackward0``."""
        return f"{self.op.__name__}Backward0"

    @property
    def next_functions(self) -> tuple:
        """PyTorch's view of :attr:`edges`."""
        return tuple((None, 0) if edge is None else edge for edge in self.edges)

    def open(self, keep: bool) -> None:
        """Before backward: the saved arrays must be there, and must be what they were.

        Raises:
            GraphError: they were freed by an earlier backward, or overwritten in place.
        """
        if self.freed:
            raise GraphError(
                f"Trying to backward through the graph a second time: {self.name()} has already freed what it saved. "
                "Specify retain_graph=True the first time if you need to backward again."
            )
        for name, storage, version in self.versions:
            if storage.version != version:
                raise GraphError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{self.op.__name__} saved {name!r} at version {version}, {storage.writer} has written it since, it is "
                    f"at version {storage.version}. Write into a clone(), or use the op that makes a new tensor."
                )
        self.keeps_graph = keep

    def close(self) -> None:
        """After backward: forget what was saved."""
        self.saved = {}
        self.versions = ()
        self.freed = self.remembers

    def kept(self) -> list[tuple[str, Any]]:
        """What it keeps alive for its backward: (name, array); of what a hook packed, the tensors that the hook made."""
        return [(name, array) for name, value in self.saved.items() for array in _contents(value)]

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class View:
    """How a differentiable view came about: the tensor at its root, and the ops that lead from there to the view."""

    __slots__ = ("base", "chain", "root_node")

    def __init__(self, base: Tensor, chain: tuple) -> None:
        self.base, self.chain = base, chain
        self.root_node = base._node


def apply(op: type[Op], *inputs: Any, **params: Any) -> Any:
    """Run ``op`` on tensors and constants; record it when an input requires a gradient and grad mode is on.

    Returns:
        A tensor, or a tuple of tensors where the op has several outputs.

    Raises:
        DeviceError: the tensors live on different devices.
        whatever the op raises for shapes and dtypes; nothing was recorded or changed then.
    """
    arrays, needs, device = [], [], None
    record, enabled = False, local.grad_enabled and op.differentiable
    for x in inputs:
        if isinstance(x, _Tensor):
            arrays.append(x.array)
            if x.device is not device:
                if device is not None:
                    device, arrays = _one_device(op, inputs)
                    pairs = zip(inputs, arrays, strict=True)
                    inputs = tuple([x if isinstance(x, _Tensor) and x.device is device else a for x, a in pairs])
                    return apply(op, *inputs, **params)
                device = x.device
            if enabled and (x._requires_grad or (x._view is not None and x.requires_grad)):
                record = True
                needs.append(True)
            else:
                needs.append(False)
        else:
            arrays.append(x)
            needs.append(False)
    if device is None:
        device = local.default_device or _Tensor.cpu_device()
    node = _new(Node)
    node.device = device
    node.kernels = device.kernels
    node.needs = tuple(needs)
    node.saved = {}
    node.op = op
    try:
        out = (_observed if scope.listeners or device.index else local.run)(op.forward, node, *arrays, **params)
    except BaseException as error:
        node.saved = {}
        let_go(error)
        raise
    if type(out) is tuple:
        outputs = tuple([_Tensor._wrap(a, device) for a in out])
        if record:
            _record(node, inputs, outputs)
    else:
        outputs = _new(_Tensor)
        outputs.array = out
        outputs.device = device
        if record:
            _record(node, inputs, (outputs,))
    if op.view:
        _share(op, inputs, params, outputs, enabled)
    if not enabled and local.inference:
        made: Any = outputs if type(out) is tuple else (outputs,)
        for tensor in made:
            tensor._inference = True
    return outputs


def _observed(forward: Any, node: Node, *arrays: Any, **params: Any) -> Any:
    """Run an op while somebody listens, so that allocations inside it bear its name; or on a GPU beyond the first."""
    before = local.op, local.line, local.phase
    local.op = node.op.__name__
    if scope.listeners:
        node.module = local.module
        if local.phase == "user" and True in node.needs:
            local.phase = "forward"
        for listener in scope.listeners:
            listener.running(node, arrays)
    try:
        with node.device.current():
            return local.run(forward, node, *arrays, **params)
    finally:
        local.op, local.line, local.phase = before


def _share(op: type[Op], inputs: tuple, params: dict, outputs: Any, enabled: bool) -> None:
    """The result of a view op shares its source's storage, and remembers the way from the root to itself."""
    source = inputs[0]
    if type(outputs) is tuple:
        for tensor in outputs:
            tensor._storage = source.storage
        return
    outputs._storage = source.storage
    if enabled:
        base, chain = (source, ()) if source._view is None else (source._view.base, source._view.chain)
        outputs._view = View(base, (*chain, (op, inputs[1:], params)))


def _one_device(op: type[Op], inputs: tuple) -> tuple[Any, list]:
    """All inputs on one device; a 0-d cpu tensor may meet tensors of another device, as a Python number."""
    tensors = [x for x in inputs if isinstance(x, _Tensor)]
    devices = {x.device for x in tensors if x.ndim or x.device.type != "cpu"} or {tensors[0].device}
    if len(devices) > 1 or any(x.device not in devices and x._requires_grad for x in tensors):
        found = ", ".join(f"{list(x.shape)} on {x.device}" for x in tensors)
        raise DeviceError(
            f"{op.__name__}: Expected all tensors to be on the same device, found {found}. Move them with .to(device)."
        )
    (device,) = devices
    arrays = [x.item() if isinstance(x, _Tensor) and x.device is not device else x for x in inputs]
    return device, [x.array if isinstance(x, _Tensor) else x for x in arrays]


def _record(node: Node, inputs: tuple, outputs: tuple) -> None:
    """Connect ``node`` to where the gradients of its inputs go, and the outputs to ``node``."""
    edges = []
    for x, need in zip(inputs, node.needs):  # noqa: B905 (on the path of every op: strict costs)
        if not need:
            edges.append(None)
        elif x._inference:
            raise GraphError(
                f"{node.op.__name__}: Inference tensors cannot be saved for backward. Clone it outside inference_mode first."
            )
        elif x._view is not None:
            edges.append(x.edge())
        else:
            edges.append((x, 0) if x._node is None else (x._node, x._index))
    node.edges = tuple(edges)
    node.sequence = _sequence()
    if node.saved:
        _remember(node, inputs, outputs)
    if len(outputs) == 1:
        tensor = outputs[0]
        array = tensor.array
        node.shapes = ((array.shape, array.dtype),)
        if array.dtype.kind == "f":
            tensor._node, tensor._requires_grad = node, True
        return
    node.shapes = tuple([(t.array.shape, t.array.dtype) for t in outputs])
    for index, tensor in enumerate(outputs):
        if tensor.array.dtype.kind == "f":
            tensor._node, tensor._index, tensor._requires_grad = node, index, True


def _remember(node: Node, inputs: tuple, outputs: tuple) -> None:
    """Note the version of every saved array that others can see, tell listeners, and let saved-tensor hooks pack it."""
    versions = []
    hooks = local.saved_hooks
    node.remembers = True
    for name, array in node.saved.items():
        owner = None
        for tensor in (*outputs, *inputs) if name in node.op.outputs else inputs:
            if isinstance(tensor, _Tensor) and tensor.array is array:
                owner = tensor
                break
        if hooks:  # a hook may copy: what happens to the original afterwards is its own affair, as in PyTorch
            if owner is not None and any(owner is t for t in outputs):
                owner = None  # an output that its own node kept would be a cycle
            node.saved[name] = _pack(hooks[-1], owner, array, node.device)
            node.packed = True
        elif owner is not None:
            storage = owner._storage
            if storage is None:
                storage = owner._storage = Storage()
            versions.append((name, storage, storage.version))
    node.versions = versions
    if scope.listeners:
        tell_saved(node)


def tell_saved(node: Node) -> None:
    """Tell listeners what ``node`` keeps; they will hear when it is let go."""
    Kept.of(node)
    for name, array in node.kept():
        for listener in scope.listeners:
            listener.saved(node, name, array)


class Kept(dict):
    """What a node saved, while somebody listens: it says when it is let go."""

    __slots__ = ("line", "module", "op")
    op: str

    @staticmethod
    def of(node: Node) -> None:
        """Let ``node`` keep what it saved in one of these."""
        if type(node.saved) is not Kept:
            node.saved = Kept(node.saved)
            node.saved.op, node.saved.module, node.saved.line = node.op.__name__, node.module, node.line

    def pop(self, name: str) -> Any:
        value = dict.pop(self, name)
        self._let_go(name, value)
        return value

    def _let_go(self, name: str, value: Any) -> None:
        if scope.listeners:
            for array in _contents(value):
                for listener in scope.listeners:
                    listener.released(self, name, array)

    def __del__(self) -> None:
        for name, value in self.items():
            self._let_go(name, value)


def _contents(value: Any) -> list:
    """The arrays that a saved entry keeps alive: itself, or the tensors that a hook made of it."""
    if not isinstance(value, Packed):
        return [value]
    content = value.content
    return [t.array for t in (content if isinstance(content, (tuple, list)) else (content,)) if isinstance(t, _Tensor)]


class Packed:
    """What a saved-tensor hook made of an array, and the hook that makes an array of it again."""

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
        if not isinstance(tensor, _Tensor):
            raise TypeError(f"saved_tensors_hooks: unpack must return a tensor, found {type(tensor).__name__}")
        array = tensor.array
        if array.shape != self.shape or array.dtype != self.dtype or tensor.device is not self.device:
            raise GraphError(
                f"saved_tensors_hooks: pack was given shape {list(self.shape)}, {self.dtype} on {self.device}; unpack must "
                f"return the same, found shape {list(array.shape)}, {array.dtype} on {tensor.device}"
            )
        return array


def _pack(hooks: tuple, owner: Any, array: Any, device: Any) -> Packed:
    pack, unpack = hooks
    tensor = owner if owner is not None and owner.is_leaf else _Tensor._wrap(array, device)
    before, local.saved_hooks = local.saved_hooks, ()  # a hook's own ops are not packed again
    try:
        return Packed(pack(tensor), unpack, array, device)
    finally:
        local.saved_hooks = before


def apply_(op: type[Op], target: Tensor, *inputs: Any, **params: Any) -> Tensor:
    """Run ``op`` in place: its result is written into ``target``, which is also its first input.

    Raises:
        GraphError: ``target`` is a leaf that requires grad (or a view of one) and grad mode is on.
        ShapeError, DTypeError: the result does not fit ``target``, which keeps its values.
    """
    inputs = (target, *inputs)
    enabled = local.grad_enabled
    if enabled and target._requires_grad:
        base = target if target._view is None else target._view.base
        if base.is_leaf and base._requires_grad:
            what = "a leaf Variable" if base is target else "a view of a leaf Variable"
            raise GraphError(
                f"{what} that requires grad is being used in an in-place operation ({op.__name__}). "
                "Do it under no_grad(), or on a clone()."
            )
    device = target.device
    if any(isinstance(x, _Tensor) and x.device is not device for x in inputs):
        _, arrays = _one_device(op, inputs)
    else:
        arrays = [x.array if isinstance(x, _Tensor) else x for x in inputs]
    if not target.array.flags.writeable if hasattr(target.array.flags, "writeable") else False:
        raise GraphError(f"{op.__name__}: the tensor's memory is read-only; write into a clone()")
    if target._storage is not None:
        for x in inputs[1:]:
            if isinstance(x, _Tensor) and x._storage is target._storage:
                _refuse_overlap(op, target.array, x.array)
    needs = [enabled and op.differentiable and isinstance(x, _Tensor) and x._requires_grad for x in inputs]
    node = Node(device, needs)  # type: ignore[arg-type]
    node.op = op
    node.target = target.array
    _observed(op.forward, node, *arrays, **params)
    node.target = None
    storage = target.storage
    record = any(needs)
    if record and target.array.dtype.kind == "f":
        before = storage.version
        if target._view is None:
            _record(node, inputs, (target,))
        else:
            _record_on_base(node, inputs, target)
        storage.written(op.__name__)
        # what the op saved of the target after writing it is valid at the new version; before writing it, at the old one
        node.versions = tuple(
            (name, s, v + 1 if s is storage and v == before and name in op.outputs else v) for name, s, v in node.versions
        )
    else:
        storage.written(op.__name__)
    return target


def _refuse_overlap(op: type[Op], target: Any, other: Any) -> None:
    """An op may read just what it writes, element by element; what it writes earlier than it reads would be another value."""
    if other.shape == target.shape and other.strides == target.strides and _address(other) == _address(target):
        return
    if target.size and other.size and isinstance(target, np.ndarray):
        try:
            overlap = np.shares_memory(target, other, max_work=1000)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return
        if overlap:
            raise GraphError(
                f"{op.__name__}: unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def _record_on_base(node: Node, inputs: tuple, target: Tensor) -> None:
    """An in-place write through a view: the view's base gets a node that rewrites the written part of its gradient."""
    view = target._view
    assert view is not None
    target.edge()  # the view may be stale
    base = view.base
    outer = Node(target.device, (base._requires_grad, *node.needs[1:]))
    outer.op = CopySlices
    if base._requires_grad:
        node.needs = (True, *node.needs[1:])
    base_edge = base.edge() if base._requires_grad else None
    edges = [None if not need else x.edge() for x, need in zip(inputs[1:], node.needs[1:], strict=True)]
    node.edges = ()
    node.shapes = ((target.array.shape, target.array.dtype),)
    if node.saved:
        _remember(node, inputs, (target,))
    outer.inner, outer.chain = node, view.chain  # type: ignore[attr-defined]
    outer.edges = (base_edge, *edges)
    outer.sequence = _sequence()
    outer.shapes = ((base.array.shape, base.array.dtype),)
    base._node, base._index, base._requires_grad = outer, 0, True
    target._requires_grad = True  # its node is made again from the base when it is asked for


class CopySlices(Op):
    """The base's gradient after a write through a view: the written part goes through the writing op. Saves nothing itself."""

    @staticmethod
    def backward(ctx: Any, gy: Any) -> Any:
        inner: Node = ctx.inner
        grad = gy if ctx.owns_grad else ctx.empty_like(gy)
        if grad is not gy:
            ctx.kernels.copy(gy, out=grad)
        part = grad
        for op, others, params in ctx.chain:
            part = op.forward(Context(ctx.device, (False,)), part, *_arrays(others), **params)
        copy = ctx.empty_like(part)
        ctx.kernels.copy(part, out=copy)
        inner.open(ctx.keeps_graph)
        grads = run_backward(inner, copy, owned=True)
        if not ctx.keeps_graph:
            inner.close()
        if ctx.needs[0]:
            if grads[0] is None:
                ctx.kernels.fill(0, out=part)
            else:
                ctx.kernels.copy(grads[0], out=part)
        return (grad if ctx.needs[0] else None, *grads[1:])


def _arrays(values: Any) -> list:
    return [x.array if isinstance(x, _Tensor) else x for x in values]


def run_backward(node: Node, *grads: Any, owned: bool) -> tuple:
    """Call the op's backward on an opened node, with packed arrays unpacked; always a tuple, one entry an input."""
    if node.packed:
        kept = node.saved
        node.saved = {name: x.array() if isinstance(x, Packed) else x for name, x in kept.items()}
    node.owns_grad = owned
    try:
        result = node.op.backward(node, *grads)
    finally:
        if node.packed and node.keeps_graph:
            node.saved = kept
    return result if type(result) is tuple else (result,)


_Tensor: Any = None  # set by tensor.py: the class and the functions that make it refer to each other
