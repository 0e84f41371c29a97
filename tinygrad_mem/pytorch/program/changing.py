"""The means of the changes of :mod:`..changes`: they act on a program from outside while it runs. See :mod:`..advise`."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...interrupts import context
from .places import removed
from .replacing import patched


@context
def at_first_call(act: Callable[[nn.Module], None], always: bool = False) -> Iterator[None]:
    """Let ``act`` see each module that the program calls itself, before its first call; with ``always``, before every call."""
    seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    depth = 0

    def enter(module: nn.Module, _: Any) -> None:
        nonlocal depth
        depth += 1
        again = torch._C._current_graph_task_id() != -1  # backward runs a checkpoint's blocks
        if depth == 1 and not again and (always or module not in seen):
            seen.add(module)
            act(module)

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    handles = [hooks.register_module_forward_pre_hook(enter), hooks.register_module_forward_hook(leave, always_call=True)]
    with removed(handles):
        yield


def before_backward(act: Callable[[], None]) -> AbstractContextManager[None]:
    """Call ``act`` before each backward."""
    own = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def engine(*args: Any, **kwargs: Any) -> Any:
        act()
        return own(*args, **kwargs)

    return patched((torch.autograd, {"_engine_run_backward": engine}))


@context
def forward_and_loss(make: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Run forward, and all up to backward or an optimizer's step, within ``make()``: as a ``with`` around the loss."""
    opened: list[AbstractContextManager] = []

    def open_(module: nn.Module) -> None:
        if not opened and torch.is_grad_enabled():
            inside = make()
            inside.__enter__()
            opened.append(inside)

    def close(*_: Any) -> None:
        while opened:
            opened.pop().__exit__(None, None, None)

    handle = register_optimizer_step_pre_hook(close)
    try:
        with at_first_call(open_, always=True), before_backward(close):
            yield
    finally:
        close()
        handle.remove()


def optimizer_classes() -> list[type]:
    """Every optimizer class that has its own constructor, base classes first."""
    found, left = [], [torch.optim.Optimizer]
    while left:
        below = left.pop().__subclasses__()
        left += below
        found += [kind for kind in below if "__init__" in vars(kind)]
    return list(dict.fromkeys(found))


def constructors(
    before: Callable[[type, dict[str, Any]], None] = lambda kind, kwargs: None,
    after: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
) -> AbstractContextManager[None]:
    """Change the keywords with which optimizers are made, and then the optimizers themselves."""
    depth = 0

    def wrap(own: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(own)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal depth
            if depth:
                return own(self, *args, **kwargs)
            depth += 1
            try:
                before(type(self), kwargs)
                own(self, *args, **kwargs)
                after(self)
            finally:
                depth -= 1

        return init

    return patched(*[(kind, {"__init__": wrap(vars(kind)["__init__"])}) for kind in optimizer_classes()])


@context
def stepping_in_backward() -> Iterator[None]:
    """Give each parameter an optimizer of its own, which steps when the gradient is complete, and then drops the gradient."""
    handles: list[Any] = []

    def split(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            options = {key: value for key, value in group.items() if key in optimizer.defaults}
            for parameter in group["params"]:
                kind: Any = type(optimizer)
                alone = kind([{"params": [parameter], **options}])
                handles.append(parameter.register_post_accumulate_grad_hook(functools.partial(_step_alone, alone)))
        no_step = types.MethodType(lambda self, closure=None: None if closure is None else closure(), optimizer)
        optimizer.step = no_step  # type: ignore[method-assign] (a method: learning rate schedulers look at its function)

    with removed(handles), constructors(after=split):
        yield


def _step_alone(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


_DECAYS = {torch.optim.Adam: 0.0, torch.optim.AdamW: 0.01}  # by default


def adam_becomes(kind: type, keep: tuple[str, ...]) -> AbstractContextManager[None]:
    """Replace Adam and AdamW by another optimizer when they are made.

    Args:
        keep: options of Adam that the other optimizer has too.
    """
    names = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")

    def replaced(own: Callable[..., None], decay: float) -> Callable[..., None]:
        @functools.wraps(own)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if type(self) not in _DECAYS:
                return own(self, *args, **kwargs)
            given = {"lr": 1e-3, "weight_decay": decay, **dict(zip(names, args, strict=False)), **kwargs}
            kept = ("params", *keep)
            groups = [{key: g[key] for key in g if key in kept} if isinstance(g, dict) else g for g in given.pop("params")]
            self.__class__ = kind
            kind.__init__(self, groups, **{key: given[key] for key in keep if key in given})  # type: ignore[misc]

        return init

    return patched(*[(each, {"__init__": replaced(vars(each)["__init__"], decay)}) for each, decay in _DECAYS.items()])


class BitsAndBytesAdam(torch.optim.Optimizer):
    """The bytes of bitsandbytes' ``AdamW8bit``: two bytes for an element, two float32 for each 256, and no temporaries.

    Parameters of fewer than 4,096 elements keep two float32 for an element. It computes nothing: it is for a prediction.

    Source: Dettmers et al., *8-bit Optimizers via Block-wise Quantization*, 2022; bitsandbytes' documentation.
    """

    def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Make the state of parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or self.state[parameter]:
                    continue
                small, blocks = parameter.numel() < 4096, -(-parameter.numel() // 256)
                for number in (1, 2):
                    made = torch.zeros_like(parameter, dtype=torch.float32 if small else torch.uint8)
                    self.state[parameter][f"state{number}"] = made
                for number in () if small else (1, 2):
                    made = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
                    self.state[parameter][f"absmax{number}"] = made
        return loss


def zeroed_to_none() -> AbstractContextManager[None]:
    """Let ``zero_grad`` always drop gradients."""
    optimizers, modules = torch.optim.Optimizer.zero_grad, nn.Module.zero_grad
    return patched(
        (torch.optim.Optimizer, {"zero_grad": lambda self, set_to_none=True: optimizers(self)}),
        (nn.Module, {"zero_grad": lambda self, set_to_none=True: modules(self)}),
    )


@context
def forwards(chosen: Callable[[nn.Module], list[tuple[nn.Module, Callable[..., Any]]]]) -> Iterator[None]:
    """Replace forwards of modules, by ``chosen(root)``, before a root's first call; restore them at the end."""
    changed: list[weakref.ref[nn.Module]] = []

    def change(root: nn.Module) -> None:
        for module, forward in chosen(root):
            module.forward = forward  # type: ignore[method-assign]
            changed.append(weakref.ref(module))

    try:
        with at_first_call(change):
            yield
    finally:
        for reference in changed:
            module = reference()
            if module is not None:
                vars(module).pop("forward", None)  # else a cycle holds it
