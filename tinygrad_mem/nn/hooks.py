"""Calling a module that has hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops.base import Context, Op

if TYPE_CHECKING:
    from .module import Module


def hooked(module: Module) -> bool:
    """Whether a call has more to do than forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def call_with_hooks(module: Module, args: tuple, kwargs: dict) -> Any:
    """Pre-hooks, forward, hooks; gradients that pass the module's border are shown to backward hooks."""
    called: set[int] = set()
    try:
        for hook, with_kwargs in list(module._forward_pre_hooks.values()):
            args, kwargs = _before(module, hook, with_kwargs, args, kwargs)
        border = None
        if module._backward_hooks or module._backward_pre_hooks:
            border = Border(module)
            args = border.enter(args)
        result = module.forward(*args, **kwargs)
        for key, (hook, with_kwargs, _) in list(module._forward_hooks.items()):
            called.add(key)
            answer = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if answer is None else answer
        return result if border is None else border.leave(result)
    except Exception:
        for key, (hook, with_kwargs, always) in list(module._forward_hooks.items()):
            if always and key not in called:
                hook(module, args, kwargs, None) if with_kwargs else hook(module, args, None)
        raise


def _before(module: Module, hook: Any, with_kwargs: bool, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    if not with_kwargs:
        answer = hook(module, args)
        return (args if answer is None else answer if isinstance(answer, tuple) else (answer,)), kwargs
    answer = hook(module, args, kwargs)
    if answer is None:
        return args, kwargs
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise RuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {answer}.")
    return answer


class Border:
    """Where gradients come into a module and go out of it: one node around its outputs, one around its inputs.

    Only positional tensors, and tuples or lists of tensors as outputs, are seen, as in PyTorch.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.pre_hooks = list(module._backward_pre_hooks.values())
        self.hooks = list(module._backward_hooks.values())
        self.inputs = 0
        self.input_watched = False
        self.outgoing: tuple = ()

    def enter(self, args: tuple) -> tuple:
        """The arguments, with their tensors behind a node."""
        where = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        self.inputs = len(where)
        self.input_watched = any(args[i].requires_grad for i in where) and bool(self.hooks)
        if not self.input_watched:
            return args
        changed = list(args)
        for i, tensor in zip(where, self._behind_node([args[i] for i in where], self.at_inputs), strict=True):
            changed[i] = tensor
        return tuple(changed)

    def leave(self, result: Any) -> Any:
        """The result, with its tensors behind a node."""
        several = isinstance(result, (tuple, list))
        parts = list(result) if several else [result]
        where = [i for i, a in enumerate(parts) if isinstance(a, Tensor)]
        if not any(parts[i].requires_grad for i in where):
            return result
        for i, tensor in zip(where, self._behind_node([parts[i] for i in where], self.at_outputs), strict=True):
            parts[i] = tensor
        if not several:
            return parts[0]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)

    @staticmethod
    def _behind_node(tensors: list, seen: Any) -> tuple:
        passed = apply(ModuleBorder, *tensors, seen=seen)
        for tensor, source in zip(passed, tensors, strict=True):
            tensor._storage = source.storage
        return passed

    def at_outputs(self, grads: tuple) -> tuple:
        """Backward reaches the outputs."""
        for hook in self.pre_hooks:
            grads = _answered(hook(self.module, grads), grads, "grad_output")
        self.outgoing = grads
        if not self.input_watched:
            for hook in self.hooks:
                if hook(self.module, (None,) * self.inputs, grads) is not None:
                    raise RuntimeError("backward hook for Modules where no input requires gradient should always return None")
            self.outgoing = ()
        return grads

    def at_inputs(self, grads: tuple) -> tuple:
        """Backward reaches the inputs."""
        for hook in self.hooks:
            grads = _answered(hook(self.module, grads, self.outgoing), grads, "grad_input")
        self.outgoing = ()
        return grads


def _answered(answer: Any, grads: tuple, name: str) -> tuple:
    """A hook's answer in the place of the gradients that it saw."""
    if answer is None:
        return grads
    answer = answer if isinstance(answer, tuple) else (answer,)
    if len(answer) != len(grads):
        raise RuntimeError(f"backward hook returned an invalid number of {name}: got {len(answer)}, expected {len(grads)}")
    for given, seen in zip(answer, grads, strict=True):
        if given is not None and seen is not None and given.shape != seen.shape:
            raise ShapeError(f"backward hook returned a {name} of shape {list(given.shape)}, expected {list(seen.shape)}")
    return answer


class ModuleBorder(Op):
    """Passes tensors on unchanged, and shows their gradients. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, *arrays: Any, seen: Any) -> tuple:
        ctx.seen = seen
        return tuple([a.view() for a in arrays])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        shown = tuple([None if g is None else _shown(ctx, g) for g in grads])
        return tuple([None if t is None else t.array for t in ctx.seen(shown)])


def _shown(ctx: Context, grad: Any) -> Tensor:
    """A copy: hooks may keep what they see, while the engine may write over what it owns."""
    copy = ctx.device.empty(grad.shape, grad.dtype)
    ctx.kernels.copy(grad, out=copy)
    return Tensor._wrap(copy, ctx.device)
