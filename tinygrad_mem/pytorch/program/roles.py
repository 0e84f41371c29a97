"""The purpose of each block of a PyTorch program, from the objects that hold it: parameters, gradients, state, graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ...callbacks import finalizer
from .ledger import Ledger
from .places import mark, marked

if TYPE_CHECKING:
    from .watch import Watch

_saved_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # type: ignore[attr-defined]
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_OF_NUMBERS = (torch.float64, torch.int64, torch.complex128, torch.bool)


class _Token:
    """Lives as long as a node of the graph. ``kept``: the blocks that the node saved, each with its name there."""

    def __init__(self, ledger: Ledger, place: Any) -> None:
        self.ledger, self.place = ledger, place
        self.kept: list[tuple[weakref.ref, str]] = []

    @finalizer
    def __del__(self) -> None:
        for reference, note in self.kept:
            held = reference()
            if held is not None:
                self.ledger.leave(held, self.place, "ACTIVATION", note)


class Roles:
    """Reports to the ledger what blocks are used for.

    Args:
        by_values: nodes whose backward may take more or less bytes, by name; see :data:`.by_values.NODES`.
    """

    def __init__(self, watch: Watch, by_values: dict[str, tuple[Callable[[Any], int], str]]) -> None:
        self.places, self._watch, self._by_values = watch.places, watch, by_values
        self._ledger, self._find = watch.ledger, watch.find
        self._names: dict[int, str] = {}  # address of a parameter's block -> its path

    def of_module(self, root: nn.Module) -> None:
        """The parameters and buffers of a module that the user calls."""
        for name, module in root.named_modules():
            path = f"{type(root).__name__}.{name}" if name else type(root).__name__
            for kind, held in (("PARAMETER", module._parameters), ("BUFFER", module._buffers)):
                for key, tensor in held.items():
                    self._is(tensor, kind, f"{path}.{key}")

    def gradients(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Record the gradients that parameters have now.

        ``optimizer``: only those of its parameters. Programs that step in backward have one for each parameter.
        """
        if optimizer is None:
            held: Iterable[Any] = (each for module in list(self.places.modules) for each in module._parameters.values())
        else:
            held = (each for group in optimizer.param_groups for each in group["params"])
        with torch._C.DisableTorchFunction():
            for parameter in held:
                if parameter is not None and parameter.grad is not None:
                    self._is(parameter.grad, "GRADIENT", self._name(parameter))

    def _name(self, parameter: Any) -> str:
        """The path of a parameter, if it is known."""
        found = self._find(parameter) if isinstance(parameter, torch.Tensor) else None
        return "" if found is None else self._names.get(found.address, "")

    def of_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The state that an optimizer has after a step."""
        for parameter, state in optimizer.state.items():
            for tensor in _tensors(state.values() if isinstance(state, dict) else [state]):
                self._is(tensor, "OPTIMIZER_STATE", self._name(parameter))

    def _is(self, tensor: torch.Tensor | None, role: str, name: str) -> None:
        held = None if tensor is None else self._find(tensor)
        if held is None or role in held.roles:
            return
        if role == "PARAMETER":
            self._names[held.address] = name
        self._ledger.become(held, role, name)

    def finish(self) -> None:
        """Record everything that modules hold at the end, also modules that were not called."""
        below = {child for module in list(self.places.modules) for child in module.children()}
        for module in list(self.places.modules):
            if module not in below:
                self.of_module(module)
        self.gradients()

    def saved(self, result: Any) -> None:
        """The nodes of the graph that a call has made, and what they keep for backward."""
        for tensor in (result,) if type(result) is FakeTensor else _tensors([result]):
            if tensor.grad_fn is not None:
                self._walk(tensor.grad_fn)
            while type(tensor) is torch.Tensor and _functorch.is_functorch_wrapped_tensor(tensor):
                tensor = _functorch.get_unwrapped(tensor)  # each level has a graph of its own
                if tensor.grad_fn is not None:
                    self._walk(tensor.grad_fn)

    def _walk(self, node: Any) -> None:
        hooked = _saved_hooks(True) is not None
        nodes, place = [node], None
        while nodes:
            node = nodes.pop()
            if marked(node):
                continue
            place = place or self.places.here()
            token = _Token(self._ledger, place._replace(op=node.name()))
            mark(node, place, token)
            known = self._by_values.get(node.name())
            if known is not None and (size := known[0](node)):
                self._watch.bound(size, f"the gradient of {node.name()} {known[1]}")
            nodes.extend(above for above, _ in node.next_functions if above is not None)
            self._enter(node, token, hooked)

    def _enter(self, node: Any, token: _Token, hooked: bool) -> None:
        for name in _saved_names(type(node)):
            try:
                value = _not_packed(node, name) if hooked else getattr(node, name)
            except RuntimeError:  # freed, or not this kind of node
                continue
            for tensor in _tensors([value]):
                if tensor.dtype in _OF_NUMBERS and type(tensor) is torch.Tensor and not tensor.dim():
                    self._watch.own(tensor, number=True)  # such as 0.5 of ``x * 0.5``: a tensor on the host
                held = self._find(tensor)
                if held is not None:
                    note = name.removeprefix("_saved_")
                    self._ledger.enter(held, token.place, "ACTIVATION", note)
                    token.kept.append((weakref.ref(held), note))


def _not_packed(node: Any, name: str) -> Any:
    """A value that a node keeps and no hook has packed, such as a number; ``None``: reading it would unpack it."""
    saved: Any = getattr(node, f"_raw{name}", None)
    return saved.data if getattr(saved, "unpack_hook", "") is None else None


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes by which a kind of node shows what it keeps."""
    names = tuple(name for name in dir(kind) if name.startswith("_saved_"))
    return names or tuple(name for name in ("saved_tensors",) if hasattr(kind, name))


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
