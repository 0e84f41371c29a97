"""The core: it runs and records ops, keeps arrays for backward, and walks the graph in backward.

Read it from top to bottom:

- :class:`Node`: one recorded run of an op. It holds the saved arrays and drops them as soon as its backward has run. It refers
  to its inputs' nodes and never to the tensors that it made, so nothing here forms a reference cycle: memory falls when the
  last reference goes.
- :func:`apply`: run an op on tensors, and record it.
- :class:`Walk`: one backward. It visits each node once, from the newest to the oldest, without recursion.
- gradients: which buffers the engine owns, and how leaves accumulate them.

It uses two files that a first reader may skip: hooks and reports (``node_hooks.py``, through ``Node.hooks`` and
``local.saved_hooks``), and gradients that are not arrays (``gradients.py``, through ``PARTIAL``). Three files build on the
core: in-place ops (``inplace.py``), functions that users write (``function.py``), and ``backward.py``, which users call.
"""

from __future__ import annotations

import weakref
from collections import deque
from heapq import heappop, heappush
from typing import Any

from .. import scope
from ..devices import refuse_outside
from ..dtypes import FLOATING, PLAIN, admitted, category
from ..errors import DeviceError, GraphError, clear_frames
from ..interrupts import counter, may_wait, reentrant
from ..ops.base import Context, Op, RowsGradient, overlaps_itself, refuses_writes, root_of
from ..scope import local, quiet_numpy
from . import node_hooks
from .gradients import PARTIAL, SparseTensor, accumulate_rows, add_partial, copy, copy_rows, memory_of, unbroadcast, whole
from .node_hooks import Inspectable, call_hooks, gradient_tensor
from .tensor import Tensor

_new = object.__new__
next_sequence = counter(1)


# --- the tape -----------------------------------------------------------------------------------------------------------


class Node(Context, Inspectable):
    """One recorded run of an op: the context of its forward, kept for its backward.

    Attributes:
        op: the op's class.
        edges: where the gradient of each input goes: ``(node, output index)`` or ``(leaf, its shape)``; ``None``: nowhere.
        shapes: (shape, dtype) of each output; gradients are checked against them.
        sequence: position on the tape; backward walks from high to low.
        versions: (name, storage, version) of each saved array that an in-place op could change.
        remembers: True if forward saved anything, and all of it. A node that saved nothing can be walked again, as in PyTorch.
        module, line: where it ran forward; set only while there is a listener.
    """

    op: Any
    shapes: tuple
    sequence = 0
    versions: Any = ()
    remembers = False
    freed = False
    module = line = ""

    def name(self) -> str:
        """PyTorch's name of the node, such as ``MulBackward0``."""
        return f"{self.op.__name__}Backward0"

    def open(self, keep: bool) -> None:
        """Before backward: check that the saved arrays still exist and were not written in place.

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
                    f"{self.op.__name__} saved {name!r} at version {version}; {storage.writer} has written to it "
                    f"since, it is at version {storage.version} now. Write into a clone(), or use the op that makes a new "
                    "tensor."
                )
        self.keeps_graph = keep

    def run_backward(self, *grads: Any, owned: bool) -> tuple:
        """Call the op's backward, with packed arrays unpacked. Returns a tuple with one entry for each input."""
        self.owns_grad = owned
        if not self.packed:
            result = self.op.backward(self, *grads)
        else:
            packed = self.saved
            node_hooks.unpack(self)
            try:
                result = self.op.backward(self, *grads)
            finally:
                if self.keeps_graph:
                    self.saved = packed
        return result if type(result) is tuple else (result,)

    def close(self) -> None:
        """After backward: drop the saved arrays."""
        self.freed = self.remembers  # first: a track that begins in another thread looks at it
        self.saved = {}
        self.versions = ()

    def kept(self) -> list[tuple[str, Any]]:
        """The arrays that it keeps alive for its backward, by name; of a packed array, the tensors that the hook returned."""
        return [(name, array) for name, value in self.saved.copy().items() for array in node_hooks.contents(value)]

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class ViewHistory:
    """The history of a differentiable view: its root tensor, the view that it was made from, and the last op."""

    __slots__ = ("base", "before", "root_node", "step", "version")

    def __init__(self, source: Tensor, step: tuple) -> None:
        self.before, self.step = source._view, step
        self.base: Tensor = source if self.before is None else self.before.base
        self.root_node = self.base._node
        if self.before is not None and source._node is None and self.base._requires_grad:
            self.root_node = ...  # no node: the source is older than the base's gradient; the next write connects this view
        self.version = source.storage.version

    def chain(self) -> list[tuple]:
        """The ops that lead from the root to the view, as (op, its other inputs, its parameters)."""
        steps, view = [self.step], self.before
        while view is not None:
            steps.append(view.step)
            view = view.before
        return steps[::-1]

    def connect(self, tensor: Tensor) -> None:
        """Connect ``tensor``, which is this view, to the root's new node if the root was written in place since.

        A root that has become a leaf since, by ``requires_grad_()``, gets the view's gradient after the next write.
        """
        base, version = self.base._former(), tensor.storage.version
        if version == self.version:  # the root may have been detached since
            return
        if base._node is self.root_node and not (tensor._node is None and base._requires_grad):
            return
        fresh = base
        before, local.grad_enabled = local.grad_enabled, True
        try:
            for op, others, params in self.chain():
                fresh = apply(op, fresh, *others, **params)
        finally:
            local.grad_enabled = before
        with tensor._retained_anew():
            tensor._node, tensor._index, tensor._requires_grad = fresh._node, fresh._index, fresh._requires_grad
        # under hooks a write is counted before it is recorded
        self.root_node, self.version = base._node, -1 if local.saved_hooks else version


