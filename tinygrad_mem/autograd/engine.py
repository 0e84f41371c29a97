"""The engine: walks the tape from the roots to the leaves, once, without recursion, and frees as it goes.

It alone reduces gradients to the shape of what they belong to, adds them up, and decides who owns a gradient's buffer.
A buffer is *owned* when nobody else can see it: then it is added into, or written over by the next backward, in place.
"""

from __future__ import annotations

import heapq
import weakref
from typing import Any

from ..errors import ArgumentTypeError, DTypeError, GraphError, ShapeError
from ..ops.base import Part, Rows
from ..scope import local, quiet_numpy
from . import sparse
from .accumulation import accumulate, copy
from .shape import root_of
from .tape import Node, run_backward


class Pending:
    """Gradients on their way to one node or leaf: a buffer for each output, and whether the buffer is ours."""

    __slots__ = ("grads", "owned", "waiting")

    def __init__(self, outputs: int) -> None:
        self.waiting = 0
        self.grads: list[Any] = [None] * outputs
        self.owned = [False] * outputs


class Walk:
    """One run of the engine, as hooks find it in ``scope.local.walk``: what they make for it is dropped when it ends.

    Attributes:
        kept: whatever a hook keeps for the rest of the walk, under an object whose end is its end too.
    """

    __slots__ = ("keeps_graph", "kept")

    def __init__(self, keeps_graph: bool) -> None:
        self.keeps_graph = keeps_graph
        self.kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def run(roots: list, *, keep_graph: bool, inputs: list | None = None) -> list:
    """Send gradients from ``roots`` down the graph.

    Args:
        roots: ``(edge, gradient array, owned)`` for each root.
        keep_graph: keep what nodes saved, for another backward.
        inputs: edges whose gradients are wanted; only the way to them is walked, and nothing is accumulated into leaves.

    Returns:
        With ``inputs``, one array (or ``None``) each; otherwise an empty list: leaves have got their gradients.
    """
    wanted = None if inputs is None else {_key(edge): None for edge in inputs}
    pending = _count(roots, wanted)
    ready: list[tuple[int, Node]] = []
    for edge, grad, owned in roots:
        _deliver(pending.get(id(edge[0])), edge, grad, owned)
    for edge, _, _ in roots:
        _arrive(pending, ready, edge[0], wanted)
    del roots, edge, grad  # the walk alone holds them now
    before = local.phase, local.op, local.module, local.line, local.walk
    local.phase, local.walk = "backward", Walk(keep_graph)
    try:
        with quiet_numpy():
            while ready:
                node = heapq.heappop(ready)[1]
                _step(node, pending, ready, keep_graph, wanted)
    finally:
        local.phase, local.op, local.module, local.line, local.walk = before
    return [] if inputs is None or wanted is None else [wanted[_key(edge)] for edge in inputs]


def _key(edge: tuple) -> tuple:
    return id(edge[0]), edge[1]


def _count(roots: list, wanted: dict | None) -> dict[int, Pending]:
    """How many gradients each node and leaf that can be reached waits for; with ``wanted``, only on the way to those."""
    pending: dict[int, Pending] = {}
    seen: dict[int, Any] = {}
    order: list[Node] = []
    stack = [edge[0] for edge, _, _ in roots]
    while stack:
        target = stack.pop()
        if id(target) in seen:
            continue
        seen[id(target)] = target
        if isinstance(target, Node):
            order.append(target)
            stack.extend([edge[0] for edge in target.edges if edge is not None])
    if wanted is None:
        useful = seen
    else:
        goals = {key[0] for key in wanted}
        useful = dict.fromkeys(goals & seen.keys())
        for node in sorted(order, key=_by_sequence):  # inputs come before what is made of them
            if any(edge is not None and id(edge[0]) in useful for edge in node.edges):
                useful[id(node)] = None
    for key, target in seen.items():
        if key in useful:
            pending[key] = Pending(len(target.shapes) if isinstance(target, Node) else 1)
    for edge, _, _ in roots:
        if id(edge[0]) in pending:
            pending[id(edge[0])].waiting += 1
    for node in order:
        if id(node) in useful:
            for edge in node.edges:
                if edge is not None and id(edge[0]) in pending:
                    pending[id(edge[0])].waiting += 1
    return pending


def _by_sequence(node: Node) -> int:
    return node.sequence


