"""Finds the activations that may overwrite their input, in a step on ``meta``."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from .. import scope
from ..autograd.tensor import Tensor
from ..nn import Module
from ..ops.base import root_of


class Writable(scope.Listener):
    """Observes a step, and finds the modules with ``inplace=False`` that could have ``inplace=True`` with the same result.

    The input must be the result of an op, not saved for backward, and not read by any op after the module. Memory is identified
    by the array that owns it, as long as that is alive.
    """

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}
        self._saved: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._over: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # what would be written over
        self._by: dict[int, str] = {}  # and by which module

    def watch(self, model: Module) -> None:
        """Register the modules, before the step."""
        for path, module in model.named_modules():
            if getattr(module, "inplace", None) is False:
                module.register_forward_hook(partial(self._ran, path))

    def _ran(self, path: str, module: Module, inputs: tuple, output: Any) -> None:
        x = inputs[0] if inputs else None
        if not isinstance(x, Tensor) or not isinstance(output, Tensor):
            self._found[path] = False
            return
        root = root_of(x.array)
        free = x.grad_fn is not None and x._view is None and root_of(output.array) is not root and id(root) not in self._saved
        self._found[path] = free and self._found.get(path, True)
        self._over[id(root)], self._by[id(root)] = root, path

    def _mark_read(self, array: Any) -> None:
        root = root_of(array)
        if id(root) in self._over:
            self._found[self._by[id(root)]] = False

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        for array in arrays:
            if hasattr(array, "base"):
                self._mark_read(array)

    def saved(self, node: Any, name: str, array: Any) -> None:
        self._saved[id(root_of(array))] = root_of(array)
        self._mark_read(array)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the modules that may overwrite their input."""
        return tuple(path for path, may in self._found.items() if may)