# --- forward ------------------------------------------------------------------------------------------------------------


def apply(op: type[Op], *inputs: Any, **params: Any) -> Any:
    """Run ``op`` on tensors and constants. Record it if an input requires a gradient and grad mode is on.

    Returns:
        A tensor, or a tuple of tensors if the op has several outputs.

    Raises:
        DeviceError: the tensors are on different devices.
        Errors of the op for shapes and dtypes; nothing was recorded or changed then.
    """
    arrays, edges, device = [], [], None
    enabled = local.grad_enabled and op.differentiable
    for x in inputs:
        edge: tuple | None = None
        if isinstance(x, Tensor):
            arrays.append(x.array)
            if x.device is not device:
                if device is not None:
                    return apply(op, *one_device(op, inputs), **params)
                device = x.device
            if enabled:
                if x._view is not None:
                    edge = x.edge() if x.requires_grad else None
                elif x._requires_grad:
                    edge = (x, x.array.shape) if x._node is None else (x._node, x._index)
                elif x._off_the_record is not None and x.requires_grad:
                    edge = x.edge()
        else:
            arrays.append(x if type(x) in PLAIN else admitted(x))
        edges.append(edge)
    if device is None:
        device = local.default_device or Tensor.cpu_device()
    node = _new(Node)
    node.device = device
    node.kernels = device.kernels
    node.needs = needs = tuple(map(bool, edges))
    node.saved = {}
    node.op = op
    try:
        out = (observed if scope.listeners or device.index else local.run)(op.forward, node, *arrays, **params)
    except BaseException as error:
        if not scope.is_inside(error):
            node.saved = {}
            clear_frames(error)
            raise
        out = scope.run_inside(op.forward, node, *arrays, **params)
    if type(out) is tuple:
        outputs = tuple([Tensor._wrap(a, device) for a in out])
        if True in needs:
            connect(node, edges, inputs, outputs)
    else:
        outputs = _new(Tensor)
        outputs.array = out
        outputs.device = device
        if True in needs:
            connect(node, edges, inputs, (outputs,))
    if op.view:
        _share(op, inputs, params, outputs, enabled)
    elif local.dry is not None:
        for follow in scope.dry_run_hooks:
            follow(op, inputs, params, outputs)
    if not enabled and local.inference and not op.view:
        made: Any = outputs if type(out) is tuple else (outputs,)
        for tensor in made:
            tensor._inference = True
    return outputs


