"""A stand-in for ``torch._C``: what published files call there before they compute."""

from __future__ import annotations

from contextlib import nullcontext


def _log_api_usage_once(name: str) -> None:
    """Do nothing: no use is logged."""


def _get_tracing_state() -> None:
    """Do nothing: no calls are traced."""


class DisableTorchFunctionSubclass(nullcontext):
    """A block that changes nothing: subclasses of tensors are handled as tensors everywhere."""
