"""``Function``: a differentiable operation that a user writes, as a forward and a backward on tensors.

It is recorded as one node like any op. The tensors given to ``ctx.save_for_backward`` become the node's saved arrays: they are
counted, checked for in-place writes, packed by saved-tensor hooks, and freed as soon as backward has run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import scope
from ..dtypes import FLOATING
from ..errors import ArgumentError, ArgumentTypeError, DeviceError, GraphError, NotOfferedError, pins_nothing
from ..scope import local
from . import core, node_hooks
from .border import share_values
from .sharing import Sharing
from .tensor import Tensor


class FunctionContext:
    """``ctx``: passes values from forward to backward. It may have any attributes; they are not counted as saved.

    Attributes:
        needs_input_grad: one bool for each argument of forward.
        saved_tensors: in backward, the tensors given to :meth:`save_for_backward`.
    """

    _saved: tuple = ()
    _dirty: tuple = ()
    _constant: tuple = ()
    _materialize = True
    _unpacked: tuple | None = None
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save inputs, outputs or other tensors for backward. A second call replaces the first.

        Raises:
            TypeError: an argument is neither a tensor nor ``None``; make it an attribute of ctx instead.
        """
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument is of type {type(t).__name__}; "
                    "put other values on ctx as attributes"
                )
        self._saved = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Mark inputs that forward has written in place. Forward must return each of them."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Mark outputs that have no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward gets ``None`` instead of zeros for outputs that were not used."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple:
        if self._unpacked is None:
            raise GraphError(
                "saved_tensors: they exist only in backward, or were freed: Trying to backward through the graph "
                "a second time? Specify retain_graph=True the first time."
            )
        return self._unpacked


class FunctionNode(core.Node):
    """The node of a :class:`Function`."""

    ctx: FunctionContext
    storages: dict[str, Any]
    devices: tuple
    is_tensor: tuple[bool, ...]

    def name(self) -> str:
        """PyTorch's name of the node."""
        return f"{self.op.__name__}Backward"

    def tensors(self) -> tuple:
        """The saved tensors, in the order in which they were saved."""
        found = []
        for i, device in enumerate(self.devices):
            array = self.saved.get(str(i))
            tensor = None if array is None or device is None else Tensor._wrap(array, device)
            if tensor is not None:
                tensor._storage = self.storages[str(i)]
            found.append(tensor)
        return tuple(found)


class _Rule:
    """A :class:`Function` as the tape sees it: an op."""

    view, differentiable, saves = False, True, ()

    def __init__(self, function: type[Function]) -> None:
        self.__name__, self.function = function.__name__, function

    def backward(self, node: FunctionNode, *grads: Any) -> tuple:
        """Call the user's backward with tensors, and return arrays that the engine may own."""
        ctx = node.ctx
        incoming = [
            node.zeros(shape, dtype) if g is None and ctx._materialize else g
            for g, (shape, dtype) in zip(grads, node.shapes, strict=True)
        ]
        seen = Sharing([g for g in incoming if g is not None])
        before, local.grad_enabled = local.grad_enabled, False
        ctx._unpacked = node.tensors()
        try:
            wrapped = [None if g is None else Tensor._wrap(g, node.device) for g in incoming]
            answer = self.function.backward(ctx, *wrapped)
        finally:
            local.grad_enabled, ctx._unpacked = before, None
        seen.watch(wrapped)
        result = list(answer) if isinstance(answer, (tuple, list)) else [answer]
        del wrapped, answer
        self._check(node, result)
        return seen.own(result, node)

    def _check(self, node: FunctionNode, result: list) -> None:
        """Check the gradients: one for each argument of forward, on the node's device; ``None`` for other arguments."""
        expected = len(node.edges)
        if len(result) > expected and all(r is None for r in result[expected:]):
            del result[expected:]
        if len(result) != expected:
            raise GraphError(
                f"function {node.name()} returned an incorrect number of gradients (expected {expected}, got {len(result)}): "
                "backward returns one gradient, or None, for each argument of forward"
            )
        for i, grad in enumerate(result):
            if grad is None:
                continue
            if not isinstance(grad, Tensor):
                raise TypeError(f"function {node.name()} returned a {type(grad).__name__} at {i}, expected Variable or None")
            if not node.is_tensor[i]:
                raise GraphError(
                    f"function {node.name()} returned a gradient different than None at position {i + 1}, "
                    "but the corresponding forward input was not a Variable"
                )
            edge = node.edges[i]
            if edge is not None and grad.device is not edge[0].device:
                raise DeviceError(
                    f"function {node.name()} returned a gradient on {grad.device} at position {i + 1}, "
                    f"expected one on {edge[0].device}"
                )