def observed(forward: Any, node: Node, *arrays: Any, **params: Any) -> Any:
    """Run an op with its name and module set for listeners, and on a GPU other than the first."""
    if not node.op.view:
        refuse_outside(node.device, node.op.__name__)
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
    """Let the result of a view op share its source's storage, and record how it was made from the root."""
    source = inputs[0]
    view._storage = source.storage
    if enabled:
        view._view = ViewHistory(source, (op, inputs[1:], params))
    elif not source._inference:
        base = source if source._view is None else source._view.base
        known = source._off_the_record
        view._off_the_record = known[0] if known else weakref.ref(base), source.storage.version
    if source._inference:
        view._inference = True


def one_device(op: type[Op], inputs: tuple, *written: Tensor) -> list:
    """The inputs on one device. A 0-d cpu tensor may be used with tensors of another device: it becomes a Python number; or a
    copy there, if the op takes no numbers, if it wants a gradient, if it is a bool, which may be a condition, or if its dtype
    decides that of the result, which a number's would not. One that is ``written`` stays.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    devices = {x.device for x in tensors if x.ndim or x.device.kind != "cpu"} | {x.device for x in written}
    if len(devices) > 1:
        found = ", ".join(f"{list(x.shape)} on {x.device}{x.device.whose}" for x in tensors)
        raise DeviceError(
            f"{op.__name__}: Expected all tensors to be on the same device, found {found}. Move them with .to(device)."
        )
    (device,) = devices
    highest = max(category(x.dtype) for x in tensors if x.device is device)
    enabled = local.grad_enabled and op.differentiable
    moved = []
    for x in inputs:
        if isinstance(x, Tensor) and x.device is not device:
            number = op.takes_numbers and x.array.dtype.kind != "b" and category(x.dtype) <= highest
            x = x.item() if number and not (enabled and x.requires_grad) else x.to(device)
        moved.append(x)
    return moved


def connect(node: Node, edges: list, inputs: tuple, outputs: tuple) -> None:
    """Record ``node``: set its edges, remember what it saved of its inputs and outputs, and make the outputs refer to it."""
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


def remember(node: Node, inputs: tuple, outputs: tuple) -> None:
    """Record the versions of saved arrays, report them to listeners, and let saved-tensor hooks pack them.

    With hooks this also runs for a node that saved nothing: a checkpoint counts the ops that its function records.
    """
    versions = []
    hooks = local.saved_hooks and node_hooks.hooks_here()
    if hooks:
        local.recorded[hooks[2]] += 1
        if not node.saved:
            return
    own = node.op.outputs
    for name, array in node.saved.items():
        owner = None
        for tensor in (*outputs, *inputs) if name in own else inputs:
            if isinstance(tensor, Tensor) and tensor.array is array:
                owner = tensor
                if tensor._inference:
                    raise GraphError(
                        f"{node.op.__name__}: Inference tensors cannot be saved for backward. Clone it outside inference_mode."
                    )
                break
        if hooks:  # a hook may have copied the array: later writes to the original are not checked, as in PyTorch
            mine = any(owner is t for t in outputs)
            place = None if owner is None or mine else next((i for i, x in enumerate(inputs) if x is owner), None)
            node.saved[name] = node_hooks.pack(
                hooks, (node, name, place), node_hooks.tensor_to_pack(owner, mine, array, node.device)
            )
            node.packed = True
        elif owner is not None:
            storage = owner._storage or owner.storage
            versions.append((name, storage, storage.version))
    node.versions = versions
    node.remembers = True
    if scope.listeners:
        node_hooks.tell_saved(node)


# --- backward -----------------------------------------------------------------------------------------------------------


class Pending:
    """Gradients for one node or leaf: a buffer for each output, and whether the engine owns the buffer."""

    __slots__ = ("grads", "owned", "waiting")

    def __init__(self, outputs: int) -> None:
        self.waiting = 0
        self.grads: list[Any] = [None] * outputs
        self.owned = [False] * outputs


def run(roots: list, *, keep_graph: bool, inputs: list | None = None) -> list:
    """Send gradients from ``roots`` down the graph.

    Args:
        roots: ``(edge, gradient array, owned)`` for each root. An edge is ``(node, output index)`` or ``(leaf, its shape)``.
        keep_graph: keep what nodes saved, for another backward.
        inputs: edges whose gradients are wanted. Only the paths to them are walked; nothing is accumulated into leaves.

    Returns:
        With ``inputs``, one array (or ``None``) for each; otherwise an empty list, and the leaves have their gradients.
    """
    walk = Walk(keep_graph, inputs)
    walk.begin(roots)
    del roots  # the walk alone holds the gradients now
    walk.finish()
    return [] if inputs is None or walk.wanted is None else [walk.wanted[_key(edge)] for edge in inputs]


def _key(edge: tuple) -> tuple:
    return id(edge[0]), edge[1] if isinstance(edge[0], Node) else 0


class Walk:
    """One backward. While it runs, ``scope.local.walk`` refers to it.

    A node is ready when all gradients that it waits for have arrived. The newest ready node is walked first.

    Attributes:
        keeps_graph: nodes keep their saved arrays.
        kept: objects that a hook keeps until the end of the walk; each is dropped with its key.
        at_end: functions that hooks add, to be called when all leaves have their gradients.
        wanted: (id of a node or leaf, output index) -> gradient, if only these are wanted; ``None``: those of all leaves.
        pending: id of a node or leaf that gradients will reach -> those that have arrived.
        ready: heap of (-sequence, node).
        starts: nodes and leaves of the roots, until the walk begins.
    """

    __slots__ = ("at_end", "keeps_graph", "kept", "pending", "ready", "starts", "wanted")

    def __init__(self, keeps_graph: bool, inputs: list | None) -> None:
        self.keeps_graph = keeps_graph
        self.kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.at_end: list[Any] = []
        self.wanted: dict | None = None if inputs is None else {_key(edge): None for edge in inputs}
        self.pending: dict[int, Pending] = {}
        self.ready: list[tuple[int, Node]] = []

    def begin(self, roots: list) -> None:
        """Find the nodes to walk, and give the roots their gradients."""
        self._count(roots)
        for edge, grad, owned in roots:
            if (state := self.pending.get(id(edge[0]))) is not None:
                self._deliver(state, edge, grad, owned)
        self.starts = [edge[0] for edge, _, _ in roots]

    def finish(self) -> None:
        """Walk all nodes."""
        before = local.phase, local.op, local.module, local.line, local.walk, local.grad_enabled
        local.phase, local.walk, local.grad_enabled = "backward", self, False  # what hooks compute is not recorded
        try:
            with quiet_numpy():
                while self.starts:
                    self._start(self.starts.pop(0))
                ready, step = self.ready, self._step
                while ready:
                    step(heappop(ready)[1])
                while self.at_end:
                    self.at_end.pop(0)()
        finally:
            local.phase, local.op, local.module, local.line, local.walk, local.grad_enabled = before
            self.kept.clear()

    def _start(self, target: Any) -> None:
        if (state := self.pending.get(id(target))) is not None:
            self._arrive(state, target)

    def _count(self, roots: list) -> None:
        """Count the gradients that each reachable node and leaf waits for; with ``wanted``, only on paths to those."""
        pending, order = self.pending, []
        stack = [edge[0] for edge, _, _ in roots]
        while stack:  # it has a target once for each gradient that the target will get
            target = stack.pop()
            state = pending.get(id(target))
            if state is None:
                if isinstance(target, Node):
                    order.append(target)
                    stack += [edge[0] for edge in target.edges if edge is not None]
                    state = Pending(len(target.shapes))
                else:
                    state = Pending(1)
                pending[id(target)] = state
            state.waiting += 1
        if self.wanted is not None:
            useful = {key[0] for key in self.wanted} & pending.keys()
            for node in sorted(order, key=lambda node: node.sequence):  # the inputs of a node come before the node
                if any(edge is not None and id(edge[0]) in useful for edge in node.edges):
                    useful.add(id(node))
            for key in pending.keys() - useful:  # what is not useful sends nothing to what is
                del pending[key]

    def _step(self, node: Node) -> None:
        """Run one node's backward, free its saved arrays, and pass its gradients on."""
        state = self.pending.pop(id(node))
        grads, owned, hooks = state.grads, state.owned, node.hooks
        if hooks is not None:
            hooks.arrived(node, grads, owned, accumulate)
        if self.wanted is not None and self._ends_at(node, grads, owned):
            return
        if hooks is not None and (hooks.before or hooks.after):
            grads = hooks.call(hooks.before, node, grads)
            owned = [False] * len(grads)  # a hook may have kept the gradients: the engine no longer owns them
        node.open(self.keeps_graph)
        edges = node.edges
        nothing = grads[0] is None if len(grads) == 1 else all(g is None for g in grads)
        if nothing or not any(edges):
            result: tuple = (None,) * len(edges)
        else:
            local.op, local.module, local.line = node.op.__name__, node.module, node.line
            if node.device.index:
                with node.device.current():
                    result = node.run_backward(*grads, owned=all(owned))
            else:
                result = node.run_backward(*grads, owned=all(owned))
        if len(result) != len(edges):
            raise GraphError(f"{node.name()} returned {len(result)} gradients for {len(edges)} inputs")
        if not self.keeps_graph:
            node.close()
        if hooks is not None and hooks.after:
            before = tuple([gradient_tensor(g, node.device) for g in grads])
            result = tuple(hooks.call(hooks.after, node, _in_shape(node, result), before))
            del before
            owned = [False] * len(result)
        else:
            owned = _ownership(grads, owned, result)
        state.grads = grads = None  # type: ignore[assignment]  # what is not sent on is free from here
        sent = list(result)
        del result
        for index, edge in enumerate(edges):
            if edge is None:
                continue
            grad, sent[index] = sent[index], None
            state = self.pending.get(id(edge[0]))
            if state is None:
                grad = None  # not wanted
                continue
            if grad is not None:
                self._deliver(state, edge, grad, owned[index])
                grad = None
            self._arrive(state, edge[0])

    def _ends_at(self, node: Node, grads: list, owned: list) -> bool:
        """Take the wanted gradients of a node's outputs. Returns True if nothing beyond the node is wanted."""
        wanted: Any = self.wanted
        for index, grad in enumerate(grads):
            if grad is not None and (id(node), index) in wanted:
                wanted[(id(node), index)] = grad if owned[index] else copy(node.device, grad)
                owned[index] = False
        return not any(edge is not None and id(edge[0]) in self.pending for edge in node.edges)

    def _deliver(self, state: Pending, edge: tuple, grad: Any, owned: bool) -> None:
        """Add a gradient to the sum at its node or leaf, after conversion to the shape and dtype needed there."""
        target, index = edge
        device = target.device
        if isinstance(target, Node):
            shape, dtype = target.shapes[index]
        else:
            shape, dtype, index = index, target._dtype_of_grad(grad), 0
            if shape != target.array.shape:
                raise _reshaped_error(target, shape)
        if grad.shape != shape:
            if type(grad) in PARTIAL:  # of a tensor that changed its shape in place under no_grad
                grad, owned = add_partial(device, None, False, grad, owned, grad.dtype, leaf=False)
            grad, owned = unbroadcast(device, grad, shape), True
        present = state.grads[index]
        if type(grad) in PARTIAL or type(present) in PARTIAL:
            leaf = not isinstance(target, Node)
            total = add_partial(device, present, state.owned[index], grad, owned, dtype, leaf)
            state.grads[index], state.owned[index] = total
            return
        if grad.dtype != dtype:
            grad, owned = copy(device, grad, dtype), True
        if present is not None:
            out = present if state.owned[index] else grad if owned else device.empty(shape, dtype)
            device.kernels.add(present, grad, out=out)
            grad, owned = out, True
        state.grads[index], state.owned[index] = grad, owned

    def _arrive(self, state: Pending, target: Any) -> None:
        """Count one expected gradient. After the last one a leaf takes its gradient, or a node becomes ready."""
        state.waiting -= 1
        if state.waiting:
            return
        if isinstance(target, Node):
            heappush(self.ready, (-target.sequence, target))
            return
        del self.pending[id(target)]
        if state.grads[0] is None:
            return
        if target._hooks:
            grad, owned = call_hooks(target._hooks, state.grads.pop(), state.owned[0], target.device)
        else:
            grad, owned = state.grads.pop(), state.owned[0]
        if self.wanted is None:
            if target._requires_grad:  # not frozen since the forward
                accumulate(target, grad, owned)
        elif (key := (id(target), 0)) in self.wanted:
            self.wanted[key] = grad if owned or type(grad) is RowsGradient else copy(target.device, grad)


