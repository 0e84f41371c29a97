"""Calling a module that has hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..autograd.border import behind_border, share_values
from ..autograd.tensor import Tensor
from ..errors import DeviceError, DTypeError, ShapeError
from ..nesting import rebuilt
from ..scope import local
from .tree import Module, Tree


def hooked(module: Tree) -> bool:
    """True if a call runs hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def call_with_hooks(module: Module, args: tuple, kwargs: dict) -> Any:
    """Run pre-hooks, forward and hooks; backward hooks get the gradients at the module's inputs and outputs."""
    called: set[int] = set()
    try:
        for hook, with_kwargs in list(module._forward_pre_hooks.values()):
            args, kwargs = _before(module, hook, with_kwargs, args, kwargs)
        border = ModuleBorders(module) if module._backward_hooks or module._backward_pre_hooks else None
        if border is not None:
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


class ModuleBorders:
    """Two nodes, at a module's inputs and at its outputs, which pass gradients to backward hooks.

    As in PyTorch, hooks get a gradient for each positional argument, and for outputs that are a tensor, a tuple or a list. It
    is ``None`` where none is required, and for what is no tensor.
    """

    def __init__(self, module: Tree) -> None:
        self.module = module
        self.pre_hooks = list(module._backward_pre_hooks.values())
        self.hooks = list(module._backward_hooks.values())
        self.inputs: list[bool] = []  # for each argument, whether it requires a gradient
        self.outputs: list[bool] = []
        self.outgoing: tuple = ()

    def enter(self, args: tuple) -> tuple:
        """The arguments, with their tensors passed through a node."""
        parts = list(args)
        self.inputs = self._behind_node(parts, self.at_inputs) if self.hooks else []
        return tuple(parts)

    def leave(self, result: Any) -> Any:
        """The result, with all its tensors behind a node."""
        several = isinstance(result, (tuple, list))
        parts = list(result) if several else [result]
        self.outputs = self._behind_node(parts, self.at_outputs)
        rest = iter(parts)
        return rebuilt(result, lambda part: next(rest)) if several else parts[0]

    @staticmethod
    def _behind_node(parts: list, seen: Any) -> list[bool]:
        wanted = [isinstance(part, Tensor) and part.requires_grad and local.grad_enabled for part in parts]
        chosen = [i for i, want in enumerate(wanted) if want]
        if chosen:
            passed = behind_border([parts[i] for i in chosen], partial(_shown, seen))
            for i, tensor in zip(chosen, passed, strict=True):
                share_values(parts[i], tensor)
                parts[i] = tensor
        return wanted

    def at_outputs(self, grads: list) -> list:
        """Called when backward reaches the outputs."""
        every = _placed(grads, self.outputs)
        for hook in self.pre_hooks:
            every = _answered(hook(self.module, every), every, "grad_output")
        self.outgoing = every
        if not any(self.inputs):
            for hook in self.hooks:
                answer = hook(self.module, (None,) * len(self.inputs), every)
                if any(each is not None for each in (answer if isinstance(answer, tuple) else (answer,))):
                    raise RuntimeError("backward hook for Modules where no input requires gradient should always return None")
            self.outgoing = ()
        return [g for g, want in zip(every, self.outputs, strict=True) if want]

    def at_inputs(self, grads: list) -> list:
        """Called when backward reaches the inputs."""
        every = _placed(grads, self.inputs)
        for hook in self.hooks:
            every = _answered(hook(self.module, every, self.outgoing), every, "grad_input")
        self.outgoing = ()
        return [g for g, want in zip(every, self.inputs, strict=True) if want]


def _placed(grads: list, wanted: list[bool]) -> tuple:
    """The gradients in the order of the arguments, with ``None`` for the others."""
    rest = iter(grads)
    return tuple([next(rest) if want else None for want in wanted])


def _answered(answer: Any, grads: tuple, name: str) -> tuple:
    """The gradients that a hook returned, checked. A hook that returned ``None`` leaves ``grads`` as they are."""
    if answer is None:
        return grads
    answer = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
    if len(answer) != len(grads):
        raise RuntimeError(f"backward hook returned an invalid number of {name}: got {len(answer)}, expected {len(grads)}")
    for given, seen in zip(answer, grads, strict=True):
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"backward hook returned a {type(given).__name__} as {name}, expected a tensor or None")
        if given is None or seen is None:
            continue
        if given.shape != seen.shape:
            raise ShapeError(f"backward hook returned a {name} of shape {list(given.shape)}, expected {list(seen.shape)}")
        if given.dtype != seen.dtype:
            raise DTypeError(f"backward hook returned a {name} of dtype {given.dtype}, expected {seen.dtype}")
        if given.device is not seen.device:
            raise DeviceError(f"backward hook returned a {name} on {given.device}, expected {seen.device}")
    return answer


def _shown(seen: Any, node: Any, grads: tuple) -> tuple:
    """Call ``seen`` with copies of the gradients, and return its answer. What it does not replace is passed on as it was.

    Hooks get copies because they may keep them, and the engine may overwrite gradients that it owns.
    """
    shown = [None if g is None else Tensor._wrap(node.copy(g), node.device) for g in grads]
    answers = seen(shown)
    return tuple(
        [
            grad if after is before else None if after is None else node.copy(after.array)
            for grad, before, after in zip(grads, shown, answers, strict=True)
        ]
    )