class Function:
    """Base of user-written differentiable operations: static ``forward(ctx, *args)`` and ``backward(ctx, *grads)``.

    With a static ``setup_context(ctx, inputs, output)``, forward is ``forward(*args)``. Call ``apply``, never forward.

    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...
    ...     @staticmethod
    ...     def backward(ctx, gy):
    ...         return gy * 2
    """

    _rule: _Rule

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(
            f"{type(self).__name__}: Function subclasses are not instantiated; make forward and backward static methods "
            f"and call {type(self).__name__}.apply(...)"
        )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._rule = _Rule(cls)
        if cls.vjp is not Function.vjp:
            if cls.backward not in (Function.backward, cls.vjp):
                raise ArgumentError(f"{cls.__name__}: implementing both 'backward' and 'vjp' is not allowed: remove one")
            cls.backward = cls.vjp  # type: ignore[method-assign]

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the result; ops inside are not recorded."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> Any:
        """Fill ``ctx`` after a forward that does not take it."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """One gradient, or ``None``, for each argument of forward."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *grads: Any) -> Any:
        """Forward mode."""
        raise NotOfferedError("Function.jvp: forward-mode differentiation is not offered; use backward")

    @classmethod
    @pins_nothing
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward. Record it if an argument requires grad and grad mode is on.

        Where the class has ``setup_context``, arguments may have names and defaults: it gets all of them.

        Raises:
            TypeError: forward does not take the arguments, or returned neither a tensor nor a tuple with one.
            GraphError: a dirty tensor was not returned, or is a leaf that requires grad.
        """
        sets_up = cls.setup_context is not Function.setup_context
        if sets_up:
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        elif kwargs:
            raise ArgumentTypeError(f"{cls.__name__}.apply() takes no keyword arguments, found {list(kwargs)}")
        ctx = FunctionContext()
        ctx.needs_input_grad = tuple([isinstance(x, Tensor) and x.requires_grad for x in args])
        before = local.grad_enabled
        record = before and any(ctx.needs_input_grad)
        edges = [x.edge() if record and need else None for x, need in zip(args, ctx.needs_input_grad, strict=True)]
        local.grad_enabled = False
        try:
            output = cls.forward(*args) if sets_up else cls.forward(ctx, *args)
            if sets_up:
                cls.setup_context(ctx, args, output)
        finally:
            local.grad_enabled = before
        results = output if isinstance(output, (tuple, list)) else (output,)
        if not any(isinstance(r, Tensor) for r in results):
            raise TypeError(
                f"{cls.__name__}.forward: expected to return a Tensor or a tuple of them, found {type(output).__name__}"
            )
        _check_dirty(cls, ctx, args, results, record)
        results = tuple([_output(r, ctx, args) for r in results])
        if record:
            _record(cls, ctx, args, edges, results)
        ctx._dirty = ctx._constant = ()
        return results if isinstance(output, (tuple, list)) else results[0]


def _is_in(tensor: Any, tensors: tuple) -> bool:
    return any(tensor is t for t in tensors)


def _check_dirty(cls: type, ctx: FunctionContext, args: tuple, results: Any, record: bool) -> None:
    for tensor in ctx._dirty:
        if not _is_in(tensor, args) or not _is_in(tensor, tuple(results)):
            raise GraphError(f"{cls.__name__}: mark_dirty() takes inputs that forward returns")
        if not record:
            continue
        if tensor._view is not None:
            raise NotOfferedError(f"{cls.__name__}: mark_dirty() of a view is not offered; write into a clone() of it")
        if tensor.is_leaf and tensor.requires_grad:
            raise GraphError(
                f"a leaf Variable that requires grad is being used in an in-place operation ({cls.__name__}). Use a clone()."
            )


def _output(result: Any, ctx: FunctionContext, args: tuple) -> Any:
    """The tensor that the caller gets. An input that forward returned unchanged becomes a new tensor over the same memory."""
    if not isinstance(result, Tensor) or _is_in(result, ctx._dirty):
        return result
    return result.detach() if _is_in(result, args) or result._node is not None or result._requires_grad else result


def _record(cls: type[Function], ctx: FunctionContext, args: tuple, edges: list, results: tuple) -> None:
    """Make the node: its saved arrays, its edges, and its outputs."""
    tensors = [r for r in results if isinstance(r, Tensor)]
    if len({t.device for t in tensors}) > 1:
        raise NotOfferedError(f"{cls.__name__}: outputs on several devices are not offered; use a Function for each")
    node = FunctionNode(tensors[0].device, ctx.needs_input_grad)
    node.op, node.ctx = cls._rule, ctx
    node.edges, node.sequence = tuple(edges), core.next_sequence()
    node.is_tensor = tuple([isinstance(x, Tensor) for x in args])
    none = ((), np.dtype(np.bool_))
    node.shapes = tuple([(r.array.shape, r.array.dtype) if isinstance(r, Tensor) else none for r in results])
    dirty = ctx._dirty
    for tensor in dirty:
        tensor.storage.written(cls.__name__)
    _save(node, ctx, args)
    constant, ctx._constant = ctx._constant, ()
    for index, tensor in enumerate(results):
        if isinstance(tensor, Tensor) and tensor.array.dtype.kind in FLOATING and not _is_in(tensor, constant):
            tensor._node, tensor._index, tensor._requires_grad = node, index, True
            if tensor._storage is not None and not _is_in(tensor, dirty):
                for x in (*args, *results[:index]):
                    if isinstance(x, Tensor) and x._storage is tensor._storage and x is not tensor:
                        share_values(x, tensor)


def _save(node: FunctionNode, ctx: FunctionContext, args: tuple) -> None:
    """Save arrays and storages, and never tensors: a saved output would make a reference cycle."""
    hooks = node_hooks.hooks_here()
    if hooks:
        local.recorded[hooks[2]] += 1
    node.storages, node.saved, versions = {}, {}, []
    for i, tensor in enumerate(ctx._saved):
        if tensor is None:
            continue
        name, storage = str(i), tensor.storage
        node.saved[name], node.storages[name] = tensor.array, storage
        if hooks:
            node.saved[name] = node_hooks.pack(
                hooks,
                (node, name, None),
                node_hooks.tensor_to_pack(tensor, not _is_in(tensor, args), tensor.array, tensor.device),
            )
            node.packed = True
        else:
            versions.append((name, storage, storage.version))
    node.versions, node.remembers = versions, bool(node.saved)
    if scope.listeners:
        node_hooks.tell_saved(node)
    node.devices = tuple([None if t is None else t.device for t in ctx._saved])
    ctx._saved = ()


F = TypeVar("F", bound=Callable[..., Any])


def once_differentiable(function: F) -> F:
    """Decorator for a backward that cannot be differentiated again. It changes nothing: no backward can be here."""
    return function


class _IsTensor(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_IsTensor):
    """The old wrapper of tensors. ``Variable(t)`` returns a tensor, and each tensor is an instance."""

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Tensor:  # type: ignore[misc]
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