def _reshaped_error(leaf: Tensor, shape: tuple) -> GraphError:
    return GraphError(
        f"backward: a leaf had the shape {list(shape)} in the forward and has {list(leaf.shape)} now, so its gradient does not "
        "fit: set .data to another shape before the forward or after backward, not between them"
    )


# --- gradients: ownership, and accumulation into leaves -----------------------------------------------------------------


def _ownership(grads: list, owned: list, result: tuple) -> list:
    """For each gradient that a backward returned: True if the engine owns its memory alone, and so may write into it.

    A returned gradient may share the memory of the incoming one. The engine owns it if it owned the incoming gradient and no
    other result shares that memory.
    """
    if len(result) == 1 and result[0] is grads[0]:
        return owned
    arrays = result if PARTIAL.isdisjoint(map(type, result)) else [memory_of(r) for r in result]
    roots = [0 if r is None else id(root_of(r)) for r in arrays]
    incoming = {id(root_of(g)): mine for g, mine in zip(grads, owned) if g is not None}  # noqa: B905
    return [
        r is not None and incoming.get(root, True) and roots.count(root) == 1 and _has_own_elements(r)
        for r, root in zip(arrays, roots)  # noqa: B905 (once a node: strict costs)
    ]


def _has_own_elements(array: Any) -> bool:
    """True if each element has its own memory, to write into. A broadcast view has not, nor has an empty array."""
    return array.size > 0 and (0 not in array.strides or array.size == 1 or array.flags.c_contiguous)