def _step(node: Node, pending: dict, ready: list, keep_graph: bool, wanted: dict | None) -> None:
    """One node: run hooks, run its backward, free what it saved, send its gradients on."""
    state = pending.pop(id(node))
    grads, owned = state.grads, state.owned
    if node.hooks or node.retained or wanted is not None:
        _observe(node, grads, owned, wanted)
    if wanted is not None and not any(edge is not None and id(edge[0]) in pending for edge in node.edges):
        return  # its gradient was asked for, and nothing beyond it: it stays as it is
    if node.prehooks:
        grads = _answered(node, node.prehooks, grads)
    if node.prehooks or node.posthooks:  # what a hook has seen is no longer ours alone
        owned = [False] * len(grads)
    node.open(keep_graph)
    if all(g is None for g in grads) or all(edge is None for edge in node.edges):
        result: tuple = (None,) * len(node.edges)
    else:
        mine = owned[0] if len(owned) == 1 else all(owned)
        local.op, local.module, local.line = node.op.__name__, node.module, node.line
        if node.device.index:
            with node.device.current():
                result = run_backward(node, *grads, owned=mine)
        else:
            result = run_backward(node, *grads, owned=mine)
    if len(result) != len(node.edges):
        raise GraphError(f"{node.name()} returned {len(result)} gradients for {len(node.edges)} inputs")
    if not keep_graph:
        node.close()
    if node.posthooks:
        before = tuple([_shown(g, node.device) for g in grads])
        result = tuple(_answered(node, node.posthooks, _in_shape(node, result), before))
        del before
        owned = [False] * len(result)
    else:
        owned = _ownership(grads, owned, result)
    state.grads = grads = None  # type: ignore[assignment]  # what is not sent on is free from here
    sent = list(result)
    del result
    for index, edge in enumerate(node.edges):
        if edge is None:
            continue
        target, grad, sent[index] = edge[0], sent[index], None
        if grad is not None:
            _deliver(pending.get(id(target)), edge, grad, owned[index])
            grad = None
        _arrive(pending, ready, target, wanted)


def _shown(grad: Any, device: Any) -> Any:
    """A gradient as hooks see it."""
    from .tensor import Tensor

    return None if grad is None else sparse.SparseTensor(grad, device) if type(grad) is Rows else Tensor._wrap(grad, device)


def _in_shape(node: Node, result: tuple) -> list:
    """What a backward returned, each in the shape of its input."""
    grads = list(result)
    for i, edge in enumerate(node.edges):
        if grads[i] is None or edge is None:
            grads[i] = None
            continue
        shape = edge[0].shapes[edge[1]][0] if isinstance(edge[0], Node) else edge[0].array.shape
        if grads[i].shape != shape:
            grads[i] = _unbroadcast(node.device, grads[i], shape)
        if type(grads[i]) is Part:
            grads[i] = _whole(node.device, grads[i], grads[i].dtype)
    return grads


def _answered(node: Node, hooks: dict, grads: Any, *more: tuple) -> list:
    """Hooks of a node see all gradients at once (and ``more``), and may answer with a tuple of as many."""
    from .tensor import Tensor

    for hook in list(hooks.values()):
        answer = hook(tuple([_shown(g, node.device) for g in grads]), *more)
        if answer is None:
            continue
        if not isinstance(answer, tuple):
            raise ArgumentTypeError(f"a hook of {node.name()}: expected tuple, but hook returned {type(answer).__name__!r}")
        if len(answer) != len(grads):
            raise GraphError(
                f"a hook of {node.name()} has returned an incorrect number of values (got {len(answer)}, but expected "
                f"{len(grads)})"
            )
        for new, old in zip(answer, grads, strict=True):
            if new is None:
                continue
            if not isinstance(new, (Tensor, sparse.SparseTensor)) or old is None or tuple(new.shape) != tuple(old.shape):
                raise ShapeError(
                    f"a hook of {node.name()} has changed the size of value: expected "
                    f"{None if old is None else list(old.shape)}, found {new!r}"
                )
            if new.dtype != old.dtype:
                raise DTypeError(f"a hook of {node.name()} has changed the type of value: {old.dtype} became {new.dtype}")
        grads = [a.rows if isinstance(a, sparse.SparseTensor) else None if a is None else a.array for a in answer]
    return grads


def _ownership(grads: list, owned: list, result: tuple) -> list:
    """Which of the gradients that a backward returned belong to the engine alone.

    One that shows the incoming gradient's memory does if the incoming one did, and no other result shows it too.
    """
    if len(result) == 1 and result[0] is grads[0]:
        return owned
    shown = [r.values if type(r) is Rows or type(r) is Part else r for r in result]
    roots = [0 if r is None else id(root_of(r)) for r in shown]
    incoming = {id(root_of(g)): mine for g, mine in zip(grads, owned) if g is not None}  # noqa: B905
    return [
        r is not None and incoming.get(root, True) and roots.count(root) == 1 and _dense(r)
        for r, root in zip(shown, roots)  # noqa: B905 (once a node: strict costs)
    ]


def _dense(array: Any) -> bool:
    """Whether every element has memory of its own, to write into (a broadcast view has not, nor has what has no elements)."""
    return array.size > 0 and (0 not in array.strides or array.size == 1 or array.flags.c_contiguous)


