"""A stand-in for ``torch._C``: what published files call there before they compute."""

from __future__ import annotations

from contextlib import nullcontext

from .refused import never_made

Graph, Value = (never_made("_C", name, "nothing is traced here") for name in ("Graph", "Value"))


def _log_api_usage_once(name: str) -> None:
    """Do nothing: no use is logged."""


def _get_tracing_state() -> None:
    """Do nothing: no calls are traced."""


class DisableTorchFunctionSubclass(nullcontext):
    """A block that changes nothing: subclasses of tensors are handled as tensors everywhere."""