def _in_shape(node: Node, result: tuple) -> list:
    """The gradients that a backward returned, each in the shape of its input."""
    grads = list(result)
    for i, edge in enumerate(node.edges):
        if grads[i] is None or edge is None:
            grads[i] = None
            continue
        shape = edge[0].shapes[edge[1]][0] if isinstance(edge[0], Node) else edge[1]
        if grads[i].shape != shape:
            grads[i] = unbroadcast(node.device, grads[i], shape)
        if type(grads[i]) in PARTIAL and type(grads[i]) is not RowsGradient:
            grads[i] = whole(node.device, grads[i], grads[i].dtype)
    return grads


_accumulating = reentrant()
_late: deque[tuple] = deque()  # from walks that must not wait; the thread with the lock above adds them


def accumulate(leaf: Tensor, grad: Any, owned: bool) -> None:
    """Add to ``leaf.grad``. An owned buffer becomes the gradient; any other is copied, so that no two tensors share one."""
    if may_wait():
        with _accumulating:  # two threads may add to one leaf
            _add(leaf, grad, owned)
        _call_post_hooks(leaf)
    else:
        mine = grad if owned else copy_rows(leaf.device, grad) if type(grad) is RowsGradient else copy(leaf.device, grad)
        _late.append((leaf, mine, True))
        del grad, mine
    while _late and _accumulating.acquire(blocking=False):
        late = None
        try:
            if _late:
                late = _late.popleft()
                _add(*late)
        finally:
            _accumulating.release()
        if late is not None:
            _call_post_hooks(late[0])


