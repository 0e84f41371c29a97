"""Modules whose forward is checkpointed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..nn import Module
from .checkpoint import checkpoint

M = TypeVar("M", bound=Module)


class Checkpointed(Module):
    """A base class of every module that :func:`checkpoint_wrapper` has wrapped.

    Attributes:
        checkpoint_options: the options of :func:`checkpoint`.
    """

    checkpoint_options: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return checkpoint(super().forward, *args, **self.checkpoint_options, **kwargs)


def checkpoint_wrapper(module: M, **options: Any) -> M:
    """Checkpoint the forward of ``module`` from now on, and return ``module``.

    It stays the same object, with its names, parameters, buffers and state dict. Its hooks run once, outside of the checkpoint.

    Args:
        options: of :func:`checkpoint`.
    """
    cls = type(module)
    if not isinstance(module, Checkpointed):
        known = {"__module__": cls.__module__, "_known_as": module._root_name()}
        module.__class__ = type(f"Checkpointed{cls.__name__}", (Checkpointed, cls), known)
    module.checkpoint_options = options  # type: ignore[attr-defined]
    return module


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda module: True,
) -> None:
    """Checkpoint every module inside ``model`` for which ``check_fn(module)`` is true.

    >>> apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    """
    for module in list(model.modules()):
        if module is not model and check_fn(module):
            checkpoint_wrapper_fn(module)