def _deliver(state: Pending | None, edge: tuple, grad: Any, owned: bool) -> None:
    """Give a gradient to the node or leaf that it belongs to, in that one's shape and dtype, adding to what is there."""
    if state is None:
        return  # nobody asked for it
    target, index = edge
    device = target.device
    if isinstance(target, Node):
        shape, dtype = target.shapes[index]
    else:
        shape, dtype = target.array.shape, target._dtype_of_grad(grad)
    if grad.shape != shape:
        grad, owned = _unbroadcast(device, grad, shape), True
    present = state.grads[index]
    if type(grad) is Part:
        if present is not None and type(present) is not Rows:
            state.grads[index], state.owned[index] = _put(device, present, state.owned[index], grad), True
            return
        grad, owned = _whole(device, grad, dtype), True
    if type(grad) is Rows or type(present) is Rows:
        leaf = not isinstance(target, Node)
        arrived = sparse.arrived(device, present, state.owned[index], grad, owned, dtype, leaf)
        state.grads[index], state.owned[index] = arrived
        return
    if grad.dtype != dtype:
        cast = device.empty(shape, dtype)
        device.kernels.copy(grad, out=cast)  # copies cast
        grad, owned = cast, True
    if present is None:
        state.grads[index], state.owned[index] = grad, owned
        return
    if state.owned[index]:
        out = present
    elif owned:
        out = grad
    else:
        out = device.empty(shape, dtype)
    device.kernels.add(present, grad, out=out)
    state.grads[index], state.owned[index] = out, True


def _whole(device: Any, part: Part, dtype: Any) -> Any:
    """A buffer that is 0 but in the part."""
    out = device.empty(part.shape, dtype)
    device.kernels.fill(0, out=out)
    device.kernels.copy(part.values, out=out[part.key])
    return out


def _put(device: Any, present: Any, owned: bool, part: Part) -> Any:
    """``present`` and the part added to it, in place where that is ours: slices of one tensor share one buffer."""
    out, values = present if owned else copy(device, present), part.values
    if values.dtype != out.dtype:
        cast = device.empty(values.shape, out.dtype)
        device.kernels.copy(values, out=cast)
        values = cast
    place = out[part.key]
    device.kernels.add(place, values, out=place)
    return out


def _unbroadcast(device: Any, grad: Any, shape: tuple) -> Any:
    """Sum ``grad`` over the axes along which ``shape`` was broadcast."""
    lead = grad.ndim - len(shape)
    if lead < 0 or any(n != 1 and n != g for n, g in zip(shape, grad.shape[lead:], strict=True)):
        raise ShapeError(f"a backward returned a gradient of shape {list(grad.shape)} for an input of shape {list(shape)}")
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and grad.shape[lead + i] != 1)
    out = device.empty(shape, grad.dtype)
    kept = (1,) * lead + shape
    device.kernels.sum(grad, axes, out=out.reshape(kept))
    return out


def _arrive(pending: dict, ready: list, target: Any, wanted: dict | None) -> None:
    """One expected gradient has been sent; when it was the last, a leaf takes its gradient and a node becomes ready."""
    state = pending.get(id(target))
    if state is None:
        return
    state.waiting -= 1
    if state.waiting:
        return
    if isinstance(target, Node):
        heapq.heappush(ready, (-target.sequence, target))
        return
    del pending[id(target)]
    if state.grads[0] is None:
        return
    grad, owned = _run_hooks(target._hooks, state.grads.pop(), state.owned[0], target.device)
    if wanted is None:
        accumulate(target, grad, owned)
    elif (key := (id(target), 0)) in wanted:
        wanted[key] = grad if owned or type(grad) is Rows else copy(target.device, grad)


def _observe(node: Node, grads: list, owned: list, wanted: dict | None) -> None:
    """Tensor hooks of a node's outputs, gradients that tensors retain, and those that were asked for by name."""
    for index, grad in enumerate(grads):
        if grad is None:
            continue
        if node.hooks and index in node.hooks:
            grads[index], owned[index] = _run_hooks(node.hooks[index], grad, owned[index], node.device)
        tensor = node.retained[index]() if node.retained and index in node.retained else None
        if tensor is not None:
            accumulate(tensor, grads[index], owned[index])
            owned[index] = False
        if wanted is not None and (id(node), index) in wanted:
            wanted[(id(node), index)] = grads[index] if owned[index] else copy(node.device, grads[index])
            owned[index] = False


def _run_hooks(hooks: Any, grad: Any, owned: bool, device: Any) -> tuple[Any, bool]:
    """Hooks see a tensor and may answer with another; a gradient that a hook has seen is no longer ours alone."""
    if not hooks:
        return grad, owned
    from .tensor import Tensor

    for hook in list(hooks.values()):
        answer = hook(sparse.SparseTensor(grad, device) if type(grad) is Rows else Tensor._wrap(grad, device))
        if answer is None:
            continue
        if isinstance(answer, sparse.SparseTensor) and answer.shape == grad.shape and answer.dtype == grad.dtype:
            grad = answer.rows
            continue
        if not isinstance(answer, Tensor) or answer.shape != grad.shape:
            raise ShapeError(f"a tensor hook must return None or a tensor of shape {list(grad.shape)}, found {answer!r}")
        if answer.array.dtype != grad.dtype:
            raise DTypeError(f"a tensor hook has changed the type of the gradient: expected {grad.dtype}, found {answer.dtype}")
        grad = answer.array
    return grad, False