def _add(leaf: Tensor, grad: Any, owned: bool) -> None:
    device, present = leaf.device, leaf._grad
    if type(grad) is RowsGradient or isinstance(present, SparseTensor):
        accumulate_rows(leaf, grad, owned)
    elif present is not None:
        if refuses_writes(present.array):
            raise GraphError("backward: the memory of .grad is read-only, for example expanded; give it a clone()")
        if overlaps_itself(present.array):
            raise GraphError("backward: elements of .grad share memory, as in overlapping windows; give it a clone()")
        if present.array.shape != grad.shape:  # .data was set to another shape
            raise GraphError(f"backward: .grad is {list(present.shape)} and new is {list(grad.shape)}: set .grad to None")
        if present.device is not device:
            raise DeviceError(f"backward: .grad is on {present.device} and new on {device}: set .grad to None")
        device.kernels.add(present.array, grad, out=present.array)
        present.storage.written("backward")
    else:
        if not owned or not grad.flags.c_contiguous:
            grad = copy(device, grad)
        leaf._take_grad(grad)


def _call_post_hooks(leaf: Tensor) -> None:
    if leaf._post_accumulate:
        for hook in list(leaf._post_accumulate.values()):
            if hook(leaf) is not None:
                raise GraphError("Tensor post accumulate grad hooks should return None: change tensor.grad in place")
