"""Hooks of gradients: of tensors, of nodes, and ``retain_grad``. All that users hang on one node is a :class:`GradientHooks`.

A node has none until somebody asks for it, and the walk of backward looks once whether it has.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentTypeError, DTypeError, GraphError, NotOfferedError, ShapeError
from ..ops.base import RowsGradient
from .hooks import RemovableHandle
from .sparse import SparseTensor
from .tensor import Tensor


class GradientHooks:
    """The hooks that users hung on one node.

    Attributes:
        of_outputs: output index -> hooks of the tensor that it is.
        retained: output index -> weak reference to the tensor that wants its gradient kept.
        before, after: hooks of the node itself, before and after its backward.
    """

    __slots__ = ("after", "before", "of_outputs", "retained")

    def __init__(self) -> None:
        self.of_outputs: dict[int, dict] = {}
        self.retained: dict[int, weakref.ref[Tensor]] = {}
        self.before: dict[int, Callable] = {}
        self.after: dict[int, Callable] = {}

    def arrived(self, node: Any, grads: list, owned: list, accumulate: Callable) -> None:
        """The gradients of all outputs are known: show them to the outputs' hooks, give them to tensors that retain theirs."""
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
        """Hooks of a node see all gradients at once (and ``more``), and may answer with a tuple of as many.

        Raises:
            ArgumentTypeError, GraphError, ShapeError, DTypeError: the answer is no tuple, or not as many, or not alike.
        """
        for hook in list(hooks.values()):
            answer = hook(tuple([shown(g, node.device) for g in grads]), *more)
            if answer is not None:
                _check(node, answer, grads)
                grads = [a.rows if isinstance(a, SparseTensor) else None if a is None else a.array for a in answer]
        return grads


def shown(grad: Any, device: Any) -> Any:
    """A gradient as hooks see it: a tensor."""
    return None if grad is None else SparseTensor(grad, device) if type(grad) is RowsGradient else Tensor._wrap(grad, device)


def _check(node: Any, answer: Any, grads: list) -> None:
    if not isinstance(answer, tuple):
        raise ArgumentTypeError(f"a hook of {node.name()}: expected tuple, but hook returned {type(answer).__name__!r}")
    if len(answer) != len(grads):
        raise GraphError(
            f"a hook of {node.name()} has returned an incorrect number of values (got {len(answer)}, but expected {len(grads)})"
        )
    for new, old in zip(answer, grads, strict=True):
        if new is None:
            continue
        if not isinstance(new, (Tensor, SparseTensor)) or old is None or tuple(new.shape) != tuple(old.shape):
            raise ShapeError(
                f"a hook of {node.name()} has changed the size of value: expected "
                f"{None if old is None else list(old.shape)}, found {new!r}"
            )
        if new.dtype != old.dtype:
            raise DTypeError(f"a hook of {node.name()} has changed the type of value: {old.dtype} became {new.dtype}")


def call_hooks(hooks: dict, grad: Any, owned: bool, device: Any) -> tuple[Any, bool]:
    """Hooks of a tensor see its gradient and may answer with another; what a hook has seen is no longer the engine's alone.

    Raises:
        ShapeError, DTypeError: the answer is no tensor of the gradient's shape and dtype.
    """
    if not hooks:
        return grad, owned
    for hook in list(hooks.values()):
        answer = hook(shown(grad, device))
        if answer is None:
            continue
        if isinstance(answer, SparseTensor) and answer.shape == grad.shape and answer.dtype == grad.dtype:
            grad = answer.rows
            continue
        if not isinstance(answer, Tensor) or answer.shape != grad.shape:
            raise ShapeError(f"a tensor hook must return None or a tensor of shape {list(grad.shape)}, found {answer!r}")
        if answer.array.dtype != grad.dtype:
            raise DTypeError(f"a tensor hook has changed the type of the gradient: expected {grad.dtype}, found {answer.dtype}")
        grad = answer.array
    return grad, False


class Inspectable:
    """The part of a node that users see: its neighbours, as PyTorch names them, and its hooks."""

    edges: tuple
    hooks: GradientHooks | None = None

    @property
    def next_functions(self) -> tuple:
        """PyTorch's view of ``edges``, where a leaf stands behind an :class:`AccumulateGrad`."""
        ways: Any = [edge or (None, 0) for edge in self.edges]
        return tuple([(AccumulateGrad(way[0]), 0) if isinstance(way[0], Tensor) else way for way in ways])

    def own_hooks(self) -> GradientHooks:
        """The node's hooks, made when somebody first asks."""
        if self.hooks is None:
            self.hooks = GradientHooks()
        return self.hooks

    def register_prehook(self, hook: Callable[[tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before this node's backward: a tensor, or ``None``, for each output.

        What it returns, if anything, takes their place: a tuple of as many, of the same shapes and dtypes.
        """
        return RemovableHandle(self.own_hooks().before, hook)

    def register_hook(self, hook: Callable[[tuple, tuple], tuple | None]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after this node's backward: a tensor, or ``None``, for each input.

        What it returns, if anything, takes the place of ``grad_inputs``: a tuple of as many, of the same shapes and dtypes.
        Inputs are those of the op (``op``), in its order. Gradients that a hook has seen are not written in place.
        """
        return RemovableHandle(self.own_hooks().after, hook)


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
