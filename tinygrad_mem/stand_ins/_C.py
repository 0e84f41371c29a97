"""A stand-in for ``torch._C``: what published files call there before they compute."""

from __future__ import annotations

from .. import absent as _absent


def _log_api_usage_once(name: str) -> None:
    """Nothing: no use is logged."""


def _get_tracing_state() -> None:
    """Nothing: no calls are traced."""


class DisableTorchFunctionSubclass:
    """A block in which subclasses of tensors are handled as tensors are, which they are everywhere here."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


__getattr__ = _absent.refuses("_C")
