"""The tape: nodes, and how an op is run and recorded.

A node keeps what its op saved and where gradients go next; it never refers to the tensors that it produced, so nothing
here forms a reference cycle, and memory falls when the last reference goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import scope
from ..dtypes import FLOATING
from ..errors import DeviceError, GraphError, NotOfferedError, let_go
from ..interrupts import counter
from ..ops.base import Context, Op
from .capsule import FOREIGN, admitted
from .hooks import RemovableHandle
from .saved import contents, remember, unpack

if TYPE_CHECKING:
    from .tensor import Tensor

_new = object.__new__
next_sequence = counter(1)
local = scope.local


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
    hooks: dict[int, dict] | None = None
    prehooks: dict[int, Any] | None = None  # of the node itself, before and after its backward
    posthooks: dict[int, Any] | None = None
    retained: dict[int, Any] | None = None  # output index -> weak reference to the tensor that wants its gradient kept
    module = line = ""  # where it ran forward, known only while somebody listens

    def name(self) -> str:
        """The name that PyTorch would give it, such as ``MulBackward0``."""
        return f"{self.op.__name__}Backward0"

    @property
    def next_functions(self) -> tuple:
        """PyTorch's view of :attr:`edges`, where a leaf stands behind an :class:`AccumulateGrad`."""
        ways: Any = [edge or (None, 0) for edge in self.edges]
        return tuple([(AccumulateGrad(way[0]), 0) if isinstance(way[0], _Tensor) else way for way in ways])

    def register_prehook(self, hook: Callable[[tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before this node's backward: a tensor, or ``None``, for each output.

        What it returns, if anything, takes their place: a tuple of as many, of the same shapes and dtypes.
        """
        self.prehooks = self.prehooks or {}
        handle = RemovableHandle(self.prehooks)
        self.prehooks[handle.key] = hook
        return handle

    def register_hook(self, hook: Callable[[tuple, tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after this node's backward: a tensor, or ``None``, for each input.

        What it returns, if anything, takes the place of ``grad_inputs``: a tuple of as many, of the same shapes and dtypes.
        Inputs are those of the op (:attr:`op`), in its order. Gradients that a hook has seen are not written in place.
        """
        self.posthooks = self.posthooks or {}
        handle = RemovableHandle(self.posthooks)
        self.posthooks[handle.key] = hook
        return handle

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
        return [(name, array) for name, value in self.saved.copy().items() for array in contents(value)]

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad:
    """The end of a way through the graph: the leaf whose gradient it leads to. Made when asked for: the tape holds the leaf."""

    __slots__ = ("variable",)
    next_functions = ()

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable

    def name(self) -> str:
        """PyTorch's, less its C++ namespace."""
        return "AccumulateGrad"

    def register_hook(self, hook: Any) -> Any:
        """Not offered: nothing of a leaf would hold the hook.

        Raises:
            NotOfferedError: always, with what to use instead.
        """
        raise NotOfferedError(
            "AccumulateGrad: hooks of it are not offered; use the leaf's register_hook() before its gradient is added, or its "
            "register_post_accumulate_grad_hook() afterwards"
        )

    register_prehook = register_hook


class View:
    """How a differentiable view came about: the tensor at its root, the view that it was made of, and the last op."""

    __slots__ = ("base", "before", "root_node", "step")

    def __init__(self, source: Tensor, step: tuple) -> None:
        self.before, self.step = source._view, step
        self.base: Tensor = source if self.before is None else self.before.base
        self.root_node = self.base._node

    def chain(self) -> list[tuple]:
        """The ops that lead from the root to the view, as (op, its other inputs, its parameters)."""
        steps, view = [self.step], self.before
        while view is not None:
            steps.append(view.step)
            view = view.before
        return steps[::-1]


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
                    device, arrays = one_device(op, inputs)
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
            arrays.append(admitted(x) if isinstance(x, FOREIGN) else x)
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
        out = (observed if scope.listeners or device.index else local.run)(op.forward, node, *arrays, **params)
    except BaseException as error:
        if not scope.is_inside(error):
            node.saved = {}
            let_go(error)
            raise
        out = scope.run_inside(op.forward, node, *arrays, **params)
    if type(out) is tuple:
        outputs = tuple([_Tensor._wrap(a, device) for a in out])
        if record:
            connect(node, inputs, outputs)
    else:
        outputs = _new(_Tensor)
        outputs.array = out
        outputs.device = device
        if record:
            connect(node, inputs, (outputs,))
    if op.view:
        _share(op, inputs, params, outputs, enabled)
    if not enabled and local.inference:
        made: Any = outputs if type(out) is tuple else (outputs,)
        for tensor in made:
            tensor._inference = True
    return outputs


def observed(forward: Any, node: Node, *arrays: Any, **params: Any) -> Any:
    """Run an op while somebody listens, so that allocations inside it bear its name; or on a GPU beyond the first."""
    before = local.op, local.line, local.phase
    try:
        local.op = node.op.__name__
        if scope.listeners:
            node.module = local.module
            if local.phase == "user" and True in node.needs:
                local.phase = "forward"
            for listener in scope.listeners:
                listener.running(node, arrays, params)
        with node.device.current():
            return scope.run(forward, node, *arrays, **params)
    finally:
        local.op, local.line, local.phase = before


def _share(op: type[Op], inputs: tuple, params: dict, view: Any, enabled: bool) -> None:
    """The result of a view op shares its source's storage, and remembers the way from the root to itself."""
    source = inputs[0]
    view._storage = source.storage
    if enabled:
        view._view = View(source, (op, inputs[1:], params))
    else:
        view._off_the_record = True


def one_device(op: type[Op], inputs: tuple) -> tuple[Any, list]:
    """All inputs on one device; a 0-d cpu tensor may meet tensors of another device, as a Python number."""
    tensors = [x for x in inputs if isinstance(x, _Tensor)]
    devices = {x.device for x in tensors if x.ndim or x.device.type != "cpu"} or {tensors[0].device}
    if len(devices) > 1 or any(x.device not in devices and x._requires_grad for x in tensors):
        found = ", ".join(f"{list(x.shape)} on {x.device}{x.device.whose}" for x in tensors)
        raise DeviceError(
            f"{op.__name__}: Expected all tensors to be on the same device, found {found}. Move them with .to(device)."
        )
    (device,) = devices
    arrays = [x.item() if isinstance(x, _Tensor) and x.device is not device else x for x in inputs]
    return device, [x.array if isinstance(x, _Tensor) else x for x in arrays]


def connect(node: Node, inputs: tuple, outputs: tuple) -> None:
    """Connect ``node`` to where the gradients of its inputs go, and the outputs to ``node``."""
    edges = []
    for x, need in zip(inputs, node.needs):  # noqa: B905 (on the path of every op: strict costs)
        if not need:
            edges.append(None)
        elif x._view is not None:
            edges.append(x.edge())
        else:
            edges.append((x, 0) if x._node is None else (x._node, x._index))
    node.edges = tuple(edges)
    node.sequence = next_sequence()
    if node.saved or local.saved_hooks:
        remember(node, inputs, outputs)
    if len(outputs) == 1:
        tensor = outputs[0]
        array = tensor.array
        node.shapes = ((array.shape, array.dtype),)
        if array.dtype.kind in FLOATING:
            tensor._node, tensor._requires_grad = node, True
        return
    node.shapes = tuple([(t.array.shape, t.array.dtype) for t in outputs])
    for index, tensor in enumerate(outputs):
        if tensor.array.dtype.kind in FLOATING:
            tensor._node, tensor._index, tensor._requires_grad = node, index, True


def run_backward(node: Node, *grads: Any, owned: bool) -> tuple:
    """Call the op's backward on an opened node, with packed arrays unpacked; always a tuple, one entry an input."""
    kept = None
    if node.packed:
        kept = node.saved if node.keeps_graph else None
        unpack(node)
    node.owns_grad = owned
    try:
        result = node.op.backward(node, *grads)
    finally:
        if kept is not None:
            node.saved = kept
    return result if type(result) is tuple else (result,)


_Tensor: Any = None  # set by tensor.py: the class and the functions that make it refer to each other
